//! Names the container images of the tests: etcd and `HAProxy` as in docker-compose.yml, and the project's node.

/// The name of etcd's image, without the tag.
pub(crate) const ETCD: &str = "quay.io/coreos/etcd";

/// Returns the default tag of docker-compose.yml, unless `ETCD_VERSION` names another.
pub(crate) fn etcd_tag() -> String {
    let compose = include_str!("../../docker-compose.yml");
    let default = compose
        .split("${ETCD_VERSION:-")
        .nth(1)
        .and_then(|rest| rest.split('}').next());
    std::env::var("ETCD_VERSION").unwrap_or_else(|_| default.unwrap_or_default().to_owned())
}

/// Returns the whole name of the front's image.
pub(crate) fn haproxy() -> String {
    let compose = include_str!("../../docker-compose.yml");
    let mut images = compose
        .lines()
        .map(|line| line.trim().split_once("image: "));
    let front = images.find_map(|image| image.filter(|(_, name)| name.starts_with("haproxy:")));
    front.map(|(_, name)| name.to_owned()).unwrap_or_default()
}

/// Returns the node's image: that of the Dockerfile, as `cargo xtask verify containers` has it built, or that of `cargo
/// xtask images node`.
pub(crate) fn node() -> String {
    std::env::var("ELDEST_NODE_IMAGE").unwrap_or_else(|_| "eldest-node-test".to_owned())
}

//! Names the container images of the tests: etcd and `HAProxy` as in docker-compose.yml, and the project's node.

/// etcd's, without the tag.
pub(crate) const ETCD: &str = "quay.io/coreos/etcd";

/// The default that docker-compose.yml gives, unless `ETCD_VERSION` names another.
pub(crate) fn etcd_tag() -> String {
    let compose = include_str!("../../docker-compose.yml");
    let default = compose
        .split("${ETCD_VERSION:-")
        .nth(1)
        .and_then(|rest| rest.split('}').next());
    std::env::var("ETCD_VERSION").unwrap_or_else(|_| default.unwrap_or_default().to_owned())
}

/// The whole name of the front's.
pub(crate) fn haproxy() -> String {
    let compose = include_str!("../../docker-compose.yml");
    let mut images = compose
        .lines()
        .map(|line| line.trim().split_once("image: "));
    let front = images.find_map(|image| image.filter(|(_, name)| name.starts_with("haproxy:")));
    front.map(|(_, name)| name.to_owned()).unwrap_or_default()
}

/// The node's: the Dockerfile's, as `cargo xtask verify containers` has it built, or the one of `cargo xtask images node`.
pub(crate) fn node() -> String {
    std::env::var("ELDEST_NODE_IMAGE").unwrap_or_else(|_| "eldest-node-test".to_owned())
}

//! Hides which image of etcd the tests use: the one that docker-compose.yml names.

/// Its name, without the tag.
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

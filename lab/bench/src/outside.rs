//! Names the external programs that the benches use, and reads their paths from the variables that `cargo xtask bench`
//! sets.

use std::env;
use std::ffi::OsString;

/// The built peer in Go.
pub(crate) const GO: &str = "go";
/// `etcdctl elect` and `etcdctl lock`.
pub(crate) const ETCDCTL: &str = "etcdctl";
/// The folder of kazoo for Python, and the jars of a `ZooKeeper` for it.
pub(crate) const KAZOO: &str = "kazoo";
pub(crate) const ZOOKEEPER: &str = "zookeeper";
/// The packages `with` and `without`: a user of the library, and a user of etcd-client alone.
pub(crate) const USERS: &str = "users";
/// The command `eldest`.
pub(crate) const COMMAND: &str = "command";

/// The programs that are also names of peers.
pub(crate) const PEERS: [&str; 3] = [GO, ETCDCTL, KAZOO];

/// Returns the program's path, or the reason why it is missing.
pub(crate) fn find(name: &str) -> Result<OsString, String> {
    let name = name.to_uppercase();
    env::var_os(format!("ELDEST_BENCH_{name}")).ok_or_else(|| {
        let why = env::var(format!("ELDEST_BENCH_NO_{name}"));
        why.unwrap_or_else(|_| "`cargo xtask bench` was not asked to look for it".to_owned())
    })
}

/// Returns the programs that a peer of this name needs.
pub(crate) fn needed_by(peer: &str) -> &'static [&'static str] {
    match peer {
        GO => &[GO],
        ETCDCTL => &[ETCDCTL],
        KAZOO => &[KAZOO, ZOOKEEPER],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::{KAZOO, find, needed_by};

    #[test]
    fn a_program_that_nobody_named_is_not_found() {
        assert!(find("nothing-of-this-name").unwrap_err().contains("look"));
        assert_eq!(needed_by(KAZOO).len(), 2);
        assert!(needed_by("eldest").is_empty());
    }
}

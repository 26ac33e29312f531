//! Finds the etcdctl for the tests that share an etcd with it, or leaves those tests out on request.

use std::path::PathBuf;

const REMEDY: &str = "there is no etcdctl: install it (Debian: `apt-get install etcd-client`), or name one by \
    ELDEST_ETCDCTL, or run `cargo xtask test integration`, which fetches one, or set ELDEST_NO_ETCDCTL=1 to leave \
    these tests out";

/// `None`: tests with it are not wanted.
pub(crate) fn etcdctl() -> Option<PathBuf> {
    if std::env::var_os("ELDEST_NO_ETCDCTL").is_some_and(|value| value == "1") {
        println!("left out: ELDEST_NO_ETCDCTL=1");
        return None;
    }
    if let Some(named) = std::env::var_os("ELDEST_ETCDCTL") {
        return Some(named.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let files = std::env::split_paths(&path).map(|folder| folder.join("etcdctl"));
    let found = { files }.find(|file| file.is_file());
    Some(found.expect(REMEDY))
}

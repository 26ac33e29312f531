//! Makes an etcd image from the vendored server, Debian's etcdctl, and the libraries that etcdctl needs.

use std::fs;

use anyhow::Result;

use super::{Image, make_folder, put, put_program};
use crate::stage::Stage;
use crate::{packages, releases};

/// The repository of the public images, which ours replace.
const REPOSITORY: &str = "quay.io/coreos/etcd";
/// The recipe's number; increase it when the files or settings below change.
const RECIPE: u32 = 1;
/// The settings of the public images: no shell, and the server as command, not as entry point.
const SETTINGS: [&str; 4] = [
    "CMD [\"/usr/local/bin/etcd\"]",
    "ENV PATH=/usr/local/bin",
    "EXPOSE 2379 2380",
    "WORKDIR /var/etcd",
];

/// Makes the image of the etcd that the library is tested with.
pub(super) fn make(stage: &Stage) -> Result<()> {
    let (etcd, version) = releases::current(stage)?;
    let image = Image {
        name: &format!("{REPOSITORY}:v{version}"),
        public: true,
        made_of: &format!("etcd {version}, recipe {RECIPE}"),
        settings: &SETTINGS,
    };
    image.make(stage, |root| {
        put(root, &etcd, "/usr/local/bin/etcd")?;
        // The crate contains no etcdctl. etcd's gRPC interface is compatible across the 3.x releases.
        let etcdctl = packages::unpack(stage, "etcd-client", "usr/bin/etcdctl")?;
        put_program(stage, root, &etcdctl, "/usr/local/bin/etcdctl")?;
        fs::create_dir_all(root.join("etc"))?;
        fs::write(root.join("etc/nsswitch.conf"), "hosts: files dns\n")?;
        fs::create_dir_all(root.join("var/lib"))?;
        make_folder(stage, root, "1777", "tmp")?;
        make_folder(stage, root, "700", "var/etcd")?;
        make_folder(stage, root, "700", "var/lib/etcd")
    })
}

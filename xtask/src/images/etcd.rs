//! Hides what an image of etcd consists of: the vendored server, Debian's etcdctl, and the libraries of that.

use std::fs;
use std::path::Path;

use anyhow::Result;

use super::{Image, Owner, put, workshop};
use crate::stage::Stage;
use crate::{matrix, packages, setup};

/// Where the public images are, for which ours stand in.
const REPOSITORY: &str = "quay.io/coreos/etcd";
/// To be counted up when the files or settings below change.
const RECIPE: u32 = 1;
/// As in the public images: no shell, and the server as command, not as entry point.
const SETTINGS: [&str; 4] = [
    "CMD [\"/usr/local/bin/etcd\"]",
    "ENV PATH=/usr/local/bin",
    "EXPOSE 2379 2380",
    "WORKDIR /var/etcd",
];

/// Makes the image of the newest etcd in this series, or of the one that the library is tested with.
pub(super) fn make(stage: &Stage, series: Option<&str>) -> Result<()> {
    let (etcd, version) = match series {
        Some(series) => matrix::vendored(stage, series)?,
        None => matrix::current(stage)?,
    };
    let image = Image {
        name: &format!("{REPOSITORY}:v{version}"),
        public: true,
        made_of: &format!("etcd {version}, recipe {RECIPE}"),
        settings: &SETTINGS,
        owner: Owner::Root,
    };
    if !image.is_missing(stage) {
        return Ok(());
    }
    let root = workshop("etcd")?;
    put(&root, &etcd, "/usr/local/bin/etcd")?;
    // The crate has none. etcd's gRPC interface is compatible across the 3.x releases.
    let etcdctl = packages::unpack(stage, "etcd-client", "usr/bin/etcdctl")?;
    put(&root, &etcdctl, "/usr/local/bin/etcdctl")?;
    let libraries = stage.output(setup::program("ldd").arg(&etcdctl))?;
    for library in libraries.lines().filter_map(library) {
        put(&root, Path::new(library), library)?;
    }
    fs::create_dir_all(root.join("etc"))?;
    fs::write(root.join("etc/nsswitch.conf"), "hosts: files dns\n")?;
    fs::create_dir_all(root.join("var/lib"))?;
    for (mode, folder) in [
        ("1777", "tmp"),
        ("700", "var/etcd"),
        ("700", "var/lib/etcd"),
    ] {
        stage.output(
            setup::program("mkdir")
                .args(["-m", mode])
                .arg(root.join(folder)),
        )?;
    }
    image.import(stage, &root)
}

/// The file in a line that `ldd` printed. The kernel's own library has none.
fn library(line: &str) -> Option<&str> {
    line.split_whitespace().find(|word| word.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::library;

    #[test]
    fn the_loader_and_the_libraries_are_files_and_the_kernels_own_is_not() {
        let printed = "\tlinux-vdso.so.1 (0x00007f5e11f98000)\n\
                       \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f5e11da5000)\n\
                       \t/lib64/ld-linux-x86-64.so.2 (0x00007f5e11f9a000)\n";
        let files: Vec<_> = printed.lines().filter_map(library).collect();
        assert_eq!(
            files,
            [
                "/lib/x86_64-linux-gnu/libc.so.6",
                "/lib64/ld-linux-x86-64.so.2"
            ]
        );
    }
}

//! Makes stand-ins for the Dockerfile's public base images from Debian's packages and this machine's Rust.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Image;
use crate::stage::Stage;
use crate::{packages, setup};

/// The base image for running.
pub(crate) const DEBIAN: &str = "debian:bookworm-slim";
/// The base image for building.
const RUST: &str = "rust:1-slim-bookworm";
const SUITE: &str = "bookworm";
/// The recipe's number; increase it when the files or settings below change.
const RECIPE: u32 = 2;

/// Certificate authorities that this machine trusts beyond Debian's, such as a company's proxy.
const OWN_AUTHORITIES: &str = "/usr/local/share/ca-certificates";

/// Makes those of the two images that are missing.
pub(crate) fn make(stage: &mut Stage) -> Result<()> {
    let rustc = stage.output(setup::program("rustc").arg("--version"))?;
    let rustc = rustc.split(' ').nth(1);
    let rustc = rustc.context("`rustc --version` names no version")?;
    let debian = Image {
        name: DEBIAN,
        public: true,
        made_of: &format!("Debian {SUITE}, recipe {RECIPE}"),
        settings: &["CMD [\"bash\"]"],
    };
    let rust = Image {
        name: RUST,
        public: true,
        made_of: &format!("Rust {rustc} on Debian {SUITE}, recipe {RECIPE}"),
        settings: &[
            "CMD [\"bash\"]",
            "ENV CARGO_HOME=/usr/local/cargo",
            "ENV PATH=/usr/local/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        ],
    };
    if debian.is_missing(stage) {
        let archive = lay_out(stage, "", &[])?;
        debian.import(stage, &archive)?;
    }
    if rust.is_missing(stage) {
        let toolchain = stage.output(setup::program("rustc").args(["--print", "sysroot"]))?;
        let toolchain = toolchain.trim();
        let add = [
            "mkdir \"$1/usr/local/rust\"",
            &format!("copy-in {toolchain}/bin {toolchain}/lib /usr/local/rust"),
        ];
        let archive = lay_out(stage, ",gcc,libc6-dev", &add)?;
        rust.import(stage, &archive)?;
    }
    Ok(())
}

/// Packs the smallest Debian with these further packages, and with this machine's mirror and certificate authorities.
/// mmdebstrap runs the hooks last, and leaves out what apt has downloaded. It mounts folders of the kernel, which no other
/// process sees and which end with it, even if it is killed.
fn lay_out(stage: &mut Stage, packages: &str, hooks: &[&str]) -> Result<PathBuf> {
    packages::ensure(
        stage,
        &[("mmdebstrap", "mmdebstrap"), ("unshare", "util-linux")],
    )?;
    let mirror = packages::mirror(stage)?;
    stage.say(&format!("laying out Debian {SUITE} from {mirror}"));
    let folder = setup::target().join("debian-base");
    setup::empty(&folder)?;
    let archive = folder.with_extension("tar");
    let mut mmdebstrap = setup::program("unshare");
    mmdebstrap.env("TMPDIR", &folder);
    mmdebstrap.args(["--mount", "mmdebstrap", "--quiet", "--variant=minbase"]);
    mmdebstrap.arg(format!("--include=ca-certificates{packages}"));
    let copy = format!("copy-in {OWN_AUTHORITIES} /usr/local/share");
    let own = [copy.as_str(), "chroot \"$1\" update-ca-certificates"];
    let own = own.iter().filter(|_| Path::new(OWN_AUTHORITIES).is_dir());
    for hook in own.chain(hooks) {
        mmdebstrap.arg(format!("--customize-hook={hook}"));
    }
    mmdebstrap.arg(SUITE).arg(&archive);
    for suite in [SUITE.to_owned(), format!("{SUITE}-updates")] {
        mmdebstrap.arg(format!("deb {mirror} {suite} main"));
    }
    stage.output(&mut mmdebstrap)?;
    Ok(archive)
}

//! Makes stand-ins for the Dockerfile's public base images from Debian's packages and this machine's Rust.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::{Image, workshop};
use crate::stage::Stage;
use crate::{packages, setup, version};

/// The base image for running.
pub(crate) const DEBIAN: &str = "debian:bookworm-slim";
/// The base image for building.
const RUST: &str = "rust:1-slim-bookworm";
const SUITE: &str = "bookworm";
/// The recipe's number; increase it when the files or settings below change.
const RECIPE: u32 = 1;

/// Certificate authorities that this machine trusts beyond Debian's, such as a company's proxy.
const OWN_AUTHORITIES: &str = "/usr/local/share/ca-certificates";

/// Makes those of the two images that are missing.
pub(crate) fn make(stage: &mut Stage) -> Result<()> {
    let rustc = stage.output(setup::program("rustc").arg("--version"))?;
    let rustc = rustc.split(' ').nth(1).and_then(version::parse);
    let rustc = rustc.context("`rustc --version` names no version")?;
    let debian = Image {
        name: DEBIAN,
        public: true,
        made_of: &format!("Debian {SUITE}, recipe {RECIPE}"),
        settings: &["CMD [\"bash\"]"],
        keeps_owners: true,
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
        keeps_owners: true,
    };
    let (no_debian, no_rust) = (debian.is_missing(stage), rust.is_missing(stage));
    if !no_debian && !no_rust {
        return Ok(());
    }
    ensure!(
        packages::is_root(),
        "only root can lay out a Debian; elsewhere pull {DEBIAN} and {RUST}"
    );
    packages::ensure(stage, &["debootstrap"])?;
    let root = workshop(stage, "debian")?;
    lay_out(stage, &root)?;
    if no_debian {
        debian.import(stage, &root)?;
    }
    if no_rust {
        add_rust(stage, &root)?;
        rust.import(stage, &root)?;
    }
    fs::remove_dir_all(&root)?;
    Ok(())
}

/// Lays out the smallest Debian, with this machine's mirror and certificate authorities.
fn lay_out(stage: &Stage, root: &Path) -> Result<()> {
    let mirror = packages::mirror(stage)?;
    stage.say(&format!("laying out Debian {SUITE} from {mirror}"));
    let mut debootstrap = setup::program("debootstrap");
    debootstrap.args(["--variant=minbase", "--include=ca-certificates", SUITE]);
    stage.output(debootstrap.arg(root).arg(&mirror))?;
    let sources = format!("deb {mirror} {SUITE} main\ndeb {mirror} {SUITE}-updates main\n");
    fs::write(root.join("etc/apt/sources.list"), sources)?;
    if Path::new(OWN_AUTHORITIES).is_dir() {
        // They are copied to the folder from which Debian reads them, so that a later update of its list keeps them.
        let from = format!("{OWN_AUTHORITIES}/.");
        let to = root.join(OWN_AUTHORITIES.trim_start_matches('/'));
        stage.output(setup::program("cp").args(["--archive", &from]).arg(to))?;
        inside(stage, root, &["update-ca-certificates"])?;
    }
    tidy(root)
}

fn add_rust(stage: &Stage, root: &Path) -> Result<()> {
    stage.say("adding Rust");
    let install = "apt-get install -y -qq --no-install-recommends gcc libc6-dev";
    inside(stage, root, &["apt-get", "update", "-qq"])?;
    inside(stage, root, &install.split(' ').collect::<Vec<_>>())?;
    let toolchain = stage.output(setup::program("rustc").args(["--print", "sysroot"]))?;
    let rust = root.join("usr/local/rust");
    fs::create_dir_all(&rust)?;
    for part in ["bin", "lib"] {
        let mut copy = setup::program("cp");
        copy.arg("--archive")
            .arg(Path::new(toolchain.trim()).join(part));
        stage.output(copy.arg(&rust))?;
    }
    tidy(root)
}

/// Runs a program of the Debian at `root`.
fn inside(stage: &Stage, root: &Path, command: &[&str]) -> Result<()> {
    let mut chroot = setup::program("chroot");
    chroot.arg(root).args(command);
    chroot.env("DEBIAN_FRONTEND", "noninteractive");
    stage.output(&mut chroot)?;
    Ok(())
}

/// Removes what apt has downloaded.
fn tidy(root: &Path) -> Result<()> {
    for folder in ["var/cache/apt/archives", "var/lib/apt/lists"] {
        for entry in fs::read_dir(root.join(folder))? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                fs::remove_file(entry.path())?;
            }
        }
    }
    Ok(())
}

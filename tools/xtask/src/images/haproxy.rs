//! Makes a stand-in for `HAProxy`'s public image from Debian's program and its libraries.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::{Image, libraries, put};
use crate::stage::Stage;
use crate::{packages, setup};

/// The public name, which docker-compose.yml also uses.
pub(crate) const NAME: &str = "haproxy:2.6";
/// The release of Debian that has that series.
const SUITE: &str = "bookworm";
/// The recipe's number; increase it when the files or settings below change.
const RECIPE: u32 = 1;
/// The settings of the public image, whose entry point adds the two switches. Its stop signal cannot be imported.
const SETTINGS: [&str; 4] = [
    "CMD [\"haproxy\", \"-W\", \"-db\", \"-f\", \"/usr/local/etc/haproxy/haproxy.cfg\"]",
    "ENV PATH=/usr/local/sbin",
    "USER 99:99",
    "WORKDIR /var/lib/haproxy",
];
/// The packages of libraries that few machines have; the others are essential, or OpenSSL's.
const LIBRARIES: [&str; 3] = [
    "liblua5.3-0",
    "libopentracing-c-wrapper0",
    "libopentracing1",
];

/// Makes the image if it is missing.
pub(super) fn make(stage: &Stage) -> Result<()> {
    let image = Image {
        name: NAME,
        public: true,
        made_of: &format!("Debian {SUITE}'s HAProxy, recipe {RECIPE}"),
        settings: &SETTINGS,
    };
    image.make(stage, |root| lay_out(stage, root))
}

fn lay_out(stage: &Stage, root: &Path) -> Result<()> {
    let haproxy = packages::unpack_of(stage, SUITE, "haproxy", "usr/sbin/haproxy")?;
    put(root, &haproxy, "/usr/local/sbin/haproxy")?;
    let mut folders = Vec::new();
    for package in LIBRARIES {
        folders.push(folder(stage, package)?);
    }
    let folders = env::join_paths(folders)?;
    let mut ldd = setup::program("ldd");
    let found = stage.output(ldd.arg(&haproxy).env("LD_LIBRARY_PATH", &folders))?;
    ensure!(
        !found.contains("not found"),
        "this machine has not all that {NAME} needs; elsewhere pull it:\n{found}"
    );
    for library in libraries(&found) {
        // The loader finds the library here, whatever folder it was unpacked in.
        let name = library.file_name().unwrap_or_default().to_string_lossy();
        let to = if library.starts_with(setup::target()) {
            format!("/lib/{name}")
        } else {
            library.display().to_string()
        };
        put(root, library, &to)?;
    }
    fs::create_dir_all(root.join("etc"))?;
    fs::write(root.join("etc/nsswitch.conf"), "hosts: files dns\n")?;
    for folder in ["var/lib/haproxy", "usr/local/etc/haproxy"] {
        fs::create_dir_all(root.join(folder))?;
    }
    Ok(())
}

/// Returns the folder of a package's libraries, which is named after the machine's kind.
fn folder(stage: &Stage, package: &str) -> Result<PathBuf> {
    let about = format!("usr/share/doc/{package}/copyright");
    let about = packages::unpack_of(stage, SUITE, package, &about)?;
    let usr = about.ancestors().nth(4).context("a folder")?;
    Ok(usr.join(format!("lib/{}-linux-gnu", env::consts::ARCH)))
}

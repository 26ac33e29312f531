//! Makes a stand-in for `HAProxy`'s public image from Debian's program and its libraries.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};

use super::{Image, put_program};
use crate::stage::Stage;
use crate::{packages, setup};

/// The public name, which docker-compose.yml also uses.
pub(crate) const NAME: &str = "haproxy:2.6";
/// The recipe's number; increase it when the files or settings below change.
const RECIPE: u32 = 2;
/// The settings of the public image, whose entry point adds the two switches. Its stop signal cannot be imported.
const SETTINGS: [&str; 4] = [
    "CMD [\"haproxy\", \"-W\", \"-db\", \"-f\", \"/usr/local/etc/haproxy/haproxy.cfg\"]",
    "ENV PATH=/usr/local/sbin",
    "USER 99:99",
    "WORKDIR /var/lib/haproxy",
];

/// Makes the image if it is missing.
pub(super) fn make(stage: &Stage) -> Result<()> {
    let image = Image {
        name: NAME,
        public: true,
        made_of: &format!("Debian's HAProxy, recipe {RECIPE}"),
        settings: &SETTINGS,
    };
    image.make(stage, |root| lay_out(stage, root))
}

fn lay_out(stage: &Stage, root: &Path) -> Result<()> {
    let haproxy = packages::unpack(stage, "haproxy", "usr/sbin/haproxy")?;
    let mut version = setup::program(&haproxy.file.to_string_lossy());
    version.env("LD_LIBRARY_PATH", &haproxy.libraries);
    let version = stage.output(version.arg("-v"))?;
    ensure!(
        version.contains(" 2.6."),
        "no {NAME} here; pull it:\n{version}"
    );
    put_program(stage, root, &haproxy, "/usr/local/sbin/haproxy")?;
    fs::create_dir_all(root.join("etc"))?;
    fs::write(root.join("etc/nsswitch.conf"), "hosts: files dns\n")?;
    for folder in ["var/lib/haproxy", "usr/local/etc/haproxy"] {
        fs::create_dir_all(root.join(folder))?;
    }
    Ok(())
}

//! Makes container images where no registry is reachable, and decides when an existing image must be made again.

pub(crate) mod bases;
pub(crate) mod command;
mod etcd;
pub(crate) mod haproxy;
pub(crate) mod node;

use std::fs;
use std::path::Path;
use std::process::{ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use crate::fixed::RELEASE_LIMIT;
use crate::packages::Unpacked;
use crate::stage::{self, Stage};
use crate::{docker, setup, together};

/// The label of every image made here. Its value names the contents. An image without it was pulled, or belongs to
/// someone else.
const LABEL: &str = "eldest.image";

/// An image that can be requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// quay.io/coreos/etcd of the vendored version
    Etcd,
    /// Stand-ins for what the Dockerfile starts from, as root on Debian
    Bases,
    /// The front of docker-compose.yml
    Haproxy,
    /// eldest-node-test, a node that records its history
    Node,
    /// The command, static, to run as no user in particular
    Eldest,
}

/// The images that are made if the command names none.
const USUAL: [Kind; 4] = [Kind::Etcd, Kind::Bases, Kind::Haproxy, Kind::Node];

/// The images on the command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Asked {
    /// Without names, all but the last, whose build takes minutes. An image that was pulled is left alone
    #[arg(value_enum)]
    images: Vec<Kind>,
}

/// Runs `cargo xtask images`.
pub(crate) fn run(asked: &Asked) -> ExitCode {
    let kinds = match &asked.images[..] {
        [] => &USUAL[..],
        named => named,
    };
    stage::run("images", RELEASE_LIMIT, |stage| {
        docker::ensure_engine(stage)?;
        make(stage, kinds)
    })
}

/// Makes those images that are missing.
pub(crate) fn make(stage: &mut Stage, kinds: &[Kind]) -> Result<()> {
    for kind in kinds {
        match kind {
            Kind::Etcd => etcd::make(stage)?,
            Kind::Bases => bases::make(stage)?,
            Kind::Haproxy => haproxy::make(stage)?,
            Kind::Node => {
                node::make(stage, &together::build(stage, &["--bins", "--examples"])?)?;
            }
            Kind::Eldest => command::make(stage)?,
        }
    }
    Ok(())
}

/// The description of an image.
struct Image<'a> {
    name: &'a str,
    /// True if others publish images under this name, so that an image without the label was pulled.
    public: bool,
    /// A text that determines the contents, including the recipe: while it stays the same, so does the image.
    made_of: &'a str,
    /// Dockerfile instructions for the settings that are not files.
    settings: &'a [&'a str],
}

impl Image<'_> {
    /// Makes the image if it is missing, of the files that `lay_out` puts into an empty folder. Root owns all of them,
    /// whichever user laid them out.
    fn make(&self, stage: &Stage, lay_out: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        if !self.is_missing(stage) {
            return Ok(());
        }
        let root = setup::target().join("image");
        setup::empty(&root)?;
        lay_out(&root)?;
        let archive = root.with_extension("tar");
        let mut tar = setup::program("tar");
        tar.args(["--create", "--owner=0", "--group=0", "--numeric-owner"]);
        tar.arg("--file").arg(&archive);
        stage.output(tar.arg("--directory").arg(&root).arg("."))?;
        self.import(stage, &archive)
    }

    /// Returns true if the image must be made; prints the reason if not. A pulled one is left alone.
    fn is_missing(&self, stage: &Stage) -> bool {
        let why = match label_of(self.name).as_deref() {
            Some(of) if of == self.made_of => format!("is there ({of})"),
            Some("") if self.public => "is there, and not made here: left alone".to_owned(),
            _ => return true,
        };
        stage.say(&format!("{} {why}", self.name));
        false
    }

    /// Makes the image of an archive, and removes that. `docker import` needs no builder, so every engine can do it.
    fn import(&self, stage: &Stage, archive: &Path) -> Result<()> {
        let mut import = setup::program("docker");
        import.args(["import", "--message", self.made_of]);
        for setting in self.settings {
            import.args(["--change", setting]);
        }
        import.args(["--change", &format!("LABEL {LABEL}={:?}", self.made_of)]);
        stage.output(import.arg(archive).arg(self.name))?;
        fs::remove_file(archive)?;
        // Removes the image that had the name before, if there was one. An image that a container still uses stays. So
        // does an image that a build made from it, which has the label of its base.
        let own = format!("label={LABEL}");
        let filters = ["--filter", &own, "--filter", "label!=eldest.stage"];
        let mut prune = setup::program("docker");
        stage.output(prune.args(["image", "prune", "--force"]).args(filters))?;
        stage.say(&format!("{} made of {}", self.name, self.made_of));
        Ok(())
    }
}

/// Returns the label of the image that the engine has under that name; an empty one if the image was not made here.
fn label_of(name: &str) -> Option<String> {
    let format = format!("{{{{index .Config.Labels {LABEL:?}}}}}");
    let mut inspect = setup::program("docker");
    inspect.args(["image", "inspect", "--format", &format, name]);
    let output = inspect.stderr(Stdio::null()).output().ok()?;
    let label = String::from_utf8_lossy(output.stdout.trim_ascii());
    output.status.success().then(|| label.into_owned())
}

/// Copies a program and the libraries that it loads, some of which may be in these unpacked folders, into an image's files.
fn put_program(stage: &Stage, root: &Path, from: &Unpacked, to: &str) -> Result<()> {
    put(root, &from.file, to)?;
    let mut ldd = setup::program("ldd");
    ldd.env("LD_LIBRARY_PATH", &from.libraries);
    let printed = stage.output(ldd.arg(&from.file))?;
    ensure!(
        !printed.contains("not found"),
        "{to} needs more:\n{printed}"
    );
    for line in printed.lines() {
        // The kernel's own library has no file.
        let Some(file) = line.split_whitespace().find(|it| it.starts_with('/')) else {
            continue;
        };
        // The loader finds a library here, whatever folder it was unpacked in.
        let unpacked = Path::new(file).strip_prefix(setup::target()).ok();
        let name = unpacked.and_then(Path::file_name);
        let place = name.map(|name| format!("/lib/{}", name.to_string_lossy()));
        put(root, Path::new(file), &place.unwrap_or(file.to_owned()))?;
    }
    Ok(())
}

/// Makes a folder of an image.
fn make_folder(stage: &Stage, root: &Path, mode: &str, folder: &str) -> Result<()> {
    let mut mkdir = setup::program("mkdir");
    stage.output(mkdir.args(["-m", mode]).arg(root.join(folder)))?;
    Ok(())
}

/// Copies a file into an image's files, under an absolute path.
fn put(root: &Path, from: &Path, to: &str) -> Result<()> {
    let to = root.join(to.trim_start_matches('/'));
    fs::create_dir_all(to.parent().context("a path below the root")?)?;
    fs::copy(from, &to).with_context(|| format!("copying {}", from.display()))?;
    Ok(())
}

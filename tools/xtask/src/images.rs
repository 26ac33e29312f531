//! Makes container images where no registry is reachable, and decides when an existing image must be made again.

pub(crate) mod bases;
pub(crate) mod command;
mod etcd;
pub(crate) mod haproxy;
pub(crate) mod node;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};

use anyhow::{Context, Result};

use crate::fixed::RELEASE_LIMIT;
use crate::stage::{self, Stage};
use crate::{engine, setup, sources, together};

/// The label of every image made here. Its value names the contents. An image without it was pulled, or belongs to
/// someone else.
const LABEL: &str = "eldest.image";

/// An image that can be requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// etcd of this series, or the newest.
    Etcd(Option<String>),
    /// The base images of the Dockerfile.
    Bases,
    /// The load balancer in front of the nodes of docker-compose.yml.
    Haproxy,
    /// The programs of `tools/node/`, and the command, for tests.
    Node,
    /// The command `eldest`.
    Command {
        /// True for the image for tests, which is built in seconds.
        test: bool,
    },
}

/// The images of the tests in containers, which are made if the command names none.
const ALL: [Kind; 5] = [
    Kind::Etcd(None),
    Kind::Bases,
    Kind::Haproxy,
    Kind::Node,
    Kind::Command { test: true },
];

/// The images on the command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Asked {
    /// The names of images:
    /// `etcd`, quay.io/coreos/etcd of the vendored version; `etcd@3.6`, `@3.5`, `@3.4` of another;
    /// `bases`, stand-ins for what the Dockerfile starts from, as root on Debian;
    /// `haproxy`, the front of docker-compose.yml;
    /// `node`, eldest-node-test, a node that records its history;
    /// `eldest`, the command, static, to run as no user in particular;
    /// `eldest-test`, the same, built in seconds.
    /// Without names, those that the tests in containers need. An image that was pulled is left alone
    #[arg(value_parser = Kind::parse)]
    images: Vec<Kind>,
}

/// Runs `cargo xtask images`.
pub(crate) fn run(asked: &Asked) -> ExitCode {
    let kinds = if asked.images.is_empty() {
        &ALL[..]
    } else {
        &asked.images
    };
    stage::run("images", RELEASE_LIMIT, |stage| {
        engine::ensure(stage)?;
        make(stage, kinds)
    })
}

impl Kind {
    fn parse(name: &str) -> Result<Self> {
        Ok(match name {
            "etcd" => Self::Etcd(None),
            "bases" => Self::Bases,
            "haproxy" => Self::Haproxy,
            "node" => Self::Node,
            "eldest" => Self::Command { test: false },
            "eldest-test" => Self::Command { test: true },
            _ => {
                let series = name.strip_prefix("etcd@");
                let series = series.with_context(|| format!("there is no image `{name}`"))?;
                Self::Etcd(Some(series.to_owned()))
            }
        })
    }
}

/// Makes those images that are missing.
pub(crate) fn make(stage: &mut Stage, kinds: &[Kind]) -> Result<()> {
    for kind in kinds {
        match kind {
            Kind::Etcd(series) => etcd::make(stage, series.as_deref())?,
            Kind::Bases => bases::make(stage)?,
            Kind::Haproxy => haproxy::make(stage)?,
            Kind::Node => {
                node::make(stage, &together::build(stage, &["--bins", "--examples"])?)?;
            }
            Kind::Command { test } => command::make(stage, *test)?,
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
    /// True if the files keep their owners; otherwise root owns all, whichever user laid them out.
    keeps_owners: bool,
}

/// The image that the engine has under a name.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// An image that was not made here.
    Foreign,
    /// An image that was made here, with this description.
    Ours(String),
}

impl Image<'_> {
    /// Makes the image if it is missing, of the files that `lay_out` puts into an empty folder.
    fn make(&self, stage: &Stage, lay_out: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        if !self.is_missing(stage) {
            return Ok(());
        }
        let root = workshop(stage, "image")?;
        lay_out(&root)?;
        self.import(stage, &root)
    }

    /// Returns true if the image must be made; prints the reason if not.
    fn is_missing(&self, stage: &Stage) -> bool {
        let why = self.good_enough(&found(self.name));
        if let Some(why) = &why {
            stage.say(&format!("{} {why}", self.name));
        }
        why.is_none()
    }

    /// Returns why the existing image may stay, if it may. A pulled image is left alone.
    fn good_enough(&self, found: &Found) -> Option<String> {
        match found {
            Found::Ours(of) if of == self.made_of => Some(format!("is there ({of})")),
            Found::Foreign if self.public => {
                Some("is there, and not made here: left alone".to_owned())
            }
            Found::Nothing | Found::Foreign | Found::Ours(_) => None,
        }
    }

    /// Makes the image of the files in `root`. `docker import` needs no builder, so every engine can do it.
    fn import(&self, stage: &Stage, root: &Path) -> Result<()> {
        let archive = root.with_extension("tar");
        let mut tar = setup::program("tar");
        tar.args(["--create", "--numeric-owner"]);
        if !self.keeps_owners {
            tar.args(["--owner=0", "--group=0"]);
        }
        tar.arg("--file").arg(&archive);
        stage.output(tar.arg("--directory").arg(root).arg("."))?;
        let mut import = setup::program("docker");
        import.args(["import", "--message", self.made_of]);
        for setting in self.settings {
            import.args(["--change", setting]);
        }
        import.args(["--change", &format!("LABEL {LABEL}={:?}", self.made_of)]);
        stage.output(import.arg(&archive).arg(self.name))?;
        fs::remove_file(&archive)?;
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

fn found(name: &str) -> Found {
    let format = format!("{{{{index .Config.Labels {LABEL:?}}}}}");
    let mut inspect = setup::program("docker");
    inspect.args(["image", "inspect", "--format", &format, name]);
    let output = inspect.stderr(Stdio::null()).output();
    match output
        .as_ref()
        .map(|output| (output.status.success(), output.stdout.trim_ascii()))
    {
        Ok((true, b"")) => Found::Foreign,
        Ok((true, of)) => Found::Ours(String::from_utf8_lossy(of).into_owned()),
        _ => Found::Nothing,
    }
}

/// Makes an empty folder to lay out an image's files. Mounts that a killed run left in it are unmounted.
fn workshop(stage: &Stage, name: &str) -> Result<PathBuf> {
    let root = setup::target().join("images").join(name);
    if root.exists() {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        for mounted in mounted_below(&root, &mounts) {
            stage.say(&format!("unmounting {}", mounted.display()));
            stage.output(setup::program("umount").arg("--lazy").arg(mounted))?;
        }
    }
    sources::empty(&root)?;
    Ok(root)
}

/// Returns the mount points below a folder in `/proc/self/mounts`, the last mounted first.
fn mounted_below<'a>(root: &Path, mounts: &'a str) -> Vec<&'a Path> {
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    let below = points
        .map(Path::new)
        .filter(|point| point.starts_with(root));
    below.collect::<Vec<_>>().into_iter().rev().collect()
}

/// Returns the files in the output of `ldd`. The kernel's own library has none.
fn libraries(printed: &str) -> impl Iterator<Item = &Path> {
    let lines = printed.lines();
    let files = lines.filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    files.map(Path::new)
}

/// Copies a program and the libraries that it loads into an image's files.
fn put_program(stage: &Stage, root: &Path, from: &Path, to: &str) -> Result<()> {
    put(root, from, to)?;
    let printed = stage.output(setup::program("ldd").arg(from))?;
    let mut libraries = libraries(&printed);
    libraries.try_for_each(|library| put(root, library, &library.display().to_string()))
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Found, Image, mounted_below};

    #[test]
    fn mounts_below_a_folder_are_unmounted_in_reverse_order() {
        let mounts = "proc /proc proc rw 0 0\nproc /t/debian/proc proc rw 0 0\nsysfs /t/debian/sys sysfs rw 0 0\n\
                      x /t/debian-other/proc proc rw 0 0\ny /t/debian/proc/sys y rw 0 0\n";
        let found = mounted_below(Path::new("/t/debian"), mounts);
        let wanted = ["/t/debian/proc/sys", "/t/debian/sys", "/t/debian/proc"];
        assert_eq!(found, wanted.map(Path::new));
    }

    #[test]
    fn image_is_rebuilt_when_its_parts_change_unless_it_was_pulled() {
        let image = |public| Image {
            name: "etcd",
            public,
            made_of: "etcd 2, recipe 1",
            settings: &[],
            keeps_owners: false,
        };
        let ours = |of: &str| Found::Ours(of.to_owned());
        for public in [true, false] {
            let kept = |found| image(public).good_enough(&found).is_some();
            assert!(kept(ours("etcd 2, recipe 1")));
            assert!(!kept(ours("etcd 1, recipe 1")));
            assert!(!kept(Found::Nothing));
            assert_eq!(kept(Found::Foreign), public);
        }
    }
}

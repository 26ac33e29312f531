//! Finds programs and Debian packages on this machine, and installs or unpacks missing ones where possible.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail, ensure};

use crate::setup;
use crate::stage::Stage;

/// Debian's own keys, of every release.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Held while packages are downloaded and unpacked: parallel stages may need the same ones, and apt-get refuses to run
/// twice at a time.
static APT: Mutex<()> = Mutex::new(());

fn apt() -> MutexGuard<'static, ()> {
    APT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes sure that these programs, each with its Debian package, are there. Installs missing ones if this process is root
/// and apt-get exists; otherwise fails with the command to type.
pub(crate) fn ensure(stage: &mut Stage, programs: &[(&str, &str)]) -> Result<()> {
    let _alone = apt();
    let missing = programs
        .iter()
        .filter(|(program, _)| find(program).is_none());
    let missing: BTreeSet<&str> = missing.map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let named: Vec<&str> = missing.into_iter().collect();
    let install = format!("apt-get install {}", named.join(" "));
    if !is_root() || find("apt-get").is_none() {
        bail!("programs are missing: `{install}` as root, or what your system calls it");
    }
    stage.say(&install);
    stage.output(setup::program("apt-get").args(["update", "-qq"]))?;
    let mut command = setup::program("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command.args(["install", "-y", "-qq", "--no-install-recommends"]);
    stage.output(command.args(named)).map(drop)
}

/// A file of a package that is unpacked and not installed.
pub(crate) struct Unpacked {
    pub(crate) file: PathBuf,
    /// The folders of the libraries that are unpacked with it, in the loader's form.
    pub(crate) libraries: String,
}

/// Returns one file of a Debian package that is downloaded and unpacked below `target/`, with all packages that it needs and this
/// machine lacks.
pub(crate) fn unpack(stage: &Stage, package: &str, file: &str) -> Result<Unpacked> {
    let folder = setup::target().join("debian").join(package);
    let whole = unpack_in(stage, &folder, || {
        let mut simulate = setup::program("apt-get");
        simulate.args(["install", "--simulate", "-qq", "--no-install-recommends"]);
        let planned = with_lists(stage, simulate.arg(package))?;
        let planned = planned
            .lines()
            .filter_map(|line| line.strip_prefix("Inst "));
        let mut needed: BTreeSet<&str> =
            planned.filter_map(|line| line.split(' ').next()).collect();
        // No test opens the page of a server, whose scripts are hundreds of megabytes.
        needed.retain(|package| !package.starts_with("libjs-"));
        // The plan has nothing for a package that is installed already.
        needed.insert(package);
        let mut get = setup::program("apt-get");
        get.args(["download", "-qq"]).args(needed);
        stage.output(get.current_dir(&folder)).map(drop)
    });
    file_in(
        stage,
        &whole.with_context(|| format!("apt-get cannot download {package}"))?,
        file,
    )
}

/// Returns one file of a package of another release of Debian, without the packages that it needs. The release's lists are kept
/// below `target/` too, so that none of its packages can be installed by accident.
pub(crate) fn unpack_of(stage: &Stage, suite: &str, package: &str, file: &str) -> Result<PathBuf> {
    let release = setup::target().join("debian").join(suite);
    let folder = release.join(package);
    let whole = unpack_in(stage, &folder, || {
        let mut get = apt_of(stage, suite, &release)?;
        get.args(["download", "-qq", package]);
        stage.output(get.current_dir(&folder)).map(drop)
    });
    let about = || format!("apt-get cannot download {package} of Debian {suite}");
    Ok(file_in(stage, &whole.with_context(about)?, file)?.file)
}

/// Returns the folder below that one with the contents of the packages that `download` leaves there.
fn unpack_in(
    stage: &Stage,
    folder: &Path,
    download: impl FnOnce() -> Result<()>,
) -> Result<PathBuf> {
    let _alone = apt();
    let whole = folder.join("whole");
    if whole.is_dir() {
        return Ok(whole);
    }
    for program in ["apt-get", "dpkg-deb"] {
        ensure!(find(program).is_some(), "there is no {program} here");
    }
    // Removes the rest of an interrupted download.
    setup::empty(folder)?;
    download()?;
    let unpacked = folder.join("unpacked");
    let mut unpack = setup::program("sh");
    let script =
        "for deb in *.deb; do dpkg-deb -x \"$deb\" unpacked && rm \"$deb\" || exit 1; done";
    stage.output(unpack.args(["-c", script]).current_dir(folder))?;
    // The folder is moved into place last, so that an existing one is always complete.
    fs::rename(unpacked, &whole)?;
    Ok(whole)
}

fn file_in(stage: &Stage, whole: &Path, file: &str) -> Result<Unpacked> {
    let path = whole.join(file);
    ensure!(path.is_file(), "there is no {file} in {}", whole.display());
    let mut find = setup::program("find");
    // The folders are named after the machine's kind; some packages have a folder of their own in them.
    find.arg(whole)
        .args(["-path", "*-linux-*", "-name", "*.so*", "-printf", "%h\n"]);
    let folders = stage.output(&mut find)?;
    let folders: BTreeSet<&str> = folders.lines().collect();
    Ok(Unpacked {
        file: path,
        libraries: folders.into_iter().collect::<Vec<_>>().join(":"),
    })
}

/// Returns the output of a call of apt-get that reads the package lists.
fn with_lists(stage: &Stage, apt: &mut Command) -> Result<String> {
    if let Ok(said) = stage.output(apt) {
        return Ok(said);
    }
    // A new machine has no package lists yet.
    ensure!(
        is_root(),
        "no package lists, and only root can run `apt-get update`"
    );
    stage.output(setup::program("apt-get").args(["update", "-qq"]))?;
    stage.output(apt)
}

/// Returns an apt-get with lists and cache of its own: one release, from this machine's mirror.
fn apt_of(stage: &Stage, suite: &str, folder: &Path) -> Result<Command> {
    let mirror = mirror(stage)?;
    for part in ["lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(folder.join(part))?;
    }
    let list = format!("deb [signed-by={KEYS}] {mirror} {suite} main\n");
    fs::write(folder.join("sources.list"), list)?;
    // Installed packages would be downloaded in their own version, which this release may not have.
    fs::write(folder.join("status"), "")?;
    let at = folder.display();
    let text = format!(
        "Dir::State::status \"{at}/status\";
        Dir::State::lists \"{at}/lists\";
        Dir::Cache \"{at}/cache\";
        Dir::Etc::sourcelist \"{at}/sources.list\";
        Dir::Etc::sourceparts \"/dev/null\";
        Dir::Etc::preferences \"/dev/null\";
        Dir::Etc::preferencesparts \"/dev/null\";
        Acquire::Languages \"none\";
        APT::Sandbox::User \"\";\n"
    );
    let configuration = folder.join("apt.conf");
    fs::write(&configuration, text)?;
    let apt = || {
        let mut apt = setup::program("apt-get");
        apt.env("APT_CONFIG", &configuration);
        apt
    };
    stage.output(apt().args(["update", "-qq"]))?;
    Ok(apt())
}

/// Returns the Debian mirror that this machine's package sources name.
pub(crate) fn mirror(stage: &Stage) -> Result<String> {
    let mut targets = setup::program("apt-get");
    targets.args(["indextargets", "--format", "$(REPO_URI)"]);
    let mirrors = stage.output(targets.args(["Created-By: Packages", "Label: Debian"]))?;
    let mirror = mirrors.lines().next();
    let mirror =
        mirror.context("apt's sources name no mirror of Debian, or `apt-get update` never ran")?;
    Ok(mirror.trim_end_matches('/').to_owned())
}

/// Returns the path of a program, as PATH has it.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// Returns true if this process may install and start services.
pub(crate) fn is_root() -> bool {
    let id = setup::program("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

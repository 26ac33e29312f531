//! Packs the published crates, builds README's program with them, and limits the dependencies that the library adds for
//! its users.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use cargo_metadata::{Dependency, DependencyKind};

use crate::metadata::Metadata;
use crate::published::{LIBRARY, PUBLISHED, TESTING};
use crate::stage::Stage;
use crate::together::OTHER_CRYPTOGRAPHY;
use crate::{setup, sources};

/// How many crates the library may add to those that its user needs anyway. `twox-hash` has no dependencies; it is
/// needed because the function that routes keys to partitions is published and must not be one of our own making.
/// `getrandom`, with its `cfg-if`, draws lease ids from the kernel, so that clones of a machine draw different ones.
/// Guards need process descriptors, from `rustix` with its `bitflags` and `linux-raw-sys`, and a spawned guard outlives
/// signals by tokio's `signal-hook-registry` with its `errno`. `eldest-core`, `eldest-guard`, `eldest-peers` and
/// `eldest-process` are ours.
const ALLOWED: usize = 19;
const CLIENT: &str = "etcd-client";
/// The package of a user of the library, and of a user of etcd-client alone.
const WITH: &str = "with";
const WITHOUT: &str = "without";
/// The profile as Cargo.toml has it.
const PROFILE: [&str; 2] = ["--config", "profile.dev.debug=false"];
/// A program where it only matters that the library builds.
const EMPTY: &str = "use eldest as _;\n\nfn main() {}\n";
/// Files that each packed crate must contain; the manifests list the others.
const NEEDED: [&str; 3] = ["LICENSE-APACHE", "LICENSE-MIT", "README.md"];
/// The largest packed crate, in KiB.
const LARGEST: u64 = 500;

/// Runs the stage `consumer`.
pub(crate) fn run(stage: &mut Stage) -> Result<()> {
    let metadata = Metadata::of_workspace(stage)?;
    let published = package(stage, &metadata)?;
    let version = &metadata.library()?.version;
    let library = format!("{LIBRARY} = \"={version}\"\n");
    let mut dependencies = metadata.library()?.dependencies.iter();
    let client = dependencies
        .find(|found| found.name == CLIENT)
        .context(CLIENT)?;
    let client = format!("{CLIENT} = \"{}\"\n", client.req);

    let readme = fs::read_to_string(setup::root().join("README.md"))?;
    let program = program(&readme)
        .context("the first ```rust block of README.md must be a program with a `fn main`")?;
    let tokio = "tokio = { version = \"1\", features = [\"full\"] }\n";
    // This crate is built from its package, too, though README's first program does not need it.
    let testing = format!("{TESTING} = {{ version = \"={version}\", default-features = false }}\n");
    let needs = format!("{library}{testing}{tokio}");
    let user = generate("program", &needs, &program, &published)?;
    stage.step(built(&mut setup::cargo(["build"])?, &user))?;
    let other = format!(
        "{LIBRARY} = {{ version = \"={version}\", features = [\"{OTHER_CRYPTOGRAPHY}\"] }}\n"
    );
    let other = generate("cryptography", &other, EMPTY, &published)?;
    stage.step(built(&mut setup::cargo(["check"])?, &other))?;

    limit(stage, &metadata, [&library, &client], &published)
}

/// Limits what the library adds to the crates that its user needs anyway.
fn limit(
    stage: &mut Stage,
    metadata: &Metadata,
    [library, client]: [&str; 2],
    published: &str,
) -> Result<()> {
    let with = count(stage, WITH, library, published)?;
    let without = count(stage, WITHOUT, client, "")?;
    let added: BTreeSet<&str> = with.difference(&without).map(String::as_str).collect();
    let (all, others) = (with.len(), without.len());
    stage.say(&format!(
        "{all} crates, {CLIENT} alone {others}; added: {added:?}"
    ));
    if all > others + ALLOWED {
        stage.fail(format!("{all} crates, more than {ALLOWED} above {others}"));
    }
    let for_users = |it: &&Dependency| it.kind == DependencyKind::Normal && !it.optional;
    let ours = metadata.packages().iter();
    let ours = ours.filter(|it| with.contains(it.name.as_str()));
    let always = ours.flat_map(|it| &it.dependencies).filter(for_users);
    let always: BTreeSet<&str> = always.map(|it| it.name.as_str()).collect();
    let all = metadata.library()?.dependencies.iter();
    let all: BTreeSet<&str> = all.map(|it| it.name.as_str()).collect();
    for name in all.difference(&always).filter(|name| added.contains(*name)) {
        stage.fail(format!(
            "only for features or tests, and every user gets it: {name}"
        ));
    }
    Ok(())
}

/// Sets the folder and the options of the workspace's build, so that a dependency of both is built once.
fn built<'a>(cargo: &'a mut Command, user: &Path) -> &'a mut Command {
    cargo.args(PROFILE).current_dir(user);
    cargo.env("CARGO_TARGET_DIR", setup::target())
}

fn folder() -> PathBuf {
    setup::target().join("consumer")
}

/// Packs every crate that is published with the library, as its users will have them. Returns the lines by which a
/// user's manifest takes these packages instead of the registry's. cargo does not build them here, because README's
/// program does.
fn package(stage: &mut Stage, metadata: &Metadata) -> Result<String> {
    let unbuilt = ["--no-verify", "--allow-dirty"];
    let named = PUBLISHED.iter().flat_map(|name| ["--package", name]);
    // The first command makes further checks, but leaves no package.
    for command in [&["publish", "--dry-run"][..], &["package"]] {
        let arguments = command.iter().copied().chain(unbuilt);
        let mut command = setup::cargo(arguments.chain(named.clone()))?;
        ensure!(stage.step(&mut command)?, "there is no package to build");
    }
    let packages = setup::target().join("package");
    let mut lines = vec!["[patch.crates-io]".to_owned()];
    for package in PUBLISHED {
        let name = format!("{package}-{}", metadata.library()?.version);
        let folder = packages.join(&name);
        sources::empty(&folder)?;
        let file = packages.join(format!("{name}.crate"));
        let size = fs::metadata(&file)?.len().div_ceil(1024);
        if size > LARGEST {
            stage.fail(format!("{package}: {size} KiB packed, more than {LARGEST}"));
        }
        let mut unpack = setup::program("tar");
        unpack.arg("--extract").arg("--gzip").arg("--file");
        unpack.arg(file);
        stage.output(unpack.arg("--directory").arg(&packages))?;
        for needed in NEEDED {
            if !folder.join(needed).is_file() {
                stage.fail(format!("{package} lacks {needed}"));
            }
        }
        let folder = folder.display().to_string();
        lines.push(format!("{package} = {{ path = {folder:?} }}"));
    }
    Ok(lines.join("\n"))
}

/// Counts the crates that a package with these dependencies needs at run time, without itself.
fn count(stage: &Stage, name: &str, dependencies: &str, patch: &str) -> Result<BTreeSet<String>> {
    let folder = generate(name, dependencies, "fn main() {}\n", patch)?;
    let mut tree = setup::cargo(["tree", "--edges", "normal", "--prefix", "none"])?;
    let tree = stage.output(tree.current_dir(&folder))?;
    let names = crates(&tree).into_iter();
    let names = names.filter_map(|found| Some(found.split_once(' ')?.0.to_owned()));
    Ok(names.filter(|found| found != name).collect())
}

/// Returns name and version of each crate in the output of `cargo tree --prefix none`.
pub(crate) fn crates(tree: &str) -> BTreeSet<String> {
    let crates = tree.lines().filter_map(|line| {
        let mut words = line.split(' ');
        Some(format!("{} {}", words.next()?, words.next()?))
    });
    crates.collect()
}

/// Writes a package with its own workspace and a new lock file, like a new user's.
fn generate(name: &str, dependencies: &str, program: &str, patch: &str) -> Result<PathBuf> {
    let folder = folder().join(name);
    let manifest = format!(
        "[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\npublish = false\n\n\
         [dependencies]\n{dependencies}\n{patch}\n[workspace]\n"
    );
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(folder.join("src"))?;
        fs::write(folder.join("Cargo.toml"), manifest)?;
        fs::write(folder.join("src/main.rs"), program)?;
        match fs::remove_file(folder.join("Cargo.lock")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    };
    write().with_context(|| format!("writing {}", folder.display()))?;
    Ok(folder)
}

/// Returns the first Rust program of a Markdown text, with the lines that rustdoc hides.
fn program(markdown: &str) -> Option<String> {
    let mut lines = markdown.lines();
    lines.find(|line| {
        line.strip_prefix("```rust")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(','))
    })?;
    let code = lines.take_while(|line| !line.starts_with("```"));
    let shown = code.map(|line| match line {
        "#" => "",
        _ => line.strip_prefix("# ").unwrap_or(line),
    });
    let program = shown.fold(String::new(), |program, line| program + line + "\n");
    program.contains("fn main(").then_some(program)
}

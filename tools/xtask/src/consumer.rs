//! Packs the published crates, builds README's program with them, and limits the crates that a user of the library gets.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::published::{LIBRARY, PUBLISHED, TESTING};
use crate::stage::Stage;
use crate::together::OTHER_CRYPTOGRAPHY;
use crate::{metadata, setup};

/// The most crates that a user of the library gets, ours and those of etcd-client among them.
const ALLOWED: usize = 84;
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
    let version = metadata::library()?.version;
    let published = package(stage, &version.to_string())?;
    let readme = fs::read_to_string(setup::root().join("README.md"))?;
    let program = program(&readme)
        .context("the first ```rust block of README.md must be a program with a `fn main`")?;
    // The second crate is built from its package, too, though README's first program does not need it.
    let needs = format!(
        "{LIBRARY} = \"={version}\"
         {TESTING} = {{ version = \"={version}\", default-features = false }}
         tokio = {{ version = \"1\", features = [\"full\"] }}\n"
    );
    stage.step(&mut user("build", "program", &needs, &program, &published)?)?;
    let other = format!(
        "{LIBRARY} = {{ version = \"={version}\", features = [\"{OTHER_CRYPTOGRAPHY}\"] }}\n"
    );
    stage.step(&mut user(
        "check",
        "cryptography",
        &other,
        EMPTY,
        &published,
    )?)?;

    let mut tree = setup::cargo(["tree", "--package", LIBRARY, "--edges", "normal"])?;
    let tree = stage.output(tree.args(["--prefix", "none", "--no-dedupe"]))?;
    let crates = tree.lines().filter_map(|line| line.split(' ').next());
    let number = crates.collect::<BTreeSet<_>>().len();
    let fault = format!("a user gets {number} crates, and {ALLOWED} are allowed");
    let faults = (number > ALLOWED).then_some(fault);
    stage.judge(
        &format!("a user gets {number} crates"),
        faults.into_iter().collect(),
    );
    Ok(())
}

/// Packs every crate that is published with the library, as its users will have them. Returns the lines by which a
/// user's manifest takes these packages instead of the registry's. cargo does not build them here, because README's
/// program does.
fn package(stage: &mut Stage, version: &str) -> Result<String> {
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
        let folder = packages.join(format!("{package}-{version}"));
        setup::empty(&folder)?;
        let file = packages.join(format!("{package}-{version}.crate"));
        let size = fs::metadata(&file)?.len().div_ceil(1024);
        if size > LARGEST {
            stage.fail(format!("{package}: {size} KiB packed, more than {LARGEST}"));
        }
        let mut unpack = setup::program("tar");
        unpack.args(["--extract", "--gzip", "--file"]).arg(file);
        stage.output(unpack.arg("--directory").arg(&packages))?;
        let lacks = NEEDED
            .iter()
            .filter(|needed| !folder.join(needed).is_file());
        lacks.for_each(|needed| stage.fail(format!("{package} lacks {needed}")));
        lines.push(format!("{package} = {{ path = \"{}\" }}", folder.display()));
    }
    Ok(lines.join("\n"))
}

/// Writes a package with its own workspace and a new lock file, like a new user's. Returns the command that builds it in the folder
/// and with the options of the workspace's build, so that a dependency of both is built once.
fn user(command: &str, name: &str, needs: &str, program: &str, patch: &str) -> Result<Command> {
    let folder: PathBuf = setup::target().join("consumer").join(name);
    setup::empty(&folder.join("src"))?;
    let manifest = format!(
        "[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\npublish = false\n\n\
         [dependencies]\n{needs}\n{patch}\n[workspace]\n"
    );
    fs::write(folder.join("Cargo.toml"), manifest)?;
    fs::write(folder.join("src/main.rs"), program)?;
    if folder.join("Cargo.lock").exists() {
        fs::remove_file(folder.join("Cargo.lock"))?;
    }
    let mut cargo = setup::cargo([command])?;
    cargo.args(PROFILE).current_dir(folder);
    cargo.env("CARGO_TARGET_DIR", setup::target());
    Ok(cargo)
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

//! Reads from cargo's messages which test programs and other programs it has built, and lists the tests of each.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use cargo_metadata::{Artifact, Message, TargetKind};

use crate::setup;

/// What cargo has built, read from `cargo build --message-format=json`.
#[derive(Debug)]
pub(crate) struct Built {
    programs: Vec<Program>,
}

/// A program that cargo has built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    /// The name of its target.
    pub(crate) name: String,
    pub(crate) package: String,
    pub(crate) kind: Kind,
    pub(crate) path: PathBuf,
    /// The folder of its package, in which cargo runs its tests.
    folder: PathBuf,
}

/// The purpose of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The unit tests of a library or of a program.
    UnitTests,
    /// A file or a folder of `tests/`.
    Tests,
    /// A program for people or for tests.
    Use,
}

impl Built {
    /// Reads cargo's messages, one in each line.
    pub(crate) fn read(messages: &str) -> Self {
        let messages = messages.lines().map(serde_json::from_str);
        let programs = messages.filter_map(|message| match message {
            Ok(Message::CompilerArtifact(artifact)) => Program::of(&artifact),
            _ => None,
        });
        Self {
            programs: programs.collect(),
        }
    }

    /// Returns the wanted programs with tests of that kind.
    pub(crate) fn tests(&self, kind: Kind, wanted: impl Fn(&Program) -> bool) -> Vec<&Program> {
        let tests = self.programs.iter().filter(|program| program.kind == kind);
        tests.filter(|program| wanted(program)).collect()
    }

    /// Returns the program of that name for use.
    pub(crate) fn program(&self, name: &str) -> Result<PathBuf> {
        self.path_of(name, |program| program.kind == Kind::Use)
    }

    /// Returns the program of that name, for use or with tests.
    pub(crate) fn any(&self, name: &str) -> Result<PathBuf> {
        self.path_of(name, |_| true)
    }

    fn path_of(&self, name: &str, wanted: impl Fn(&Program) -> bool) -> Result<PathBuf> {
        // A library has the package's name in Rust.
        let is_named = |it: &Program| it.name.replace('_', "-") == name;
        let found = self.programs.iter().find(|it| is_named(it) && wanted(it));
        let found = found.with_context(|| format!("cargo built no {name}"))?;
        Ok(found.path.clone())
    }
}

impl Program {
    fn of(artifact: &Artifact) -> Option<Self> {
        let is_test = artifact.target.is_kind(TargetKind::Test);
        let kind = match (artifact.profile.test, is_test) {
            (true, true) => Kind::Tests,
            (true, false) => Kind::UnitTests,
            (false, _) => Kind::Use,
        };
        Some(Self {
            name: artifact.target.name.clone(),
            package: package_name(&artifact.package_id.repr)?.to_owned(),
            kind,
            path: artifact.executable.clone()?.into_std_path_buf(),
            folder: artifact.manifest_path.parent()?.into(),
        })
    }

    /// Returns the command that starts the program for its tests.
    pub(crate) fn command(&self) -> Command {
        let mut command = setup::program(&self.path.to_string_lossy());
        command.current_dir(&self.folder);
        command
    }

    /// Returns the command that lists the tests, or those of them that are ignored.
    pub(crate) fn listing(&self, ignored: bool) -> Command {
        let mut command = self.command();
        command.args(["--list", "--format", "terse"]);
        if ignored {
            command.arg("--ignored");
        }
        command
    }
}

/// Returns the name in the id of a package: `path+file:///a/b#name@0.1.0`, or `path+file:///a/name#0.1.0` if its folder
/// has the name.
fn package_name(id: &str) -> Option<&str> {
    let (folder, version) = id.rsplit_once('#')?;
    match version.split_once('@') {
        Some((name, _)) => Some(name),
        None => folder.rsplit('/').next(),
    }
}

/// Returns the tests in a program's list.
pub(crate) fn names(listed: &str) -> impl Iterator<Item = &str> {
    listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::{Kind, Program, names, package_name};

    /// Writes a shell script in the place of a test program.
    pub(crate) fn script(folder: &Path, name: &str, text: &str) -> Program {
        let (source, path) = (folder.join(format!("{name}.sh")), folder.join(name));
        std::fs::write(&source, format!("#!/bin/sh\n{text}\n")).unwrap();
        // Another process writes the program. If this one opened it for writing, a process that another test starts
        // would inherit the open file for a moment, and the kernel starts no program that is open for writing.
        let mut install = Command::new("install");
        let made = install.arg("-m755").args([&source, &path]).status();
        assert!(made.unwrap().success(), "a copy that can be started");
        Program {
            name: name.to_owned(),
            package: "some".to_owned(),
            kind: Kind::Tests,
            path,
            folder: folder.to_owned(),
        }
    }

    #[test]
    fn a_package_is_named_by_its_id_or_by_its_folder() {
        assert_eq!(package_name("path+file:///w/a#b@0.1.0"), Some("b"));
        assert_eq!(package_name("path+file:///w/eldest#0.1.0"), Some("eldest"));
    }

    #[test]
    fn tests_are_listed_and_benchmarks_are_not() {
        let listed = "a::b: test\nc: benchmark\nd: test\n";
        assert_eq!(names(listed).collect::<Vec<_>>(), ["a::b", "d"]);
    }
}

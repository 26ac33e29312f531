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
#[derive(Debug)]
pub(crate) struct Program {
    /// The name of its target.
    pub(crate) name: String,
    pub(crate) package: String,
    kind: Kind,
    path: PathBuf,
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
        let messages = Message::parse_stream(messages.as_bytes());
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
        self.path_of(Kind::Use, name)
    }

    /// Returns the program of that kind and name.
    pub(crate) fn path_of(&self, kind: Kind, name: &str) -> Result<PathBuf> {
        // A library has the package's name in Rust.
        let found = self.tests(kind, |it| it.name.replace('_', "-") == name);
        let found = found
            .first()
            .with_context(|| format!("cargo built no {name}"))?;
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
        // The id is `path+file:///a/b#name@0.1.0`, or `path+file:///a/name#0.1.0` if its folder has the name.
        let (folder, version) = artifact.package_id.repr.rsplit_once('#')?;
        let named = version.split_once('@').map(|(name, _)| name);
        Some(Self {
            name: artifact.target.name.clone(),
            package: named.or(folder.rsplit('/').next())?.to_owned(),
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

    /// Returns the command that lists the tests; [`names`] reads its output.
    pub(crate) fn listing(&self) -> Command {
        let mut command = self.command();
        command.args(["--list", "--format", "terse"]);
        command
    }
}

/// Returns the tests in a program's list, without benchmarks.
pub(crate) fn names(listed: &str) -> impl Iterator<Item = &str> {
    let lines = listed.lines();
    lines.filter_map(|line| line.strip_suffix(": test"))
}

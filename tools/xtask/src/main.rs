//! The project's own commands, `cargo xtask …`. Finds the command that the command line names, and runs it.

mod api;
mod bare;
mod bench;
mod book;
mod built;
mod caller;
mod case;
mod changed;
mod chaos;
mod checks;
mod compose;
mod consumer;
mod deny;
mod dist;
mod docker;
mod engine;
mod failures;
mod fixed;
mod images;
mod imports;
mod install;
mod limit;
mod manifests;
mod matrix;
mod metadata;
mod model;
mod mutants;
mod packages;
mod packed;
mod pages;
mod pictures;
mod pool;
mod process;
mod programs;
mod proofs;
mod publish;
mod published;
mod python;
mod releases;
mod retry;
mod room;
mod runbooks;
mod settled;
mod setup;
mod simulate;
mod sources;
mod stage;
mod stages;
mod suites;
mod sweep;
mod tally;
mod terms;
mod test;
mod times;
mod together;
mod tools;
mod verify;
mod version;
#[cfg(test)]
mod workflows;
mod workspaces;

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::{Result, bail};

use stages::Tier;
use workspaces::Workspace;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

struct Entry {
    name: &'static str,
    /// The options after the name, if any.
    options: &'static str,
    about: &'static str,
    run: fn(&[String]) -> Result<ExitCode>,
}

const COMMANDS: &[Entry] = &[
    command("demo", "[-- ARGS]", "build the demo and run it", |args| {
        built::become_it((Workspace::Product, "eldest-demo"), args)
    }),
    command(
        "bench",
        "[OPTION …] [BENCH …]",
        "measure the library and its peers; --help lists options and benches",
        bench::run,
    ),
    command(
        CHECK,
        "",
        "what a change must pass before it is worth a commit",
        test::check,
    ),
    command(
        "chaos",
        "[OPTION …]",
        "break a real cluster and its nodes; --help lists the options",
        chaos::run,
    ),
    command(
        TEST,
        "[--limit SECONDS] [STAGE …|TEST …]",
        "what a change can break: all stages, those named, or tests by the beginnings of their names",
        test::run,
    ),
    command(
        VERIFY,
        "[--again] [--limit SECONDS] [STAGE …]",
        "everything else, but what is green for these very sources; --again runs that too",
        verify::run,
    ),
    command(
        "simulate",
        "[OPTION …]",
        "simulate the core from seeds; --help lists the options",
        simulate::run,
    ),
    command(
        "mutants",
        "[OPTION …]",
        "break the core's rules one at a time; --help lists the options",
        mutants::run,
    ),
    command(
        "api",
        "",
        "write the public interface of each library to docs/api",
        |_| api::run(),
    ),
    command(
        "docs",
        "",
        "build the guide as a book in target/book, with the API documentation, and check its links",
        book::run,
    ),
    command(
        "deny",
        "[ARGS]",
        "install cargo-deny, and have it check deny.toml, advisories too",
        deny::run,
    ),
    command(
        "pictures",
        "",
        "take docs/status-page*.png again, in Chromium; takes two minutes",
        |_| pictures::run(),
    ),
    command(
        "images",
        "[IMAGE …]",
        "make the container images named, or all, without a registry",
        images::run,
    ),
    command(
        "model",
        "[OPTIONS]",
        "look at every state of the protocol's model; --help lists its options",
        model::run,
    ),
    command("dist", dist::OPTIONS, dist::ABOUT, dist::run),
    command(
        "publish",
        "[--dry-run] [--tag TAG]",
        "publish all packages in order; --tag refuses if the tag is not of this version",
        publish::run,
    ),
    command(
        "release",
        "LEVEL [--execute]",
        "set the version (major, minor, patch), commit and tag it, by cargo-release",
        publish::release,
    ),
    command(
        "static",
        "",
        "build the command `eldest` so that it runs on any Linux",
        |_| Ok(fixed::run()),
    ),
    command("help", "", "this text", |_| {
        print!("{}", help());
        Ok(ExitCode::SUCCESS)
    }),
];

/// The commands that run tests.
const CHECK: &str = "check";
const TEST: &str = "test";
const VERIFY: &str = "verify";

const fn command(
    name: &'static str,
    options: &'static str,
    about: &'static str,
    run: fn(&[String]) -> Result<ExitCode>,
) -> Entry {
    Entry {
        name,
        options,
        about,
        run,
    }
}

fn dispatch(args: &[String]) -> Result<ExitCode> {
    let rest = args.get(1..).unwrap_or_default();
    let name = match args.first().map(String::as_str) {
        None | Some("--help" | "-h") => "help",
        Some(name) => name,
    };
    match COMMANDS.iter().find(|command| command.name == name) {
        Some(command) => {
            if [TEST, VERIFY, CHECK].contains(&name) {
                settled::become_settled(args)?;
            }
            (command.run)(rest)
        }
        None => bail!("there is no command `{name}`; `cargo xtask help` lists them"),
    }
}

/// Returns one line for each command.
fn describe() -> String {
    COMMANDS.iter().fold(String::new(), |mut text, command| {
        let call = format!("cargo xtask {} {}", command.name, command.options);
        let _ = writeln!(text, "  {call:<46} {}", command.about);
        text
    })
}

fn help() -> String {
    format!(
        "The project's own commands. Nothing needs to be installed but Rust: protoc and etcd come from crates.

{}
Images:
{}
An image that is there and was not made here, such as one that was pulled, is left alone.

Stages of `cargo xtask test`:
{}
Stages of `cargo xtask verify`, whose results are kept in target/verify.json:
{}
Every stage runs, whatever the ones before it did, unless `build` failed. It is killed after {} minutes, or --limit, without progress.
`cargo xtask test api::locks` runs all tests of tests/api/locks.rs, and `cargo xtask test api::locks::NAME` one.
A failed test that uses real time, processes, sockets or containers runs once more at the end, alone. If it passes then, the
table calls it flaky, and target/flaky/ has both outputs. A test that saw a promise broken, or runs in virtual time, is never repeated.
The exit code is 0 if no test and no stage failed.

To use plain cargo, set PROTOC and PROTOC_INCLUDE, or install protobuf-compiler and libprotobuf-dev.
A PROTOC that is set already is left alone.
",
        describe(),
        images::DESCRIPTION,
        stages::describe(Tier::Test),
        stages::describe(Tier::Verify),
        stage::DEFAULT_LIMIT.as_secs() / 60,
    )
}

#[cfg(test)]
mod tests {
    use super::{COMMANDS, dispatch, help};

    #[test]
    fn command_names_are_unique_and_in_the_help_text() {
        let mut names: Vec<_> = COMMANDS.iter().map(|command| command.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), COMMANDS.len());
        let help = help();
        for name in names {
            assert!(help.contains(&format!("\n  cargo xtask {name} ")), "{name}");
        }
    }

    #[test]
    fn an_unknown_command_is_refused() {
        let error = dispatch(&["nope".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("`nope`"), "{error}");
    }
}

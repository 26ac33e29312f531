//! The project's own commands, `cargo xtask …`. Finds the command that the command line names, and runs it.

mod api;
mod bench;
mod book;
mod case;
mod chaos;
mod checks;
mod consumer;
mod containers;
mod deny;
mod dist;
mod docker;
mod fixed;
mod images;
mod imports;
mod install;
mod manifests;
mod matrix;
mod metadata;
mod mutants;
mod packages;
mod pages;
mod pool;
mod process;
mod programs;
mod publish;
mod published;
mod releases;
mod runbooks;
mod settled;
mod setup;
mod simulate;
mod stage;
mod stages;
mod suites;
mod terms;
mod test;
mod together;
mod tools;
mod verify;
#[cfg(test)]
mod workflows;
mod workspaces;

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, FromArgMatches, Parser};

/// The project's own commands. Nothing needs to be installed but Rust: protoc and etcd come from crates.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", max_term_width = 120)]
enum Command {
    /// Build the demo and run it
    #[command(disable_help_flag = true)]
    Demo(Passed),
    /// Measure the library and its peers; --help lists options and benches
    #[command(disable_help_flag = true)]
    Bench(Passed),
    /// What a change must pass before it is worth a commit
    Check,
    /// Break a real cluster and its nodes; --help lists the options
    #[command(disable_help_flag = true)]
    Chaos(Passed),
    /// What a change can break: all stages, those named, or tests by the beginnings of their names
    Test(test::Asked),
    /// Everything else, but what is green for these very sources
    Verify(verify::Asked),
    /// Simulate the core from seeds; --help lists the options
    #[command(disable_help_flag = true)]
    Simulate(Passed),
    /// Break the core's rules one at a time
    Mutants(mutants::Options),
    /// Write the public interface of each library to docs/api
    Api,
    /// Build the guide as a book in target/book, with the API documentation
    Docs,
    /// Install cargo-deny, and have it check deny.toml, advisories too
    #[command(disable_help_flag = true)]
    Deny(Passed),
    /// Take docs/status-page*.png again, in Chromium; takes two minutes
    Pictures,
    /// Make the container images named, or all, without a registry
    Images(images::Asked),
    /// Make archives and Debian packages of `eldest` in target/dist, and check them
    Dist(dist::Asked),
    /// Publish all packages in order
    Publish(publish::Asked),
    /// Set the version (major, minor, patch), commit and tag it, by cargo-release
    #[command(disable_help_flag = true)]
    Release(Passed),
    /// Build the command `eldest` so that it runs on any Linux
    Static,
}

/// Arguments that another program reads.
#[derive(Debug, clap::Args)]
struct Passed {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let command = parse(&words).unwrap_or_else(|error| error.exit());
    run(command, &args).unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}

/// Parses a command line without the program's name.
fn parse(args: &[&str]) -> Result<Command, clap::Error> {
    let args = if args.is_empty() { &["help"] } else { args };
    let words = ["cargo xtask"].iter().chain(args);
    let matches = Command::command()
        .after_help(help())
        .try_get_matches_from(words)?;
    Command::from_arg_matches(&matches)
}

fn run(command: Command, args: &[String]) -> Result<ExitCode> {
    if let Command::Check | Command::Test(_) | Command::Verify(_) = command {
        settled::become_settled(args)?;
    }
    let done = |()| ExitCode::SUCCESS;
    match command {
        Command::Demo(Passed { args }) => {
            let demo = setup::cargo(["build", "--package", "eldest-demo"])?;
            process::become_it(&mut together::built(demo, "eldest-demo", &args)?)
        }
        Command::Bench(Passed { args }) => bench::run(&args),
        Command::Check => Ok(test::check()),
        Command::Chaos(Passed { args }) => chaos::run(&args),
        Command::Test(asked) => test::run(&asked),
        Command::Verify(asked) => verify::run(&asked),
        Command::Simulate(Passed { args }) => simulate::run(&args),
        Command::Mutants(options) => mutants::run(&options),
        Command::Api => api::run().map(done),
        Command::Docs => book::run().map(done),
        Command::Deny(Passed { args }) => deny::run(&args),
        Command::Pictures => tools::take_pictures(),
        Command::Images(asked) => Ok(images::run(&asked)),
        Command::Dist(asked) => Ok(dist::run(&asked)),
        Command::Publish(asked) => publish::run(&asked),
        Command::Release(Passed { args }) => publish::release(&args),
        Command::Static => Ok(fixed::run()),
    }
}

fn help() -> String {
    format!(
        "Stages of `cargo xtask test`:
{}
Stages of `cargo xtask verify`, which do not run again while they are green for the same sources:
{}
Every stage runs, whatever the ones before it did, unless `build` failed. It is killed after {} minutes, or --limit, without progress.
`cargo xtask test api::locks` runs all tests of tests/api/locks.rs, and `cargo xtask test api::locks::NAME` one.
A failed test that uses real time, processes, sockets or containers runs once more at the end, alone. If it passes then, the
table calls it flaky, and target/flaky/ has both outputs. A test that saw a promise broken, or runs in virtual time, is never repeated.
The exit code is 0 if no test and no stage failed.

To use plain cargo, set PROTOC and PROTOC_INCLUDE, or install protobuf-compiler and libprotobuf-dev.
A PROTOC that is set already is left alone.",
        stages::describe(stages::TEST),
        stages::describe(stages::VERIFY),
        stage::DEFAULT_LIMIT.as_secs() / 60,
    )
}

#[cfg(test)]
mod tests {
    use super::{Command, parse};

    #[test]
    fn unknown_commands_and_stages_of_the_other_tier_are_refused() {
        for (words, part) in [
            ("nope", "nope"),
            ("test build nope", "nope"),
            ("test stack", "no stage `stack`"),
            ("verify unit", "no stage `unit`"),
            ("verify api::locks::", "no stage"),
            ("dist riscv64", "riscv64"),
        ] {
            let words: Vec<_> = words.split_whitespace().collect();
            let refused = parse(&words).unwrap_err().to_string();
            assert!(refused.contains(part), "{refused}");
        }
    }

    #[test]
    fn options_of_other_programs_are_passed_on() {
        let command = parse(&["simulate", "--help", "--seed", "7"]).unwrap();
        let Command::Simulate(given) = command else {
            panic!("{command:?}");
        };
        assert_eq!(given.args, ["--help", "--seed", "7"]);
    }
}

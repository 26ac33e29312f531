//! The project's own commands, `cargo xtask …`. This file hides how a command line becomes a command.

mod api;
mod bench;
mod built;
mod chaos;
mod checks;
mod compose;
mod consumer;
mod deny;
mod docker;
mod engine;
mod failures;
mod fixed;
mod images;
mod imports;
mod manifests;
mod matrix;
mod metadata;
mod model;
mod mutants;
mod packages;
mod pages;
mod process;
mod published;
mod python;
mod releases;
mod setup;
mod simulate;
mod stage;
mod suites;
mod sweep;
mod tally;
mod test;
mod together;
mod tools;
mod version;

use std::process::ExitCode;

use anyhow::{Result, bail};

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

fn dispatch(args: &[String]) -> Result<ExitCode> {
    let rest = args.get(1..).unwrap_or_default();
    match args.first().map(String::as_str) {
        Some("api") => api::run(),
        Some("bench") => bench::run(rest),
        Some("chaos") => chaos::run(rest),
        Some("check") => test::check(rest),
        Some("demo") => built::become_it("eldest-demo", rest),
        Some("deny") => deny::run(rest),
        Some("images") => images::run(rest),
        Some("leaks") => suites::leaks(),
        Some("simulate") => simulate::run(rest),
        Some("mutants") => mutants::run(rest),
        Some("static") => Ok(fixed::run()),
        Some("model") => model::run(rest),
        Some("test") => test::run(rest),
        None | Some("help" | "--help" | "-h") => {
            print!("{}", help());
            Ok(ExitCode::SUCCESS)
        }
        Some(other) => bail!("there is no command `{other}`; `cargo xtask help` lists them"),
    }
}

fn help() -> String {
    format!(
        "The project's own commands. Nothing needs to be installed but Rust: protoc and etcd come from crates.

  cargo xtask demo [-- ARGS]                     build the demo and run it
  cargo xtask bench [OPTION …] [BENCH …]         measure the library and its peers; --help lists options and benches
  cargo xtask check                              what a change must pass before it is worth a commit: 3 minutes at most, warm
  cargo xtask chaos [OPTION …]                   break a real cluster and its nodes; --help lists the options
  cargo xtask test [--limit SECONDS] [STAGE …]   run the stages named, or all in this order
  cargo xtask simulate [OPTION …]                simulate the core from seeds; --help lists the options
  cargo xtask mutants [OPTION …]                 break the core's rules one at a time; --help lists the options
  cargo xtask api                                write the public interface of each library to docs/api
  cargo xtask deny [ARGS]                        install cargo-deny, and have it check deny.toml, advisories too
  cargo xtask images [IMAGE …]                   make the container images named, or all, without a registry
  cargo xtask leaks                              ten thousand cycles in an election, twice, and what they leave behind
  cargo xtask model [OPTIONS]                    look at every state of the protocol's model; --help lists its options
  cargo xtask static                             build the command `eldest` so that it runs on any Linux
  cargo xtask help                               this text

Images:
{}
An image that is there and was not made here, such as one that was pulled, is left alone.

Stages:
{}
Every stage runs, whatever the ones before it did, and is killed after {} minutes or --limit.
The exit code is 0 if no test and no stage failed.

To use plain cargo, set PROTOC and PROTOC_INCLUDE, or install protobuf-compiler and libprotobuf-dev.
A PROTOC that is set already is left alone.
",
        images::DESCRIPTION,
        test::describe(),
        stage::DEFAULT_LIMIT.as_secs() / 60,
    )
}

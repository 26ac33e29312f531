//! Tests of the command line, and of the environment variables that stand for its options.

use std::collections::{BTreeMap, BTreeSet};

use clap::{Arg, Command, CommandFactory};

use super::Cli;
use crate::variables::{ELECTION, ENDPOINTS, FENCING_TOKEN, HTTP_TOKEN, ID, PASSWORD, TERM_KEY};

/// Headings of `--help` below which each option has a variable.
const FROM_THE_ENVIRONMENT: [&str; 4] = ["Connection", "Session", "Output", "HTTP"];

fn visit(command: &Command, each: &mut impl FnMut(&Command, &Arg)) {
    command.get_arguments().for_each(|arg| each(command, arg));
    command
        .get_subcommands()
        .for_each(|command| visit(command, each));
}

fn by_the_rule(option: &str) -> String {
    format!("ELDEST_{}", option.replace('-', "_").to_uppercase())
}

/// Option by option: the variable that it should have, and the one that it has.
fn variables() -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    visit(&Cli::command(), &mut |command, arg| {
        let Some(option) = arg.get_long() else {
            return;
        };
        let variable = arg
            .get_env()
            .map(|name| name.to_string_lossy().into_owned());
        let heading = arg.get_help_heading().unwrap_or_default();
        assert!(
            variable.is_some() || !FROM_THE_ENVIRONMENT.contains(&heading),
            "{}: --{option} below {heading:?} has no variable",
            command.get_name()
        );
        found
            .entry(by_the_rule(option))
            .or_default()
            .extend(variable);
    });
    found
}

#[test]
fn each_option_s_variable_has_the_option_s_name() {
    for (wanted, found) in variables() {
        assert!(
            found.iter().all(|name| *name == wanted),
            "{wanted}: {found:?}"
        );
    }
}

#[test]
fn what_a_program_is_told_is_never_taken_for_an_option() {
    let options = variables();
    for told in [ELECTION, FENCING_TOKEN, TERM_KEY, PASSWORD, HTTP_TOKEN] {
        assert!(!options.contains_key(told), "an option has the name {told}");
    }
    for shared in [ENDPOINTS, ID] {
        assert!(!options[shared].is_empty(), "no option reads {shared}");
    }
}

#[test]
fn the_pages_of_the_command_name_every_variable() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    let read = |page| std::fs::read_to_string(format!("{docs}/{page}")).expect(page);
    let pages = ["cli.md", "command.md"].map(read).concat();
    let rows = pages
        .lines()
        .filter_map(|line| line.strip_prefix("| `ELDEST_"));
    let told: BTreeSet<String> = rows
        .filter_map(|row| row.split('`').next())
        .map(|name| format!("ELDEST_{name}"))
        .collect();
    let mut wanted: BTreeSet<String> = variables().into_values().flatten().collect();
    let others = [ELECTION, FENCING_TOKEN, TERM_KEY, PASSWORD, HTTP_TOKEN];
    wanted.extend(others.map(str::to_owned));
    assert_eq!(told, wanted);
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

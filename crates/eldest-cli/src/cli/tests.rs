//! Tests of the command line, and of the environment variables of its options.

use std::collections::{BTreeMap, BTreeSet};

use clap::{Arg, Command, CommandFactory};

use super::Cli;
use crate::variables::{
    APP_VERSION, DATA_CENTER, ELECTION, END_REASON, ENDPOINTS, FENCING_TOKEN, HTTP_TOKEN, ID,
    MAY_OVERLAP, OF_AFTER, PARTITION, PARTITION_COUNT, PASSWORD, TERM_KEY, TIME_LEFT_MS,
};

/// Variables that only programs and their commands receive.
const PASSED: [&str; 10] = [
    ELECTION,
    FENCING_TOKEN,
    TERM_KEY,
    PASSWORD,
    HTTP_TOKEN,
    PARTITION,
    PARTITION_COUNT,
    END_REASON,
    MAY_OVERLAP,
    TIME_LEFT_MS,
];

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

/// Maps each option to the variable that it should have, and to the one that it has.
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
fn variables_for_a_program_are_never_taken_for_options() {
    let options = variables();
    for name in PASSED {
        assert!(!options.contains_key(name), "an option has the name {name}");
    }
    let shared = [ENDPOINTS, DATA_CENTER, ID, APP_VERSION];
    for shared in shared.into_iter().chain(OF_AFTER) {
        assert!(!options[shared].is_empty(), "no option reads {shared}");
    }
}

#[test]
fn the_page_of_the_command_names_every_variable() {
    let page = include_str!("../../../../docs/cli.md");
    let rows = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `ELDEST_"));
    let documented: BTreeSet<String> = rows
        .filter_map(|row| row.split('`').next())
        .map(|name| format!("ELDEST_{name}"))
        .collect();
    let mut wanted: BTreeSet<String> = variables().into_values().flatten().collect();
    wanted.extend(PASSED.map(str::to_owned));
    assert_eq!(documented, wanted);
}

/// Returns the commands in the examples of that help, without what a shell adds.
fn examples(help: &str) -> Vec<Vec<String>> {
    let typed = help.lines().filter(|line| line.starts_with("  eldest "));
    let ours = |line: &str| {
        let words = line.split_whitespace().map(str::to_owned);
        words
            .take_while(|word| word != "|" && word != ">")
            .collect()
    };
    typed.map(ours).collect()
}

#[test]
fn every_command_shows_two_examples_that_parse() {
    let root = Cli::command();
    let helps = |command: &Command| {
        let help = command.get_after_long_help().or(command.get_after_help());
        help.map(ToString::to_string).unwrap_or_default()
    };
    let mut all = vec![(root.get_name().to_owned(), helps(&root))];
    let commands = root.get_subcommands();
    all.extend(commands.map(|command| (command.get_name().to_owned(), helps(command))));
    assert!(all.len() > 8, "{all:?}");
    for (name, help) in all {
        let examples = examples(&help);
        assert!(examples.len() >= 2, "{name}: {examples:?}");
        for example in examples {
            assert!(
                name == "eldest" || example[1] == name,
                "{name}: {example:?}"
            );
            if let Err(error) = Cli::command().try_get_matches_from(&example) {
                let asked_for = error.kind() == clap::error::ErrorKind::DisplayHelp;
                assert!(asked_for, "{example:?}: {error}");
            }
        }
    }
}

#[test]
fn each_command_says_first_what_it_does() {
    for command in Cli::command().get_subcommands() {
        let about = command.get_about().map(ToString::to_string);
        let about = about.unwrap_or_default();
        let long = command.get_long_about().map(ToString::to_string);
        let first = long.unwrap_or_default();
        let first = first.split(['.', '\n']).next().unwrap_or_default();
        let verb = about.split(' ').next().unwrap_or_default();
        assert!(
            !about.is_empty() && first.starts_with(verb),
            "{about} / {first}"
        );
    }
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

//! Maps results to exit codes, and writes errors as text or JSON.

use std::fmt;
use std::process::ExitCode;

use eldest::ErrorKind;
use eldest_http::contract::command::{Failed, Failure};

use crate::output::{self, Format};

/// The exit codes of the command. `--help` shows a table of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// The command did what was asked.
    Done = 0,
    /// Something else failed.
    Failed = 1,
    /// The command line is wrong, or etcd will never accept the request.
    Usage = 2,
    /// etcd or the agent did not answer in time, or etcd has no space.
    Unavailable = 3,
    /// etcd refused this user.
    Denied = 4,
    /// No candidate, or not exactly one, matched; the user declined; or an order was not obeyed.
    NotDone = 5,
    /// `doctor` found a problem that must be corrected, or an agent does not reach etcd.
    Sick = 6,
    /// The program on whose behalf `serve` led has ended.
    ProgramEnded = 69,
    /// A process that `run` or `lock` started could not be killed.
    NotContained = 70,
    /// The lock or permit was lost while its program ran.
    Lost = 74,
    /// The lock or permit was not free in time, or before a signal stopped the command.
    NotInTime = 75,
    /// The program exists but cannot be run.
    NotRunnable = 126,
    /// The program does not exist.
    NotFound = 127,
}

impl Code {
    const ALL: [Code; 13] = [
        Code::Done,
        Code::Failed,
        Code::Usage,
        Code::Unavailable,
        Code::Denied,
        Code::NotDone,
        Code::Sick,
        Code::ProgramEnded,
        Code::NotContained,
        Code::Lost,
        Code::NotInTime,
        Code::NotRunnable,
        Code::NotFound,
    ];

    /// The code's name, for programs.
    const fn name(self) -> &'static str {
        match self {
            Code::Done => "done",
            Code::Failed => "failed",
            Code::Usage => "usage",
            Code::Unavailable => "unavailable",
            Code::Denied => "denied",
            Code::NotDone => "not_done",
            Code::Sick => "sick",
            Code::ProgramEnded => "program_ended",
            Code::NotContained => "not_contained",
            Code::Lost => "lost",
            Code::NotInTime => "not_in_time",
            Code::NotRunnable => "not_runnable",
            Code::NotFound => "not_found",
        }
    }

    /// The code's meaning, for people.
    const fn about(self) -> &'static str {
        match self {
            Code::Done => "done",
            Code::Failed => "failed for another reason",
            Code::Usage => {
                "an option, a name or a value is wrong, or differs from the one that others use"
            }
            Code::Unavailable => {
                "etcd or the agent did not answer in time, or etcd has no space: try again"
            }
            Code::Denied => {
                "etcd refused the user or the password, the user lacks a permission, or a certificate was refused"
            }
            Code::NotDone => {
                "nothing was done: no candidate matched, several matched, you declined, or an order was not obeyed"
            }
            Code::Sick => {
                "`doctor` found a problem that must be corrected, or `agent status`: the agent does not reach etcd"
            }
            Code::ProgramEnded => "`serve`: the program of --guard-pid has ended",
            Code::NotContained => {
                "`run` or `lock`: the program, or a process that it started, could not be killed"
            }
            Code::Lost => "`lock`: the lock or permit was lost, and the program was ended",
            Code::NotInTime => {
                "`lock`: the lock or permit was not free within --wait, or before a signal stopped the command"
            }
            Code::NotRunnable => "`run` or `lock`: the program cannot be run",
            Code::NotFound => "`run` or `lock`: the program does not exist",
        }
    }

    fn of(error: &anyhow::Error) -> Self {
        if let Some(fault) = error.downcast_ref::<Fault>() {
            return fault.code;
        }
        match error
            .downcast_ref::<eldest::Error>()
            .map(eldest::Error::kind)
        {
            Some(
                ErrorKind::InvalidInput
                | ErrorKind::Rejected
                | ErrorKind::Proxied
                | ErrorKind::CapacityMismatch
                | ErrorKind::CountMismatch
                | ErrorKind::NameInUse,
            ) => Code::Usage,
            Some(ErrorKind::Unavailable | ErrorKind::Overloaded | ErrorKind::Unguarded) => {
                Code::Unavailable
            }
            Some(
                ErrorKind::PermissionDenied
                | ErrorKind::Unauthenticated
                | ErrorKind::CertificateRefused,
            ) => Code::Denied,
            Some(ErrorKind::NotObeyed) => Code::NotDone,
            _ => Code::Failed,
        }
    }
}

/// Returns true if a later try may succeed without another command line.
pub(crate) fn may_pass(error: &eldest::Error) -> bool {
    let access = [
        ErrorKind::PermissionDenied,
        ErrorKind::Unauthenticated,
        ErrorKind::CertificateRefused,
    ];
    error.is_transient() || access.contains(&error.kind())
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        ExitCode::from(code as u8)
    }
}

/// The section of `--help` about exit codes.
pub(crate) fn help() -> String {
    Code::ALL
        .iter()
        .fold("Exit codes:".to_owned(), |text, code| {
            format!("{text}\n  {:<3}  {}", *code as u8, code.about())
        })
        + "\n\nAfter their program has ended, `run` and `lock` exit with the program's own code, or with 128 plus the \
           number of the signal that killed it."
}

/// An error that the command itself found.
#[derive(Debug)]
pub(crate) struct Fault {
    code: Code,
    message: String,
}

/// Makes an error with that code and a message that says what to do.
pub(crate) fn fault(code: Code, message: impl Into<String>) -> anyhow::Error {
    let message = message.into();
    anyhow::Error::new(Fault { code, message })
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}

/// Writes the error on one line, and returns its code.
pub(crate) fn failure(error: &anyhow::Error, format: Format) -> ExitCode {
    if output::is_broken_pipe(error) {
        // The reader of our output has closed it, as `head` does.
        return Code::Done.into();
    }
    let code = Code::of(error);
    print_error(code, &chain(error), format);
    code.into()
}

/// Writes clap's message about the command line: an error, or the requested help.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // This is the help or the version.
        return match error.print() {
            Err(error) => failure(&error.into(), Format::asked_for()),
            Ok(()) => Code::Done.into(),
        };
    }
    if Format::asked_for() == Format::Json {
        let text = error.render().to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        let message = text.split("\n\n").next().unwrap_or(text);
        let message: Vec<&str> = message.split_whitespace().collect();
        print_error(Code::Usage, &message.join(" "), Format::Json);
    } else {
        let _ = error.print();
    }
    Code::Usage.into()
}

/// Returns the message and its causes, each once: some repeat their cause in their own text.
fn chain(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain().map(ToString::to_string) {
        if !parts.iter().any(|known| known.contains(&cause)) {
            parts.push(cause);
        }
    }
    parts.join(": ")
}

fn print_error(code: Code, message: &str, format: Format) {
    let message = output::one_line(message);
    let text = match format {
        Format::Text => Ok(format!("error: {message}")),
        Format::Json => serde_json::to_string(&Failed {
            error: Failure {
                exit_code: code as u8,
                code: code.name().to_owned(),
                detail: message,
            },
        }),
    };
    output::complain(&text.unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_listed_in_the_help_under_its_number() {
        let help = help();
        let numbers = Code::ALL.map(|code| code as u8);
        assert!(
            numbers.is_sorted_by(|a, b| a < b),
            "in their order, and none twice"
        );
        for code in Code::ALL {
            assert!(help.contains(&format!("\n  {:<3}  {}", code as u8, code.about())));
        }
    }

    #[test]
    fn a_cause_that_the_message_repeats_is_printed_once() {
        let error = anyhow::anyhow!("no such file").context("the password file: no such file");
        assert_eq!(chain(&error), "the password file: no such file");
        let error = anyhow::anyhow!("no such file").context("the password file");
        assert_eq!(chain(&error), "the password file: no such file");
    }

    #[test]
    fn the_guide_lists_every_exit_code() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
        let page = std::fs::read_to_string(path).expect("the page");
        let (_, section) = page.split_once("\n## Exit codes\n").expect("a section");
        let (section, _) = section.split_once("\n## ").unwrap_or((section, ""));
        let rows = section.lines().filter_map(|row| row.strip_prefix("| "));
        let listed: Vec<u8> = rows
            .filter_map(|row| row.split(" |").next())
            .flat_map(|cell| cell.split(", "))
            .filter_map(|code| code.parse().ok())
            .collect();
        assert_eq!(listed, Code::ALL.map(|code| code as u8));
    }
}

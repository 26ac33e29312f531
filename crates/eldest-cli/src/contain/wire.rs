//! Encodes the messages between supervisor and keeper: lines in two pipes, each short enough to be written at once.

use std::fmt;
use std::str::FromStr;

use super::spec::Exit;

/// An order of the supervisor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Order {
    /// Starts the program. A leader's program gets this token and this key.
    Go(Option<(i64, String)>),
    /// Passes a signal on to the program's process group.
    Signal(i32),
    /// Names the reason, one word, for which the program must end.
    Why(String),
    /// Read the memory: a deadline has come nearer.
    Look,
}

/// A report of the keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    /// The keeper waits for the order to start the process with this id.
    Ready(i32),
    /// The program runs.
    Started,
    /// The program has ended and no process that it started is left; true if it had been asked to end or was killed.
    Gone(Exit, bool),
    /// The same, and the command that follows the program begins.
    Following(Exit, bool),
    /// The command that follows the program has ended; `None` if it was killed at its limit.
    Followed(Option<Exit>),
    /// The program could not be started, for this reason of the system's.
    Failed(i32),
    /// The order to start the program came when it had to end already.
    TooLate,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Order::Go(None) => writeln!(f, "go"),
            Order::Go(Some((token, key))) => writeln!(f, "go {token} {key}"),
            Order::Signal(signal) => writeln!(f, "signal {signal}"),
            Order::Why(reason) => writeln!(f, "why {reason}"),
            Order::Look => writeln!(f, "look"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Report::Ready(pid) => writeln!(f, "ready {pid}"),
            Report::Started => writeln!(f, "started"),
            Report::Gone(exit, asked) => write_end(f, "", *exit, *asked),
            Report::Following(exit, asked) => write_end(f, "following ", *exit, *asked),
            Report::Followed(Some(Exit::Code(code))) => writeln!(f, "followed exited {code}"),
            Report::Followed(Some(Exit::Signal(signal))) => writeln!(f, "followed killed {signal}"),
            Report::Followed(None) => writeln!(f, "followed late"),
            Report::Failed(errno) => writeln!(f, "failed {errno}"),
            Report::TooLate => writeln!(f, "late"),
        }
    }
}

fn write_end(f: &mut fmt::Formatter<'_>, what: &str, exit: Exit, asked: bool) -> fmt::Result {
    let asked = i32::from(asked);
    match exit {
        Exit::Code(code) => writeln!(f, "{what}exited {asked} {code}"),
        Exit::Signal(signal) => writeln!(f, "{what}killed {asked} {signal}"),
    }
}

fn read_end(line: &str) -> Result<(Exit, bool), Garbled> {
    let (word, rest) = line.split_once(' ').ok_or(Garbled)?;
    let (asked, of) = rest.split_once(' ').ok_or(Garbled)?;
    let exit = match word {
        "exited" => Exit::Code(number(of)?),
        "killed" => Exit::Signal(number(of)?),
        _ => return Err(Garbled),
    };
    Ok((exit, number::<i32>(asked)? != 0))
}

/// A line that neither the supervisor nor the keeper writes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Garbled;

impl FromStr for Order {
    type Err = Garbled;

    fn from_str(line: &str) -> Result<Self, Garbled> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "go" if rest.is_empty() => Ok(Order::Go(None)),
            "go" => {
                let (token, key) = rest.split_once(' ').ok_or(Garbled)?;
                Ok(Order::Go(Some((number(token)?, key.to_owned()))))
            }
            "signal" => Ok(Order::Signal(number(rest)?)),
            "why" => Ok(Order::Why(rest.to_owned())),
            "look" => Ok(Order::Look),
            _ => Err(Garbled),
        }
    }
}

impl FromStr for Report {
    type Err = Garbled;

    fn from_str(line: &str) -> Result<Self, Garbled> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "ready" => Ok(Report::Ready(number(rest)?)),
            "started" => Ok(Report::Started),
            "exited" | "killed" => read_end(line).map(|(exit, asked)| Report::Gone(exit, asked)),
            "following" => read_end(rest).map(|(exit, asked)| Report::Following(exit, asked)),
            "followed" => Ok(Report::Followed(match rest.split_once(' ') {
                Some(("exited", code)) => Some(Exit::Code(number(code)?)),
                Some(("killed", signal)) => Some(Exit::Signal(number(signal)?)),
                _ => None,
            })),
            "failed" => Ok(Report::Failed(number(rest)?)),
            "late" => Ok(Report::TooLate),
            _ => Err(Garbled),
        }
    }
}

fn number<T: FromStr>(text: &str) -> Result<T, Garbled> {
    text.parse().map_err(|_| Garbled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_reports_are_parsed_as_they_were_written() {
        let key = "eldest/jobs with a blank/1f".to_owned();
        for order in [
            Order::Go(Some((77, key))),
            Order::Go(None),
            Order::Signal(10),
            Order::Why("lease_expiring".to_owned()),
            Order::Look,
        ] {
            let line = order.to_string();
            assert_eq!(line.trim_end_matches('\n').parse(), Ok(order));
        }
        for report in [
            Report::Ready(4711),
            Report::Started,
            Report::Gone(Exit::Code(3), false),
            Report::Gone(Exit::Signal(9), true),
            Report::Following(Exit::Code(3), false),
            Report::Following(Exit::Signal(9), true),
            Report::Followed(Some(Exit::Code(1))),
            Report::Followed(Some(Exit::Signal(11))),
            Report::Followed(None),
            Report::Failed(13),
            Report::TooLate,
        ] {
            assert_eq!(report.to_string().trim_end().parse(), Ok(report));
        }
        assert_eq!("gone".parse::<Report>(), Err(Garbled));
        assert_eq!("go 1".parse::<Order>(), Err(Garbled));
    }
}

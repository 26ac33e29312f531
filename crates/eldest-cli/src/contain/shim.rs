//! Prepares the program's process: ties its end to the keeper's, joins the cgroup, waits for the order to start, and
//! executes the program.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use eldest_process::cgroup::MadeCgroup;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use super::SHIM;
use super::wire::Order;
use crate::variables::{FENCING_TOKEN, TERM_KEY};

/// The exit code that shells use for it.
const NOT_FOUND: u8 = 127;
pub(super) const NOT_RUNNABLE: u8 = 126;

/// Returns the arguments of the shim, before the program.
pub(super) fn arguments(gate: RawFd, cgroup: Option<&MadeCgroup>) -> [OsString; 4] {
    [
        SHIM.into(),
        std::process::id().to_string().into(),
        gate.to_string().into(),
        cgroup.map(MadeCgroup::entrance).unwrap_or_default().into(),
    ]
}

/// Waits for the order, and becomes the program. Returns only if that fails or the order never comes.
pub(super) fn main(arguments: &[OsString]) -> ExitCode {
    let [keeper, gate, cgroup, program, rest @ ..] = arguments else {
        return ExitCode::from(2);
    };
    // The keeper ends the program. This signal covers the case that keeper and supervisor are killed together; it
    // reaches the program alone, not its children.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    if !cgroup.is_empty() {
        // Joining takes the kernel 10 to 20 ms, so it happens now, while nobody waits yet. If it is refused, the
        // program is contained as on systems without cgroups.
        let _ = std::fs::write(Path::new(cgroup), "0");
    }
    let Ok(leader) = pass(keeper, gate) else {
        return ExitCode::FAILURE;
    };
    let mut command = Command::new(program);
    command.args(rest);
    if let Some((token, key)) = leader {
        command
            .env(FENCING_TOKEN, token.to_string())
            .env(TERM_KEY, key);
    }
    let error = command.exec();
    let _ = writeln!(
        io::stderr(),
        "error: {} cannot be run: {error}",
        program.display()
    );
    ExitCode::from(match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_RUNNABLE,
    })
}

/// Waits for the order to begin. The order carries the token and the key, if there are any.
fn pass(keeper: &OsStr, gate: &OsStr) -> io::Result<Option<(i64, String)>> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let number = |text: &OsStr| text.to_str()?.parse::<i32>().ok();
    let keeper = number(keeper).ok_or_else(invalid)?;
    let gate = number(gate).ok_or_else(invalid)?;
    let gate = File::open(format!("/proc/{keeper}/fd/{gate}"))?;
    // If the keeper were dead, this would be a file of another process with its id.
    if getppid() != Pid::from_raw(keeper) {
        return Err(invalid());
    }
    let mut line = String::new();
    BufReader::new(gate).read_line(&mut line)?;
    match line.trim_end_matches('\n').parse() {
        Ok(Order::Go(leader)) => Ok(leader),
        _ => Err(invalid()),
    }
}

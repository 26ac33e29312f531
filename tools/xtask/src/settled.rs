//! Starts this program in the same environment, whatever calls it: no signal is ignored or blocked, new files can be
//! read by others, and programs speak English.

use std::process::Command;

use anyhow::{Context, Result};

use crate::{process, setup};

/// The variable that marks a program with this environment.
pub(crate) const SETTLED: &str = "ELDEST_XTASK_SETTLED";
/// The language and characters of what programs print.
const LOCALE: (&str, &str) = ("LC_ALL", "C.UTF-8");
/// A script that starts its arguments as a program. A shell cannot reset an ignored signal, but `env` of GNU can.
const SCRIPT: &str = "umask 022; exec env --default-signal \"$@\"";

/// Starts this program again in this environment, once. On systems other than Linux it changes nothing.
pub(crate) fn become_settled(args: &[String]) -> Result<()> {
    if std::env::var_os(SETTLED).is_some() || !can_be_settled() {
        return Ok(());
    }
    let this = std::env::current_exe().context("looking for this program")?;
    let mut command = Command::new("sh");
    command.args(["-c", SCRIPT, "xtask"]).arg(this).args(args);
    command.env(SETTLED, "1").env(LOCALE.0, LOCALE.1);
    process::become_it(&mut command).map(drop)
}

/// Returns true if `env` has the option.
fn can_be_settled() -> bool {
    let mut asked = setup::program("env");
    let asked = asked.args(["--default-signal", "true"]).output();
    cfg!(target_os = "linux") && asked.is_ok_and(|output| output.status.success())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::SCRIPT;
    use std::process::Command;

    // Signals as the kernel numbers them.
    const HUP: u64 = 1;
    const INT: u64 = 1 << 1;
    const USR2: u64 = 1 << 11;
    const TERM: u64 = 1 << 14;

    /// Reads the mask of files, and which of those signals are ignored and blocked.
    fn read(status: &str) -> (&str, [u64; 2]) {
        let signals = |name: &str| {
            let mut lines = status.lines();
            let set = lines.find_map(|line| line.strip_prefix(name)).unwrap();
            u64::from_str_radix(set.trim(), 16).unwrap() & (HUP | INT | USR2 | TERM)
        };
        let mask = status.lines().next().unwrap();
        (mask, [signals("SigIgn:"), signals("SigBlk:")])
    }

    #[test]
    fn signals_and_the_mask_of_files_are_those_of_a_login() {
        let asks = "umask; exec grep -E 'SigBlk|SigIgn' /proc/self/status";
        let called = |program: &[&str]| {
            let mut caller = Command::new("env");
            caller.args(["--ignore-signal=HUP,INT", "--block-signal=USR2,TERM"]);
            caller.args(["sh", "-c", "umask 077; exec \"$@\"", "caller"]);
            let output = caller.args(program).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let unsettled = called(&["sh", "-c", asks]);
        assert_eq!(read(&unsettled), ("0077", [HUP | INT, USR2 | TERM]));
        let settled = called(&["sh", "-c", SCRIPT, "xtask", "sh", "-c", asks]);
        assert_eq!(read(&settled), ("0022", [0, 0]));
    }
}

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

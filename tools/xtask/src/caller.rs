//! Runs the tests as an unfriendly caller would: what they need, they set themselves.

use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::settled::SETTLED;
use crate::setup;
use crate::stage::Stage;

/// Signals are ignored and blocked, there is no terminal and no standard input, new files are for their owner alone, and few
/// files may be open. What follows is the program.
const SCRIPT: &str = "umask 077; ulimit -n 1024; exec setsid --wait env --ignore-signal=HUP,INT,QUIT \
                      --block-signal=USR1,USR2,TERM,CHLD \"$@\" <&-";
/// The stages that a caller's change can break; compilation is not among them, since no caller disturbs it.
const STAGES: [&str; 3] = ["unit", "simulate", "tests"];
/// Rust's own tools are found through the home unless these name their folders.
const TOOLS: [(&str, &str); 2] = [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")];

/// The stage `caller`.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    let this = env::current_exe().context("looking for this program")?;
    let home = env::var_os("HOME").map(PathBuf::from).context("HOME")?;
    let other = setup::target().join("caller");
    std::fs::create_dir_all(&other)?;
    let mut command = setup::program("sh");
    command.args(["-c", SCRIPT, "caller"]).arg(this).arg("test");
    command
        .args(STAGES)
        .env_remove(SETTLED)
        .env_remove("LC_ALL");
    command.env("LANG", "C").env("HOME", other);
    for (name, folder) in TOOLS {
        if env::var_os(name).is_none() {
            command.env(name, home.join(folder));
        }
    }
    stage.step(&mut command)?;
    Ok(())
}

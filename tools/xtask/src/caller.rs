//! Runs the tests as an unfriendly caller would, which the tests must withstand by their own settings.

use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::settled::SETTLED;
use crate::setup;
use crate::stage::Stage;

/// A script that runs a program with signals ignored and blocked, without a terminal or standard input, with new files
/// for their owner alone, and with few open files permitted.
const SCRIPT: &str = "umask 077; ulimit -n 1024; exec setsid --wait env --ignore-signal=HUP,INT,QUIT \
                      --block-signal=USR1,USR2,TERM,CHLD \"$@\" <&-";
/// The stages that a caller's settings can break; compilation is not among them.
const STAGES: [&str; 3] = ["unit", "simulate", "tests"];
/// The folders of Rust's own tools, which are found through the home directory unless these variables name them.
const TOOLS: [(&str, &str); 2] = [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")];

/// Runs the stage `caller`.
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

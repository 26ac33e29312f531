//! Runs cargo-deny, which checks licences, bans, sources and advisories by deny.toml.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::install::Tool;
use crate::stage::Stage;
use crate::workspaces::Workspace;
use crate::{process, setup};

const TOOL: Tool = Tool {
    name: "cargo-deny",
    version: None,
    arguments: &[],
};

/// The checks that need only the registry.
const OFFLINE: [&str; 4] = ["check", "licenses", "bans", "sources"];

/// Runs the stage `deny`.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    let tool = TOOL.get()?;
    for workspace in Workspace::ALL {
        if stage.step(&mut deny(&tool, workspace, &OFFLINE)?)? {
            stage.pass("licences, bans and sources are as deny.toml wants them");
        }
    }
    let fetched = stage.output(&mut deny(&tool, Workspace::Product, &["fetch", "db"])?);
    if let Err(error) = fetched {
        stage.skip(format!(
            "advisories are not checked: no database: {error:#}"
        ));
        return Ok(());
    }
    for workspace in Workspace::ALL {
        stage.step(&mut deny(&tool, workspace, &["check", "advisories"])?)?;
    }
    Ok(())
}

/// Runs the command `deny`: cargo-deny with these arguments, or with all its checks.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    let tool = TOOL.get()?;
    let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
    if args.is_empty() {
        args.push("check");
    }
    for workspace in Workspace::ALL {
        let code = process::exit_code_of(&mut deny(&tool, workspace, &args)?)?;
        if code != ExitCode::SUCCESS {
            return Ok(code);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the call of cargo-deny in that workspace. It also searches the parent folders for deny.toml.
fn deny(tool: &Path, workspace: Workspace, args: &[&str]) -> Result<Command> {
    let mut command = setup::program(tool.to_str().context("the path of cargo-deny")?);
    command.args(args).current_dir(workspace.folder());
    Ok(command)
}

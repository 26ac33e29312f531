//! Generates shell completions and manual pages from the definition of the command line.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::exit::Code;

/// Print a script with which a shell completes this command's arguments
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Print a script with which a shell completes this command's arguments.\n\n\
    For zsh, write it to a file named _eldest in a folder of $fpath.",
    after_help = "Examples:
  # For bash
  eldest completions bash > /etc/bash_completion.d/eldest
  # For fish
  eldest completions fish > ~/.config/fish/completions/eldest.fish"
)]
pub(crate) struct Completions {
    /// The shell to complete in
    shell: Shell,
}

/// Print the manual page, or write the pages of all commands
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Print the manual page, or write the pages of all commands to a folder.",
    after_help = "Examples:
  # Read the manual page
  eldest man | man -l -
  # Install the manual pages of all commands
  eldest man --to /usr/local/share/man/man1"
)]
pub(crate) struct Manual {
    /// Write all pages to this folder, as eldest.1, eldest-status.1 and so on
    #[arg(long, value_name = "FOLDER")]
    to: Option<PathBuf>,
}

pub(crate) fn completions(command: &mut Command, args: &Completions) -> Result<Code> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, command, "eldest", &mut script);
    write(&script)?;
    Ok(Code::Done)
}

pub(crate) fn manual(command: Command, args: &Manual) -> Result<Code> {
    let Some(folder) = &args.to else {
        let mut page = Vec::new();
        Man::new(command).render(&mut page)?;
        write(&page)?;
        return Ok(Code::Done);
    };
    fs::create_dir_all(folder).with_context(|| format!("--to {}", folder.display()))?;
    clap_mangen::generate_to(command, folder)
        .with_context(|| format!("--to {}", folder.display()))?;
    Ok(Code::Done)
}

fn write(text: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text)?;
    out.flush()
}

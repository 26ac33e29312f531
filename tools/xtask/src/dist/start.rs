//! Starts programs of other machines in an emulator, and static ones in a folder without other files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::fixed::COMMAND;
use crate::stage::Stage;
use crate::{metadata, packages, setup};

/// The way in which a target's programs start on this machine.
pub(super) struct Starter {
    emulator: Option<PathBuf>,
}

impl Starter {
    pub(super) fn find(stage: &Stage, target: &str) -> Result<Self> {
        if is_native(target, &metadata::host(stage)?) {
            return Ok(Self { emulator: None });
        }
        let kind = target.split('-').next().unwrap_or_default();
        let name = format!("qemu-{kind}-static");
        let emulator = match packages::find(&name) {
            Some(emulator) => emulator,
            None => packages::unpack(stage, "qemu-user-static", &format!("usr/bin/{name}"))
                .with_context(|| {
                    format!("its programs start in {name}: install qemu-user-static")
                })?,
        };
        Ok(Self {
            emulator: Some(emulator),
        })
    }

    /// Returns a command that starts the program.
    pub(super) fn command(&self, program: &Path) -> Command {
        match &self.emulator {
            None => setup::program(&program.to_string_lossy()),
            Some(emulator) => {
                let mut command = setup::program(&emulator.to_string_lossy());
                command.arg(program);
                command
            }
        }
    }

    /// Checks that the program prints its version; if this process is root, in a folder without any other file.
    pub(super) fn check(&self, stage: &mut Stage, program: &Path, version: &str) -> Result<()> {
        let how = match &self.emulator {
            None if packages::is_root() => "in an empty folder",
            None => "here",
            Some(_) => "in an emulator",
        };
        let mut command = if self.emulator.is_none() && packages::is_root() {
            let root = setup::target().join("empty");
            fs::create_dir_all(&root)?;
            fs::copy(program, root.join(COMMAND))?;
            let mut command = setup::program("chroot");
            command.arg(root).arg(format!("/{COMMAND}"));
            command
        } else {
            self.command(program)
        };
        let said = stage.output(command.arg("--version"))?;
        ensure!(
            said.trim() == format!("{COMMAND} {version}"),
            "{} says {said:?}",
            program.display()
        );
        stage.pass(&format!(
            "{} is static, and starts {how}",
            program.display()
        ));
        Ok(())
    }
}

/// Returns true if this machine starts the target's programs without an emulator.
pub(super) fn is_native(target: &str, host: &str) -> bool {
    let kind = |triple: &str| triple.split('-').next().map(str::to_owned);
    kind(target) == kind(host) && host.contains("-linux-")
}

#[cfg(test)]
mod tests {
    use super::is_native;

    #[test]
    fn machine_starts_the_programs_of_its_processor_and_system() {
        assert!(is_native(
            "x86_64-unknown-linux-musl",
            "x86_64-unknown-linux-gnu"
        ));
        assert!(!is_native(
            "aarch64-unknown-linux-musl",
            "x86_64-unknown-linux-gnu"
        ));
        assert!(!is_native(
            "aarch64-unknown-linux-musl",
            "aarch64-apple-darwin"
        ));
    }
}

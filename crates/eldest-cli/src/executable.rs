//! Finds the file of a program, as a shell would, and starts shells.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use tokio::process::Command;

use crate::exit::{Code, fault};
use crate::variables;

/// Finds the program's file before anything else begins: a node that could not run it should not lead.
pub(crate) fn find(program: &OsStr) -> Result<PathBuf> {
    let path = Path::new(program);
    if path.components().count() > 1 || path.is_absolute() {
        return match std::fs::metadata(path) {
            Ok(_) if is_runnable(path) => Ok(path.to_owned()),
            Ok(_) => Err(fault(
                Code::NotRunnable,
                format!("{} is not an executable program", path.display()),
            )),
            Err(error) => Err(fault(
                Code::NotFound,
                format!("{}: {error}", path.display()),
            )),
        };
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut files = std::env::split_paths(&folders).map(|folder| folder.join(path));
    files.find(|file| is_runnable(file)).ok_or_else(|| {
        let message = format!("no program {} in PATH", path.display());
        fault(Code::NotFound, message)
    })
}

/// Returns a shell that receives none of the variables that are hidden from programs.
pub(crate) fn shell(arguments: &[&str]) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.args(arguments);
    for hidden in variables::hidden() {
        shell.env_remove(hidden);
    }
    shell
}

fn is_runnable(file: &Path) -> bool {
    std::fs::metadata(file)
        .is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shells_receive_no_secrets_and_no_command_or_version_of_ours() {
        let shell = shell(&["-c", "true"]);
        let set: Vec<_> = shell.as_std().get_envs().collect();
        for hidden in [
            variables::PASSWORD,
            variables::HTTP_TOKEN,
            "ELDEST_AFTER",
            variables::APP_VERSION,
        ] {
            assert!(
                set.contains(&(OsStr::new(hidden), None)),
                "{hidden}: {set:?}"
            );
        }
    }

    #[test]
    fn program_is_found_where_a_shell_would_find_it() {
        assert!(find(OsStr::new("sh")).unwrap().is_absolute());
        assert!(find(OsStr::new("/bin/sh")).is_ok());
        for (name, part) in [
            ("no-such-program", "PATH"),
            ("/etc/passwd", "not an executable program"),
        ] {
            let refused = find(OsStr::new(name)).unwrap_err().to_string();
            assert!(refused.contains(part), "{refused}");
        }
    }
}

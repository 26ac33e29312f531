//! Reads the permissions of the agent's socket, and takes as many open files as the system allows.

use anyhow::{Context, Result};
use nix::unistd::Group;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::exit::{Code, fault};

/// Parses permission bits as `chmod` writes them.
pub(super) fn mode(text: &str) -> Result<u32, String> {
    let digits = text.len() <= 4 && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    let mode = u32::from_str_radix(text, 8).ok().filter(|_| digits);
    match mode {
        Some(mode @ 0o600..=0o777) => Ok(mode),
        _ => Err("write it in octal, from 0600 to 0777, such as 0660".to_owned()),
    }
}

/// Finds the number of a group.
pub(super) fn group(text: &str) -> Result<u32> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let found = Group::from_name(text).with_context(|| format!("--socket-group {text}"))?;
    let missing = || {
        let message = format!(
            "--socket-group {text}: this machine has no such group; create it, or give its number"
        );
        fault(Code::Usage, message)
    };
    Ok(found.ok_or_else(missing)?.gid.as_raw())
}

/// Raises the number of files that this process may open as far as it may, and returns it. `None`: there is no limit.
pub(super) fn raise_open_files() -> Result<Option<u64>> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).context("the limit of open files cannot be raised")?;
    Ok(limit.maximum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_read_in_octal_and_lets_its_owner_in() {
        assert_eq!(mode("0660"), Ok(0o660));
        assert_eq!(mode("666"), Ok(0o666));
        for wrong in [
            "0060",
            "0o660",
            "1777",
            "rw-rw----",
            "0688",
            "",
            "-660",
            "+660",
        ] {
            assert!(
                mode(wrong).unwrap_err().contains("from 0600 to 0777"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_group_is_found_by_its_name_and_its_number() {
        assert_eq!(group("root").ok(), Some(0));
        assert_eq!(group("4711").ok(), Some(4711));
        let missing = group("no-such-group").unwrap_err().to_string();
        assert!(
            missing.contains("no-such-group") && missing.contains("create it"),
            "{missing}"
        );
    }
}

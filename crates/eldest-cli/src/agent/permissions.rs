//! Reads the group of the agent's socket, and takes as many open files as the system allows.

use anyhow::{Context, Result};
use eldest::internal;
use nix::unistd::Group;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::exit::{Code, fault};

/// Finds the number of a group.
pub(super) fn group(text: &str) -> Result<u32> {
    if let Some(number) = internal::number(text) {
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

/// Raises this process's limit of open files as far as the system permits. Returns the limit, or `None` if there is
/// none.
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
    fn a_group_is_found_by_its_name_and_its_number() {
        assert_eq!(group("root").ok(), Some(0));
        assert_eq!(group("4711").ok(), Some(4711));
        assert!(group("04711").is_err() && group("+4711").is_err());
        let missing = group("no-such-group").unwrap_err().to_string();
        assert!(
            missing.contains("no-such-group") && missing.contains("create it"),
            "{missing}"
        );
    }
}

//! Defines which settings a guard accepts.

use std::path::Path;
use std::time::Duration;

/// The longest time that a guard may linger. After a longer time the lease has expired anyway.
const LONGEST_LINGER: Duration = Duration::from_secs(300);
/// The longest path of a socket, in bytes: the capacity of `sockaddr_un` without its final zero.
const LONGEST_PATH: usize = 107;

/// Refuses a linger time that no guard may have.
///
/// # Errors
///
/// Names the value and the rule.
pub fn check_linger(linger: Duration) -> Result<(), String> {
    if linger <= LONGEST_LINGER {
        return Ok(());
    }
    Err(format!(
        "the guard's linger is {linger:?}; at most {LONGEST_LINGER:?} are allowed"
    ))
}

/// Refuses a path at which no agent can listen.
///
/// # Errors
///
/// Names the path and the rule.
pub fn check_agent_path(path: &Path) -> Result<(), String> {
    check_path(path).map_err(|rule| format!("the agent's socket {}: {rule}", path.display()))
}

/// Refuses a path that cannot be the address of a socket.
///
/// # Errors
///
/// Names the length and the rule.
pub fn check_path(path: &Path) -> Result<(), String> {
    let length = path.as_os_str().len();
    if (1..=LONGEST_PATH).contains(&length) {
        return Ok(());
    }
    Err(format!(
        "it has {length} bytes; a socket's path has 1 to {LONGEST_PATH}"
    ))
}

//! Connects to the Docker Engine and turns its errors into readable messages.

use std::error::Error as _;
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;

use super::{ErrorKind, TestError};

/// The time limit of one request to the engine.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a client of the engine that `DOCKER_HOST` names, after it has answered.
pub(super) async fn connect() -> Result<Docker, TestError> {
    let docker = Docker::connect_with_defaults().map_err(|error| out_of_reach(&error))?;
    let docker = docker.with_timeout(PATIENCE);
    // An engine refuses a client that requests a newer version than its own.
    let docker = docker.negotiate_version().await;
    docker.map_err(|error| out_of_reach(&error))
}

fn out_of_reach(error: &Error) -> TestError {
    let host = std::env::var("DOCKER_HOST");
    let host = host
        .as_deref()
        .unwrap_or("the local socket (DOCKER_HOST is not set)");
    let text = format!(
        "no Docker Engine answers at {host}: start it (`systemctl start docker`, or `dockerd` as root), \
         see that this user may use its socket (group `docker`), or let DOCKER_HOST name another"
    );
    TestError::because(ErrorKind::Unreachable, text, whole(error))
}

pub(super) fn failed(doing: &str, on: &str, error: &Error) -> TestError {
    TestError::because(
        ErrorKind::Refused,
        format!("cannot {doing} {on}"),
        whole(error),
    )
}

/// Returns `true` if the object is already gone.
pub(super) fn is_gone(error: &Error) -> bool {
    matches!(
        error,
        Error::DockerResponseServerError {
            status_code: 404,
            ..
        }
    )
}

/// Formats an error with its causes, because "client error (Connect)" alone explains nothing.
fn whole(error: &Error) -> String {
    if let Error::DockerResponseServerError { message, .. } = error {
        return message.trim().to_owned();
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

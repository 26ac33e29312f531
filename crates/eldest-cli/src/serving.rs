//! Decides when the program of a leader serves: once a command succeeds, a URL answers, or the program says so.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
#[cfg(target_os = "linux")]
use eldest_process::notify::NotifySocket;
use http::Uri;

use crate::contain::ChildRegistry;
use crate::health::{self, Probe};

const HEADING: &str = "Serving";
/// The variable that names the socket to the program.
pub(crate) const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(500);
/// How long an attempt may take: a program that starts may accept a connection that it never answers.
const ATTEMPT: Duration = Duration::from_secs(10);

/// The longest limit.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest time of an order to step down.
const LONGEST_ORDER: Duration = Duration::from_secs(60 * 60);

/// Parses the limit within which a leader must serve.
pub(crate) fn limit(text: &str) -> Result<Duration, String> {
    bounded(text, |limit| limit <= LONGEST, "at most 24h")
}

/// Parses the limit within which a successor must be warm. An order to step down must outlast it.
pub(crate) fn warm_limit(text: &str) -> Result<Duration, String> {
    bounded(text, |limit| limit < LONGEST_ORDER, "less than 1h")
}

fn bounded(text: &str, fits: fn(Duration) -> bool, bound: &str) -> Result<Duration, String> {
    let limit = crate::connection::duration(text)?;
    if limit.is_zero() || !fits(limit) {
        return Err(format!("it must be more than zero and {bound}"));
    }
    Ok(limit)
}

/// The options of a program that must be ready before its node serves.
#[derive(Debug, clap::Args)]
#[group(id = "serving")]
pub(crate) struct Args {
    /// Count as a leader that serves only once the program is ready, by one of the next options; a program that takes longer
    /// is ended, and the node joins again at the end of the queue
    #[arg(
        long, value_name = "DURATION", value_parser = limit, requires = "ready",
        help_heading = HEADING
    )]
    serving_within: Option<Duration>,

    /// The program is ready once this command, run with /bin/sh, succeeds
    #[arg(
        long, value_name = "COMMAND", value_parser = health::command, group = "ready", requires = "serving_within",
        help_heading = HEADING
    )]
    serving_command: Option<String>,

    /// The program is ready once a GET of this http or https URL returns a status from 200 to 299
    #[arg(
        long, value_name = "URL", value_parser = health::url, group = "ready", requires = "serving_within",
        help_heading = HEADING
    )]
    serving_url: Option<Uri>,

    /// The program is ready once it says so by systemd's protocol: READY=1 to the socket that NOTIFY_SOCKET names
    #[cfg(target_os = "linux")]
    #[arg(long, group = "ready", requires = "serving_within", help_heading = HEADING)]
    notify: bool,
}

/// The way in which a program turns out to be ready, and the limit for it.
pub(crate) struct Readiness {
    pub(crate) limit: Duration,
    sign: Sign,
}

/// The sign that a program is ready.
enum Sign {
    Answer(Probe),
    #[cfg(target_os = "linux")]
    Notification(NotifySocket),
}

impl Args {
    /// Returns the readiness of the program; `None`: the node serves as soon as it leads.
    pub(crate) fn readiness(&self) -> Result<Option<Readiness>> {
        let Some(limit) = self.serving_within else {
            return Ok(None);
        };
        let sign = match (&self.serving_command, &self.serving_url) {
            (Some(command), _) => Sign::Answer(Probe::Command(command.clone())),
            (None, Some(url)) => Sign::Answer(Probe::url("--serving-url", url)?),
            #[cfg(target_os = "linux")]
            (None, None) => Sign::Notification(socket()?),
            // The options require one of the signs.
            #[cfg(not(target_os = "linux"))]
            (None, None) => return Ok(None),
        };
        Ok(Some(Readiness { limit, sign }))
    }
}

#[cfg(target_os = "linux")]
fn socket() -> Result<NotifySocket> {
    use anyhow::Context;
    let name = format!("eldest-{}-{:016x}", std::process::id(), fastrand::u64(..));
    NotifySocket::open(&name).context("--notify: the socket for the program cannot be opened")
}

impl Readiness {
    /// Returns the variable that the program needs to say that it is ready.
    pub(crate) fn variable(&self) -> Option<(&'static str, OsString)> {
        match &self.sign {
            Sign::Answer(_) => None,
            #[cfg(target_os = "linux")]
            Sign::Notification(socket) => Some((NOTIFY_SOCKET, socket.address().into())),
        }
    }

    /// Waits until the program is ready whose processes are in that group. If the future is dropped, a running command is
    /// killed.
    pub(crate) async fn wait(&self, group: Option<i32>, child_registry: &Arc<ChildRegistry>) {
        match &self.sign {
            Sign::Answer(probe) => {
                while !is_ready(probe, child_registry).await {
                    tokio::time::sleep(PAUSE).await;
                }
            }
            #[cfg(target_os = "linux")]
            Sign::Notification(socket) => {
                let ready = async { socket.ready(group?).await.ok() };
                if ready.await.is_none() {
                    // Its end by the limit says that it is not ready.
                    std::future::pending::<()>().await;
                }
            }
        }
    }
}

impl Readiness {
    /// Reads what the program says after it is ready, so that it never waits for a reader.
    pub(crate) async fn ignore_the_rest(&self) {
        #[cfg(target_os = "linux")]
        if let Sign::Notification(socket) = &self.sign {
            let _ = socket.ignore().await;
        }
    }
}

async fn is_ready(probe: &Probe, child_registry: &Arc<ChildRegistry>) -> bool {
    let answer = tokio::time::timeout(ATTEMPT, probe.ask(child_registry)).await;
    matches!(answer, Ok(Ok(())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_more_than_zero_and_at_most_a_day() {
        for (text, wanted) in [
            ("1ms", true),
            ("24h", true),
            ("0s", false),
            ("24h1s", false),
        ] {
            assert_eq!(limit(text).is_ok(), wanted, "{text}");
        }
    }
}

//! Finds the process that sent a request over a Unix socket, and opens the process to whose life a lock or an election
//! is bound.

use std::convert::Infallible;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
use std::sync::Arc;
#[cfg(target_os = "linux")]
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::extract::FromRequestParts;
use eldest::internal::{self, process::Process};
use http::StatusCode;
use http::request::Parts;

use super::contract::Holder;
use super::problem::{Problem, shortened};
use super::query::{Asked, parameter};

/// The process that opened a connection, as the kernel named it then.
#[derive(Debug, Clone)]
pub(super) struct Peer(Arc<Opened>);

#[derive(Debug)]
struct Opened {
    /// The opened process, or the reason why its end cannot be awaited.
    process: Result<Arc<Process>, String>,
    /// The user of the process; `None` if it is unknown.
    user: Option<u32>,
    /// True if the process is known to be in this node's pid namespace.
    shares_numbers: bool,
    /// The last open file that the process has sent, until a request names it.
    #[cfg(target_os = "linux")]
    sent: Mutex<Option<OwnedFd>>,
}

impl Peer {
    /// Opens the process that made this connection.
    #[cfg(unix)]
    pub(super) fn of(stream: &tokio::net::UnixStream) -> Self {
        let (process, user, is_own) = match stream.peer_cred() {
            Ok(peer) => {
                let process = open(peer.pid(), peer.uid()).map(Arc::new);
                let is_own = peer.pid() == Some(std::process::id().cast_signed());
                (process, Some(peer.uid()), is_own)
            }
            Err(error) => {
                let reason = format!("the system does not name the process: {error}");
                (Err(reason), None, false)
            }
        };
        let shares_numbers = process.as_ref().map_or(is_own, |it| it.shares_numbers());
        Self(Arc::new(Opened {
            process,
            user,
            shares_numbers,
            #[cfg(target_os = "linux")]
            sent: Mutex::default(),
        }))
    }

    /// Keeps a file that came with the caller's bytes, and drops the one before.
    #[cfg(target_os = "linux")]
    pub(super) fn has_sent(&self, file: OwnedFd) {
        *self.sent() = Some(file);
    }

    #[cfg(target_os = "linux")]
    fn sent(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        self.0.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the process, if it could be opened.
    pub(super) fn process(&self) -> Option<&Process> {
        self.0.process.as_deref().ok()
    }

    fn holder(&self) -> Result<Arc<Process>, Problem> {
        let process = self.0.process.as_ref();
        let process = process.map_err(|reason| bad_holder(format!("the caller: {reason}")))?;
        if process.has_ended() {
            let number = process.number();
            let detail = format!("the caller: process {number} has ended");
            return Err(bad_holder(detail));
        }
        Ok(Arc::clone(process))
    }

    /// Opens another process of the same user. The caller gives the number that the process has for itself, so both must be
    /// in the node's pid namespace.
    fn names(&self, number: u32) -> Result<Arc<Process>, Problem> {
        let refused = |reason: String| bad_holder(format!("`holder_pid`: {reason}"));
        if !self.0.shares_numbers {
            let reason = "the caller is in another pid namespace, where the number stands for another process, or has ended; \
                send a descriptor of the process (\"holder\": \"pidfd\"), or bind the caller (\"holder\": \"peer\")";
            return Err(refused(reason.to_owned()));
        }
        self.same_user(Process::open(number)).map_err(refused)
    }

    /// Opens the process whose descriptor came with the request, in any pid namespace that the node sees.
    #[cfg(target_os = "linux")]
    fn sends(&self) -> Result<Arc<Process>, Problem> {
        let file = self.sent().take();
        let file = file.ok_or_else(|| "no open file came with the request".to_owned());
        let opened = file.and_then(|file| self.same_user(Process::of_descriptor(file)));
        opened.map_err(|reason| bad_holder(format!("`holder`: {reason}")))
    }

    #[cfg(not(target_os = "linux"))]
    fn sends(&self) -> Result<Arc<Process>, Problem> {
        let reason = "`holder`: process descriptors need Linux 5.3 or newer";
        Err(bad_holder(reason.to_owned()))
    }

    /// Refuses a process of another user than the caller's.
    fn same_user(&self, opened: Result<Process, String>) -> Result<Arc<Process>, String> {
        let (user, process) = (self.0.user, opened?);
        same_user(&process, user.ok_or("the user of the caller is unknown")?)?;
        Ok(Arc::new(process))
    }
}

/// Opens the process with the number that the kernel gave for a connection.
#[cfg(unix)]
fn open(number: Option<i32>, user: u32) -> Result<Process, String> {
    let number = number.and_then(|number| u32::try_from(number).ok());
    let number = number.filter(|number| *number > 0).ok_or(
        "it is in a pid namespace that this node does not see; let both share one, or run the node outside",
    )?;
    let process = Process::open(number)?;
    // After a process has ended, its number may have passed to a process of another user.
    same_user(&process, user)?;
    Ok(process)
}

fn same_user(process: &Process, user: u32) -> Result<(), String> {
    if process.user() == user {
        return Ok(());
    }
    Err(format!(
        "process {} belongs to user {}, and the caller is user {user}",
        process.number(),
        process.user()
    ))
}

fn bad_holder(detail: String) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "bad_holder", detail)
}

/// The process that sent a request; `None` over TCP, where it is unknown.
#[derive(Debug)]
pub(super) struct Caller(pub(super) Option<Peer>);

impl Caller {
    pub(super) fn process(&self) -> Option<&Process> {
        self.0.as_ref().and_then(Peer::process)
    }

    /// Returns the process on whose behalf the caller asks: the one that `?holder_pid=` names, or its own.
    pub(super) fn asks_for(&self, asked: &Asked) -> Result<Option<Arc<Process>>, Problem> {
        let Some(number) = parameter(asked, "holder_pid")? else {
            let own = self
                .0
                .as_ref()
                .and_then(|peer| peer.0.process.as_ref().ok());
            return Ok(own.cloned());
        };
        let Some(pid) = internal::number(&number) else {
            let number = shortened(&number);
            return Err(bad_holder(format!(
                "`holder_pid` is {number:?}, not a number"
            )));
        };
        named(self.0.as_ref(), None, Some(pid))
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(parts.extensions.get().cloned()))
    }
}

/// Returns the process that the fields `holder` and `holder_pid` name; `None` if neither is given.
pub(super) fn named(
    peer: Option<&Peer>,
    holder: Option<Holder>,
    holder_pid: Option<u32>,
) -> Result<Option<Arc<Process>>, Problem> {
    if holder.is_none() && holder_pid.is_none() {
        return Ok(None);
    }
    let Some(peer) = peer else {
        let detail = "`holder` and `holder_pid` need the node's Unix socket: over TCP, the node cannot tell which process asks";
        return Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "holder_needs_unix_socket",
            detail,
        ));
    };
    match (holder, holder_pid) {
        (Some(Holder::Peer), None) => peer.holder().map(Some),
        (Some(Holder::Pidfd), None) => peer.sends().map(Some),
        (None, Some(number)) => peer.names(number).map(Some),
        _ => Err(bad_holder(
            "give either `holder` or `holder_pid`, not both".to_owned(),
        )),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_caller_that_this_namespace_does_not_see_is_refused() {
        for number in [None, Some(0), Some(-1)] {
            let reason = open(number, 0).expect_err("it has no number here");
            assert!(reason.contains("pid namespace"), "{number:?}: {reason}");
        }
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_number_that_has_passed_to_another_user_is_refused() {
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        let number = i32::try_from(child.id()).unwrap();
        let user = open(Some(number), 0).map_or(0, |process| process.user());
        let reason = open(Some(number), user + 1).expect_err("another user");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(reason.contains("belongs to user"), "{reason}");
    }
}

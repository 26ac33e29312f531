//! Abandons a session within the process, as a crash would: nothing is released, and its lease expires.

use eldest::{Session, SessionOptions};
use etcd_client::Client;
use futures::FutureExt;

use crate::env::TokioEnv;
use crate::error::{Error, ErrorKind, Result};

/// Connects a session that [`crash`] can abandon; otherwise as [`Session::connect`].
///
/// Its watchdog is a task of the runtime instead of a thread. It cannot read certificates from files.
///
/// # Errors
///
/// As for [`Session::connect`].
///
/// # Panics
///
/// Outside of a tokio runtime.
pub async fn crashable_session<E: AsRef<str>>(
    endpoints: impl IntoIterator<Item = E>,
    options: SessionOptions,
) -> eldest::Result<Session> {
    let env = TokioEnv::new(|endpoint, options| {
        async move { Client::connect([endpoint], Some(options)).await }.boxed()
    });
    Session::connect(endpoints, options.env(env)).await
}

/// Abandons a session as the crash of its process would: its tasks stop at once, its connections close, and nothing
/// more is sent. Its keys stay until the lease expires, at most a TTL later; only then the next candidate leads.
///
/// Handles of the session stay usable, as in a process that has not noticed. The token of a term is cancelled
/// ([`RuntimeGone`](eldest::LostReason::RuntimeGone)), the term stays valid until its deadline, and calls return
/// [`Closed`](eldest::ErrorKind::Closed) or [`Unavailable`](eldest::ErrorKind::Unavailable). The test's own tasks
/// continue; end them with [`abort`](tokio::task::JoinHandle::abort), before the crash if they release something.
///
/// ```no_run
/// # async fn example(etcd: eldest_testing::Etcd) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use eldest::{Session, SessionOptions};
/// use eldest_testing::{crash, crashable_session};
///
/// let first = crashable_session([etcd.endpoint()], SessionOptions::new("a")).await?;
/// let leadership = first.election("billing")?.campaign().await?.elected().await?;
/// let second = Session::connect([etcd.endpoint()], SessionOptions::new("b")).await?;
/// let mut candidate = second.election("billing")?.campaign().await?;
/// crash(&first)?;
/// candidate.elected().await?; // after the TTL of "a"
/// assert!(!leadership.is_valid());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`InvalidInput`](ErrorKind::InvalidInput): the session was connected neither by [`crashable_session`] nor by
/// `MemoryEtcd::session`. To crash a service that connects its own session, run it on its own
/// [`Runtime`](tokio::runtime::Runtime) and end that with
/// [`shutdown_background`](tokio::runtime::Runtime::shutdown_background), or kill its process.
pub fn crash(session: &Session) -> Result<()> {
    if eldest::internal::scripted::crash(session) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidInput,
        "this session cannot crash: connect it by crashable_session, or by MemoryEtcd::session",
    ))
}

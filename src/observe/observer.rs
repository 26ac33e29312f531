//! Delivers the states of an election to an observer.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::{Stream, StreamExt};

use crate::error::Result;
use crate::session::Handle;
use crate::state::{Backlog, Roster};
use eldest_core::kv::Reach;

/// A stream of the changes of an election or a group: the current state first, then every change in order of etcd's
/// revision. Read it with [`Observer::next`], or as a `Stream`.
///
/// While no node leads, the stream delivers a [`Roster`] without a leader. A reader that falls more than 256 changes
/// behind skips to the newest state. The stream survives reconnects, compaction and the loss of an endpoint; the
/// changes that it missed meanwhile arrive as one change. It ends when the session closes, or after an error if etcd
/// refuses the watch ([`PermissionDenied`](crate::ErrorKind::PermissionDenied),
/// [`Rejected`](crate::ErrorKind::Rejected)).
///
/// A stream that delivers nothing may be quiet or cut off. [`Observer::age`] distinguishes the two, and
/// [`Roster::as_of`] shows how old a roster was when the stream returned it.
///
/// All observers of a session share one watch stream, on a connection that neither renewals nor candidates use. So
/// observing never endangers a lease, however many members an election has, and however fast they change. A change
/// costs the session a few microseconds, and memory that does not grow with the election, until the reader asks for all
/// [members](Roster::members).
#[must_use = "streams do nothing unless polled"]
pub struct Observer {
    handle: Handle,
    reader: u64,
    backlog: Arc<Backlog>,
    /// True for an observer of a group, which has no leader.
    unled: bool,
}

impl Observer {
    /// Starts to observe.
    ///
    /// # Cancellation safety
    /// If the call is dropped before it is ready, nothing is watched.
    pub(crate) async fn start(handle: Handle, prefix: Arc<[u8]>, reach: Reach) -> Result<Self> {
        let backlog = Arc::<Backlog>::default();
        let room = handle.shared.room.admit_observer().await;
        let observers = &handle.shared.observers;
        let reader = observers.observe_prefix(prefix, reach, Arc::clone(&backlog), room)?;
        Ok(Self {
            handle,
            reader,
            backlog,
            unled: false,
        })
    }

    /// Returns the same observer, for rosters without a leader.
    pub(crate) fn unled(mut self) -> Self {
        self.unled = true;
        self
    }

    /// Waits for the next state. Returns `None` when the session was closed, or after an error if etcd refuses the
    /// watch.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: a state that was not returned is returned by the next call.
    pub async fn next(&mut self) -> Option<Result<Roster>> {
        StreamExt::next(self).await
    }

    /// Returns how long ago etcd last confirmed that this observer has seen everything, or `None` before the first
    /// state.
    ///
    /// The age is computed from memory at each call, by the clock that counts suspended time. States that wait to be
    /// read count as seen. The observer has seen every change that etcd had accepted before that time; a later change
    /// may be missing.
    ///
    /// The session requests the progress of its watches every third of the [TTL](crate::SessionOptions::ttl). So while
    /// etcd answers, the age is at most a third of the TTL plus the time of two answers, however quiet the election is.
    /// The age grows while etcd cannot be reached, after the session was closed, and after etcd refused the watch.
    ///
    /// This bound is not guaranteed: a burst of changes, or a change of endpoints, delays the next confirmation. If you
    /// set a limit beyond which a view must not be used, make it at least a whole TTL.
    pub fn age(&self) -> Option<Duration> {
        let as_of = self.backlog.as_of()?;
        Some(self.handle.shared.env.now().since(as_of))
    }

    /// Returns the part that outlives the observer, to compute its age.
    pub(crate) fn backlog(&self) -> Arc<Backlog> {
        Arc::clone(&self.backlog)
    }
}

impl Stream for Observer {
    type Item = Result<Roster>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(self.backlog.poll_next(cx));
        let unled = self.unled;
        Poll::Ready(next.map(|roster| {
            let roster = roster?;
            Ok(if unled { roster.unled() } else { roster })
        }))
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.handle.shared.observers.leave(self.reader);
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").finish_non_exhaustive()
    }
}

//! Hands the states of an election to whoever looks on.

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

/// The changes of an election or a group, as a stream: the current state first, then every change in order of etcd's revision.
/// While nobody leads, the stream says so: a [`Roster`] without a leader. Read it with [`Observer::next`], or as a `Stream`.
///
/// A reader that falls more than 256 changes behind skips to the newest state. The stream survives reconnects, compaction
/// and the loss of an endpoint; what it missed meanwhile arrives as one change. It ends when the session closes, or after
/// an error if etcd does not permit to look ([`PermissionDenied`](crate::ErrorKind::PermissionDenied),
/// [`Rejected`](crate::ErrorKind::Rejected)).
///
/// A stream that says nothing may be quiet or cut off. [`Observer::age`] tells the two apart, and [`Roster::as_of`] how old a
/// roster was when it was handed out.
///
/// All observers of a session share one watch stream, on a connection that neither renewals nor candidates use: however
/// many members an election has, and however fast they change, looking on costs no lease its validity. A change costs the
/// session a few microseconds, and memory that does not grow with the election, until the reader asks for all
/// [members](Roster::members).
#[must_use = "streams do nothing unless polled"]
pub struct Observer {
    handle: Handle,
    reader: u64,
    backlog: Arc<Backlog>,
    /// Of a group: nobody leads.
    unled: bool,
}

impl Observer {
    /// Starts to look.
    ///
    /// # Cancellation safety
    /// Dropped before it is ready, nothing is watched.
    pub(crate) async fn start(handle: Handle, prefix: Arc<[u8]>, reach: Reach) -> Result<Self> {
        let backlog = Arc::<Backlog>::default();
        let room = handle.shared.room.look().await;
        let observers = &handle.shared.observers;
        let reader = observers.look(prefix, reach, Arc::clone(&backlog), room)?;
        Ok(Self {
            handle,
            reader,
            backlog,
            unled: false,
        })
    }

    /// The same, of which nobody leads.
    pub(crate) fn unled(mut self) -> Self {
        self.unled = true;
        self
    }

    /// Waits for the next state; `None` when the session was closed, or after an error if etcd does not permit to look.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: what was not returned is returned by the next call.
    pub async fn next(&mut self) -> Option<Result<Roster>> {
        StreamExt::next(self).await
    }

    /// How long ago etcd last confirmed that this observer has seen everything. `None`: not yet; it has not seen the first
    /// state. Computed from memory at each call, by the clock that counts suspend; what waits to be read counts as seen.
    ///
    /// While etcd answers, this is at most a third of the [TTL](crate::SessionOptions::ttl) and the time that two answers
    /// take, however quiet the election is: the session asks etcd how far it is every third of the TTL. It grows while etcd
    /// or the way to it is broken, after the session was closed, and after etcd refused to let it look. Every change that
    /// etcd had accepted before that long ago was seen; a change since then may be missing.
    ///
    /// Not promised: that no age is ever longer while etcd answers. A burst of changes, or a change of endpoints, delays the
    /// next confirmation. Take at least a whole TTL for a bound beyond which nobody should rely on the view.
    pub fn age(&self) -> Option<Duration> {
        let as_of = self.backlog.as_of()?;
        Some(self.handle.shared.env.now().since(as_of))
    }

    /// What outlives the observer, to tell its age.
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

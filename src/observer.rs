//! Hides how onlookers follow an election through reconnects, compaction and failover.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures::Stream;
use tokio::sync::broadcast;
use tokio_stream::wrappers::BroadcastStream;

use crate::core::action::SlotId;
use crate::driver::Command;
use crate::error::{Error, Result};
use crate::facts::{Entry, Reach};
use crate::roster::Roster;
use crate::session::Handle;

/// Changes that an onlooker may be behind before it skips to newer ones.
const BACKLOG: usize = 256;

/// The changes of an election, as a stream: the current state first, then every change in order of etcd's revision.
/// A vacant seat is said aloud: a [`Roster`] without a leader. The methods to read it are those of a `StreamExt`, from
/// the crate `futures` or `tokio-stream`.
///
/// A reader that falls more than 256 changes behind skips the oldest of them; what it reads next is true all the
/// same. The stream survives reconnects, compaction and the loss of an endpoint; what it missed meanwhile arrives as
/// one change. It ends when the session closes, or after an error if etcd does not permit to look
/// ([`PermissionDenied`](crate::ErrorKind::PermissionDenied), [`Rejected`](crate::ErrorKind::Rejected)).
#[must_use = "streams do nothing unless polled"]
pub struct Observer {
    handle: Handle,
    slot: SlotId,
    changes: BroadcastStream<Result<Roster>>,
}

/// The driver's side of an observer.
pub(crate) struct Sight {
    changes: broadcast::Sender<Result<Roster>>,
}

impl Observer {
    /// Starts to look.
    ///
    /// # Cancellation safety
    /// Dropped before it is ready, nothing is watched.
    pub(crate) async fn start(handle: Handle, prefix: Arc<[u8]>, reach: Reach) -> Result<Self> {
        let (sender, changes) = broadcast::channel(BACKLOG);
        let slot = handle.new_slot();
        let observe = Command::Observe {
            slot,
            prefix,
            reach,
            sight: Sight { changes: sender },
        };
        handle.call(observe).await?;
        Ok(Self {
            handle,
            slot,
            changes: BroadcastStream::new(changes),
        })
    }
}

impl Sight {
    pub(crate) fn show(&mut self, revision: i64, entries: Vec<Entry>) {
        // Nobody listening is no error: the observer is about to be dropped.
        drop(self.changes.send(Ok(Roster::new(revision, entries))));
    }

    pub(crate) fn fail(&mut self, error: Error) {
        drop(self.changes.send(Err(error)));
    }
}

impl Stream for Observer {
    type Item = Result<Roster>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match ready!(Pin::new(&mut self.changes).poll_next(cx)) {
                Some(Ok(item)) => return Poll::Ready(Some(item)),
                // Fallen behind: the next one is the oldest that is left.
                Some(Err(_)) => {}
                None => return Poll::Ready(None),
            }
        }
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        drop(self.handle.send(Command::Unobserve { slot: self.slot }));
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").finish_non_exhaustive()
    }
}

//! Hands the states of an election to whoever looks on.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures::Stream;

use crate::error::Result;
use crate::facts::Reach;
use crate::roster::Roster;
use crate::session::Handle;

/// Changes that an onlooker may be behind before it skips to the newest state.
const BACKLOG: usize = 256;

/// The changes of an election, as a stream: the current state first, then every change in order of etcd's revision.
/// A vacant seat is said aloud: a [`Roster`] without a leader. The methods to read it are those of a `StreamExt`, from
/// the crate `futures` or `tokio-stream`.
///
/// A reader that falls more than 256 changes behind skips to the newest state. The stream survives reconnects, compaction
/// and the loss of an endpoint; what it missed meanwhile arrives as one change. It ends when the session closes, or after
/// an error if etcd does not permit to look ([`PermissionDenied`](crate::ErrorKind::PermissionDenied),
/// [`Rejected`](crate::ErrorKind::Rejected)).
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
}

/// What a reader has not read yet.
#[derive(Default)]
pub(crate) struct Backlog(Mutex<Unread>);

#[derive(Default)]
struct Unread {
    items: VecDeque<Result<Roster>>,
    /// Nothing more comes.
    over: bool,
    waker: Option<Waker>,
}

impl Backlog {
    fn lock(&self) -> MutexGuard<'_, Unread> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, item: Result<Roster>) {
        let mut unread = self.lock();
        if unread.items.len() == BACKLOG {
            unread.items.clear();
        }
        unread.items.push_back(item);
        let waker = unread.waker.take();
        drop(unread);
        waker.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn end(&self) {
        let mut unread = self.lock();
        unread.over = true;
        let waker = unread.waker.take();
        drop(unread);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Observer {
    /// Starts to look.
    ///
    /// # Cancellation safety
    /// Dropped before it is ready, nothing is watched.
    pub(crate) async fn start(handle: Handle, prefix: Arc<[u8]>, reach: Reach) -> Result<Self> {
        let backlog = Arc::<Backlog>::default();
        let room = handle.shared.room.look().await;
        let lookout = &handle.shared.lookout;
        let reader = lookout.look(prefix, reach, Arc::clone(&backlog), room)?;
        Ok(Self {
            handle,
            reader,
            backlog,
        })
    }
}

impl Stream for Observer {
    type Item = Result<Roster>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut unread = self.backlog.lock();
        match unread.items.pop_front() {
            Some(item) => Poll::Ready(Some(item)),
            None if unread.over => Poll::Ready(None),
            None => {
                unread.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.handle.shared.lookout.leave(self.reader);
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").finish_non_exhaustive()
    }
}

//! Reports each change of an election's leader, once and in the order of etcd's revisions.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::{Stream, StreamExt};

use super::observer::Observer;
use crate::error::Result;
use crate::state::{Member, Roster};

/// A change of an election's leader, as etcd reports it.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq)]
pub enum LeaderChange {
    /// Another candidate leads, or the same one in a new term.
    #[non_exhaustive]
    Elected {
        /// The leader. Its [create revision](Member::create_revision) is the term's fencing token.
        leader: Member,
        /// The revision of etcd's store at which the leader was seen.
        revision: i64,
    },
    /// No node leads: there is no candidate, or a key [blocks](Roster::blocker) the queue.
    #[non_exhaustive]
    Vacant {
        /// The revision of etcd's store at which the vacancy was seen.
        revision: i64,
    },
}

/// A stream of the changes of an election's leader: the current leader first, then every change, in order of etcd's
/// revision. It comes from [`Election::leader_changes`](crate::Election::leader_changes).
///
/// Two successive items always differ. A new announcement of the leader is no change; for that, read the rosters of
/// [`Election::observe`](crate::Election::observe). Otherwise, the stream behaves like an [`Observer`]: a reader that
/// falls more than 256 changes behind skips to the newest state.
#[must_use = "streams do nothing unless polled"]
#[derive(Debug)]
pub struct LeaderChanges {
    changes: Observer,
    last: LastChange,
}

/// The last change that was returned.
#[derive(Debug, PartialEq)]
enum LastChange {
    Nothing,
    Vacant,
    /// The leader's key and its create revision. The key is needed because keys of one transaction share a create
    /// revision.
    Elected(Vec<u8>, i64),
}

impl LeaderChanges {
    pub(crate) fn new(changes: Observer) -> Self {
        Self {
            changes,
            last: LastChange::Nothing,
        }
    }

    /// Waits for the next change. Returns `None` when the session was closed, or after an error if etcd refuses the
    /// watch.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: a change that was not returned is returned by the next call.
    pub async fn next(&mut self) -> Option<Result<LeaderChange>> {
        StreamExt::next(self).await
    }

    /// Returns the change of the leader, or `None` if there is none.
    fn change(&mut self, roster: &Roster) -> Option<LeaderChange> {
        let leader = roster.leader();
        let change = leader.map_or(LastChange::Vacant, |leader| {
            LastChange::Elected(leader.key().to_vec(), leader.create_revision())
        });
        if self.last == change {
            return None;
        }
        self.last = change;
        let revision = roster.revision();
        Some(match leader.cloned() {
            Some(leader) => LeaderChange::Elected { leader, revision },
            None => LeaderChange::Vacant { revision },
        })
    }
}

impl Stream for LeaderChanges {
    type Item = Result<LeaderChange>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match ready!(Pin::new(&mut self.changes).poll_next(cx)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(roster)) => {
                    if let Some(change) = self.change(&roster) {
                        return Poll::Ready(Some(Ok(change)));
                    }
                }
            }
        }
    }
}

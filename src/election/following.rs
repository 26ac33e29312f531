//! Runs a node's work as a follower and its preparation for a term, tracks the leader for both, and ends both before the
//! node's own term begins.

mod preparing;

use std::any::Any;
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, CatchUnwind};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Election;
use super::work::begin;
use crate::error::{BoxError, Error, Result};
use crate::state::{Member, Roster, Term, live_lease};
use eldest_etcd::runtime::until;
use preparing::Preparation;

/// The input of a follower's work: the current leader, how to reach it, and when to stop.
///
/// See [`Runner::follow`](crate::Runner::follow).
#[derive(Debug)]
pub struct Following {
    election: Election,
    leader: watch::Receiver<Option<Member>>,
    /// The create revision of this node's key, while the key is next in line.
    next: watch::Receiver<Option<i64>>,
    stop: CancellationToken,
}

impl Following {
    /// Returns the leader that etcd last reported, with its name and, in its [announcement](Member::announcement), its
    /// address.
    ///
    /// Returns `None` if no node leads, if a key blocks the queue, if etcd has not answered yet, or if this node's own
    /// key is the eldest. The last case holds for a moment before and after this node leads. While etcd cannot be
    /// reached, it returns the last known leader.
    pub fn leader(&self) -> Option<Member> {
        self.leader.borrow().clone()
    }

    /// Waits until the leader or its announcement changes, or no node leads any more; returns [`Following::leader`].
    ///
    /// If changes happened before the first call or between two calls, the call returns at once, with the latest
    /// leader.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: a change that was not returned is returned by the next call.
    pub async fn changed(&mut self) -> Option<Member> {
        if self.leader.changed().await.is_err() {
            // The sender is gone, so the leader never changes again: the work is about to end.
            std::future::pending::<()>().await;
        }
        self.leader.borrow_and_update().clone()
    }

    /// Returns the leader as a channel, for code that routes requests to the leader.
    pub fn leaders(&self) -> watch::Receiver<Option<Member>> {
        self.leader.clone()
    }

    /// Returns `true` if no candidate but the leader is older than this node's, so that it leads when the leader's term
    /// ends. It stays `true` until this node leads or loses its key: nobody joins ahead of it.
    pub fn is_next_in_line(&self) -> bool {
        self.next.borrow().is_some()
    }

    /// Waits until this node is [next in line](Following::is_next_in_line). [`Runner::prepare`](crate::Runner::prepare)
    /// does so for work that prepares for a term.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: it only waits.
    pub async fn next_in_line(&self) {
        self.next_key().await;
    }

    /// Waits until this node is next in line, and returns the create revision of its key.
    pub(super) async fn next_key(&self) -> i64 {
        let mut next = self.next.clone();
        // Without a sender, the work is about to end.
        if let Ok(key) = next.wait_for(Option::is_some).await
            && let Some(key) = *key
        {
            return key;
        }
        std::future::pending().await
    }

    /// Announces that this node is warm, or no longer, as [`Election::set_warm`] does: for follower's work that prepares
    /// without [`Runner::prepare`](crate::Runner::prepare).
    ///
    /// # Errors
    ///
    /// As [`Election::set_warm`].
    ///
    /// # Cancellation safety
    ///
    /// As [`Election::set_warm`].
    pub async fn set_warm(&self, is_warm: bool) -> Result<()> {
        self.election.set_warm(is_warm).await
    }

    /// Returns the same input for work that ends by that token.
    pub(super) fn until(&self, stop: CancellationToken) -> Self {
        Self {
            election: self.election.clone(),
            leader: self.leader.clone(),
            next: self.next.clone(),
            stop,
        }
    }

    /// Waits until that key of this node is not next in line. Another key may be, a moment later.
    pub(super) async fn superseded(&self, key: i64) {
        let mut next = self.next.clone();
        if next.wait_for(|next| *next != Some(key)).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns a token that is cancelled when the follower's work must end, because this node leads or shuts down.
    ///
    /// The leader's work starts when the follower's work has ended, or was dropped a [grace
    /// period](crate::SessionOptions::grace) later.
    pub fn stopped(&self) -> CancellationToken {
        self.stop.child_token()
    }
}

/// A node's work as a follower, called once between two terms, or its preparation for a term.
pub(crate) type Follow<'a> = Box<dyn FnMut(Following) -> Running<'a> + Send + 'a>;
/// One call of the follower's work.
pub(super) type Running<'a> = BoxFuture<'a, Result<(), BoxError>>;
/// One call of the follower's work, whose panic is returned.
pub(super) type Caught<'a> = CatchUnwind<AssertUnwindSafe<Running<'a>>>;

/// Calls the follower's work.
pub(super) fn call<'a>(work: &mut Follow<'a>, following: Following) -> Caught<'a> {
    AssertUnwindSafe(begin(work, following).boxed()).catch_unwind()
}

/// The way in which a follower's work failed before it was asked to stop.
pub(crate) enum Fault {
    Failed(Error),
    Panicked(Box<dyn Any + Send>),
}

/// A follower's work between two terms, its preparation for the next one, and the observer that informs both of the
/// leader.
pub(crate) struct Follower<'f, 'a> {
    election: Election,
    /// `None`: there is no work, or it has returned.
    work: Option<Caught<'a>>,
    preparation: Option<Preparation<'f, 'a>>,
    stop: CancellationToken,
    leader: watch::Sender<Option<Member>>,
    next: watch::Sender<Option<i64>>,
    /// The last term of this node: its key may exist for a moment after the term.
    last: Option<Term>,
}

impl<'f, 'a> Follower<'f, 'a> {
    /// Starts the work, if there is any. The preparation begins when the node is next in line.
    pub(crate) fn start(
        election: Election,
        last: Option<Term>,
        work: Option<&mut Follow<'a>>,
        prepare: Option<&'f mut Follow<'a>>,
    ) -> Self {
        let (leader, seen) = watch::channel(None);
        let (next, seen_next) = watch::channel(None);
        let stop = CancellationToken::new();
        let following = Following {
            election: election.clone(),
            leader: seen,
            next: seen_next,
            stop: stop.clone(),
        };
        let preparation = prepare.map(|work| {
            let following = following.until(stop.clone());
            Preparation::new(election.clone(), following, work)
        });
        Self {
            election,
            work: work.map(|work| call(work, following)),
            preparation,
            stop,
            leader,
            next,
            last,
        }
    }

    /// Runs the work and the preparation; completes only when one of them has failed.
    pub(crate) async fn fails(&mut self) -> Fault {
        let Self {
            election,
            work,
            preparation,
            leader,
            next,
            last,
            ..
        } = self;
        if work.is_none() && preparation.is_none() {
            return std::future::pending().await;
        }
        let prepares = preparation.is_some();
        let following = async {
            let ended = match work {
                Some(running) => Some(running.await),
                None => None,
            };
            *work = None;
            match ended.and_then(fault) {
                None if prepares => std::future::pending().await,
                fault => fault,
            }
        };
        let preparing = async {
            match preparation {
                Some(preparation) => preparation.fails().await,
                None => std::future::pending().await,
            }
        };
        let updating = pin!(update(election, last.as_ref(), leader, next));
        let fault = tokio::select! {
            biased;
            never = updating => match never {},
            fault = following => fault,
            fault = preparing => Some(fault),
        };
        match fault {
            Some(fault) => fault,
            None => std::future::pending().await,
        }
    }

    /// Cancels the token of the work and of the preparation, and waits for both; after a grace period they are dropped.
    /// Returns a panic, if one of them panicked.
    pub(crate) async fn end(self, grace: Duration) -> Option<Box<dyn Any + Send>> {
        self.stop.cancel();
        let preparing = self.preparation.and_then(Preparation::running);
        let (one, other) = tokio::join!(
            wind_up(&self.election, self.work, grace),
            wind_up(&self.election, preparing, grace)
        );
        one.or(other)
    }
}

/// Returns the fault of work that has ended before it was asked to stop.
pub(super) fn fault(ended: Ended) -> Option<Fault> {
    match ended {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(Fault::Failed(Error::work(error))),
        Err(panic) => Some(Fault::Panicked(panic)),
    }
}

/// The result of one call of work.
pub(super) type Ended = std::thread::Result<Result<(), BoxError>>;

/// Waits for work that was asked to stop; after a grace period the work is dropped. Returns its panic, if it panicked.
pub(super) async fn wind_up(
    election: &Election,
    work: Option<impl Future<Output = Ended>>,
    grace: Duration,
) -> Option<Box<dyn Any + Send>> {
    let env = &*election.handle.shared.env;
    let election = election.name();
    match until(env, env.now().after(grace), work?).await {
        Some(Ok(Ok(()))) => {}
        Some(Ok(Err(error))) => {
            tracing::warn!(target: "eldest::election", election, %error, "follower's work failed after it was asked to stop");
        }
        Some(Err(panic)) => return Some(panic),
        None => {
            tracing::warn!(target: "eldest::election", election, "follower's work dropped after the grace period");
        }
    }
    None
}

/// Keeps `leader` and `next` up to date while it is polled.
async fn update(
    election: &Election,
    last: Option<&Term>,
    leader: &watch::Sender<Option<Member>>,
    next: &watch::Sender<Option<i64>>,
) -> Infallible {
    let shared = &election.handle.shared;
    while let Ok(mut changes) = election.observe().await {
        while let Some(Ok(roster)) = changes.next().await {
            let lease = live_lease(&shared.state.borrow());
            let now = another(&roster, lease, last);
            leader.send_if_modified(|before| std::mem::replace(before, now.clone()) != now);
            let now = next_key(&roster, lease, last);
            next.send_if_modified(|before| std::mem::replace(before, now) != now);
        }
        // etcd refused to let us observe, perhaps only for a while.
        shared.env.sleep(shared.settings.request_timeout).await;
    }
    // The session was closed.
    std::future::pending().await
}

/// Returns the create revision of this session's key, if it is one of the two eldest. The key of the node's last term does not
/// count: it is about to go.
fn next_key(roster: &Roster, lease: Option<i64>, last: Option<&Term>) -> Option<i64> {
    let stands = |member: &&Member| !last.is_some_and(|term| is_of(member, term));
    let mut eldest = roster.members().iter().filter(stands).take(2);
    let own = eldest.find(|member| lease == Some(member.lease_id()));
    own.map(Member::create_revision)
}

/// Returns `true` if the key is that of the term.
fn is_of(member: &Member, term: &Term) -> bool {
    member.key() == term.key() && member.create_revision() == term.fencing_token()
}

/// Returns the leader unless it is this node, which is known by its lease or by the key of its last term.
fn another(roster: &Roster, lease: Option<i64>, last: Option<&Term>) -> Option<Member> {
    let leader = roster.leader()?;
    let led = last.is_some_and(|term| is_of(leader, term));
    let own = lease == Some(leader.lease_id()) || led;
    (!own).then(|| leader.clone())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::session::Session;
    use crate::state::{LeaseDeadline, TermState};
    use eldest_core::kv::Entry;
    use eldest_core::time::Time;

    fn entry(lease: i64, create_revision: i64) -> Entry {
        Entry {
            key: format!("e/{lease:x}").into_bytes().into(),
            value: (*b"somebody").into(),
            create_revision,
            mod_revision: create_revision,
            lease,
        }
    }

    #[tokio::test]
    async fn a_follower_never_sees_itself_as_the_leader() {
        let options = crate::SessionOptions::new("n");
        let session = Session::connect_lazy(["http://127.0.0.1:1"], options).unwrap();
        let election = session.election("e").unwrap();
        let shared = &election.handle.shared;
        let term = Term {
            shared: TermState::new(
                Arc::clone(&shared.env),
                Arc::clone(&shared.pool),
                LeaseDeadline::until(1, Time::ZERO).into(),
                "e".into(),
                entry(7, 5).key,
                5,
            ),
        };
        let roster = Roster::new(9, [entry(7, 5), entry(8, 6)]);
        assert!(another(&roster, None, None).is_some());
        assert!(another(&roster, Some(8), None).is_some());
        // This node is recognised by its lease, or by the key of its last term.
        assert_eq!(another(&roster, Some(7), None), None);
        assert_eq!(another(&roster, None, Some(&term)), None);
        let roster = Roster::new(10, [entry(7, 10)]);
        assert!(another(&roster, None, Some(&term)).is_some(), "a later one");
        assert_eq!(another(&Roster::new(11, []), None, None), None);
        // The key of the last term is about to go, and the next one is behind all others.
        let roster = Roster::new(9, [entry(7, 5), entry(8, 6), entry(9, 7)]);
        assert_eq!(next_key(&roster, Some(7), None), Some(5));
        assert_eq!(next_key(&roster, Some(7), Some(&term)), None);
        assert_eq!(next_key(&roster, Some(9), Some(&term)), Some(7));
    }

    #[test]
    fn only_the_leader_is_older_than_the_node_that_is_next_in_line() {
        let roster = Roster::new(9, [entry(7, 5), entry(8, 6), entry(9, 7)]);
        let next = [Some(7), Some(8), Some(9), None].map(|lease| next_key(&roster, lease, None));
        assert_eq!(next, [Some(5), Some(6), None, None]);
        assert_eq!(next_key(&Roster::new(10, []), Some(7), None), None);
    }
}

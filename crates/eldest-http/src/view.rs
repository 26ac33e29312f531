//! Keeps the last view of an observer and the node's own terms, and reports how old the view is.

use std::time::Duration;

use eldest::internal::{Freshness, Held, Inside, LocalState, SharedEnv};
use eldest::{AsOf, Observer, Roster, Term};
use eldest_core::time::Time;
use eldest_core::watch::stall_bound;
use futures::FutureExt;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::contract::millis;
use super::term_history::TermHistory;

/// The last state of an observer.
#[derive(Debug, Clone, Default)]
pub(super) struct View {
    /// The last roster; `None` if etcd has not answered yet.
    pub(super) roster: Option<Roster>,
    /// Why etcd refuses the watch, if it does.
    pub(super) refused: Option<String>,
    pub(super) term_history: TermHistory,
    pub(super) confirmed: Confirmed,
}

/// The moment at which a view was complete.
#[derive(Debug, Clone, Default)]
pub(super) struct Confirmed {
    /// The source of changes, which knows the time as of which they are complete, and the number of changes that the
    /// view contains.
    source: Option<(Freshness, u64)>,
    /// The earliest such moment, whatever the source reports.
    fixed: Option<Time>,
}

impl Confirmed {
    /// Continues with the changes of another observer.
    pub(super) fn begin(&mut self, source: Freshness) {
        self.fixed = self.as_of();
        self.source = Some((source, 0));
    }

    /// Counts a change of the source.
    pub(super) fn take(&mut self) {
        if let Some((_, taken)) = &mut self.source {
            *taken += 1;
        }
    }

    /// Records the time as of which the data of the last change is complete.
    pub(super) fn fix(&mut self, as_of: Option<&AsOf>) {
        let as_of = as_of.map(AsOf::since_boot);
        self.fixed = as_of.map(|at| Time::ZERO.after(at));
    }

    /// Returns the time as of which the view is complete.
    fn as_of(&self) -> Option<Time> {
        let fixed = self.fixed?;
        let (source, taken) = self.source.as_ref()?;
        Some(fixed.max(source.as_of_all(*taken).unwrap_or(fixed)))
    }

    /// Returns how long ago that was.
    fn age(&self, now: Time) -> Option<Duration> {
        self.as_of().map(|as_of| now.since(as_of))
    }
}

/// The age of a view.
#[derive(Debug, Clone, Copy)]
pub(super) struct Age {
    /// How long ago etcd last confirmed it; `None`: not yet.
    confirmed: Option<Duration>,
    /// The age beyond which it is stale.
    bound: Duration,
}

impl Age {
    /// Returns the age of a view at this moment, by the clock of its session.
    pub(super) fn of(session: Inside<'_>, view: &Confirmed, stale_after: Option<Duration>) -> Self {
        Self {
            confirmed: view.age(session.env().now()),
            bound: bound(session, stale_after),
        }
    }

    pub(super) fn confirmed_ms(self) -> Option<u64> {
        self.confirmed.map(millis)
    }

    pub(super) fn bound_ms(self) -> u64 {
        millis(self.bound)
    }

    pub(super) fn is_stale(self) -> bool {
        self.confirmed.is_none_or(|age| age > self.bound)
    }

    /// Returns the shortest time until the view becomes stale.
    pub(super) fn left(self) -> Duration {
        self.bound
            .saturating_sub(self.confirmed.unwrap_or(self.bound))
    }
}

/// Returns the age beyond which a view of that session is stale.
fn bound(session: Inside<'_>, stale_after: Option<Duration>) -> Duration {
    // The longest times without a confirmation while etcd answers: between two probes, and until a stalled stream is
    // noticed.
    let least = session.ttl() / 3 + stall_bound(session.request_timeout());
    stale_after.unwrap_or(session.ttl()).max(least)
}

/// The longest pause between two checks of a silent view.
const LOOK: Duration = Duration::from_secs(1);

/// Keeps a view up to date by the observers that `observe` starts, until the session closes or the guard is dropped. After
/// a refusal, the next observer starts when that pause is over. `own` is the state of the session's own candidate, if the
/// view is one of an election.
pub(super) fn follow<O, F>(
    session: Inside<'_>,
    pause: Duration,
    own: Option<watch::Receiver<LocalState>>,
    observe: O,
) -> (watch::Receiver<View>, DropGuard)
where
    O: Fn() -> F + Send + 'static,
    F: Future<Output = eldest::Result<Observer>> + Send,
{
    let (seen, view) = watch::channel(View::default());
    let stop = CancellationToken::new();
    let (env, bound) = (session.env().clone(), bound(session, None));
    let timer = env.clone();
    let following = async move {
        let (env, seen) = (&timer, &seen);
        let looking = async move {
            while let Ok(changes) = observe().await {
                follow_roster(env, bound, changes, seen).await;
                // etcd refused the read, perhaps only for a while.
                env.sleep(pause).await;
            }
        };
        tokio::select! {
            () = looking => {}
            () = record_own_terms(env, own, seen) => {}
        }
    };
    let until = stop.clone().run_until_cancelled_owned(following);
    env.spawn(until.map(drop).boxed());
    (view, stop.drop_guard())
}

/// Publishes the rosters of one observer, and records since when it receives nothing.
async fn follow_roster(
    env: &SharedEnv,
    bound: Duration,
    mut changes: Observer,
    view: &watch::Sender<View>,
) {
    // No caller needs a notification of this.
    view.send_if_modified(|view| {
        view.confirmed.begin(Freshness::of(&changes));
        false
    });
    loop {
        tokio::select! {
            biased;
            change = changes.next() => match change {
                Some(change) => view.send_modify(|view| view.take(change, millis(env.unix_time()))),
                None => return,
            },
            () = env.sleep(LOOK.min(bound)) => {
                view.send_if_modified(|view| {
                    view.note_silence(env, bound);
                    false
                });
            }
        }
    }
}

impl View {
    /// Records a change that arrived at that time, in milliseconds since 1970.
    fn take(&mut self, change: eldest::Result<Roster>, now: u64) {
        self.confirmed.take();
        match change {
            Ok(roster) => {
                let leader = roster.leader();
                let leader = leader.map(|it| (it.create_revision(), it.identity()));
                self.term_history.see(leader, now);
                self.confirmed.fix(roster.as_of());
                self.roster = Some(roster);
                self.refused = None;
            }
            Err(error) => self.refused = Some(error.report().to_string()),
        }
    }

    /// Records since when the view is unconfirmed, if that is longer than the bound.
    fn note_silence(&mut self, env: &SharedEnv, bound: Duration) {
        let age = self.confirmed.age(env.now()).filter(|age| *age > bound);
        let since = age.map(|age| millis(env.unix_time().saturating_sub(age)));
        self.term_history.silent_since(since);
    }
}

/// Records the end of each of the node's own terms when its clock ends it, whether or not etcd answers. It never completes.
async fn record_own_terms(
    env: &SharedEnv,
    own: Option<watch::Receiver<LocalState>>,
    view: &watch::Sender<View>,
) {
    if let Some(mut own) = own {
        let mut recorded = None;
        loop {
            let held = own.borrow_and_update().held.clone();
            let held = held.filter(|Held { term, .. }| recorded != Some(term.fencing_token()));
            if let Some(Held { term, .. }) = held {
                ends(env, &term, &mut own).await;
                let (token, now) = (term.fencing_token(), millis(env.unix_time()));
                view.send_if_modified(|view| view.term_history.end_own(token, now));
                recorded = Some(token);
            } else if own.changed().await.is_err() {
                break;
            }
        }
    }
    std::future::pending::<()>().await;
}

/// Completes when the term is no longer valid.
async fn ends(env: &SharedEnv, term: &Term, own: &mut watch::Receiver<LocalState>) {
    term.lost().cancelled().await;
    // The term's deadline no longer changes, and the candidate may release its key earlier.
    while term.is_valid() {
        tokio::select! {
            () = env.sleep(term.valid_until().time_left()) => {}
            Ok(()) = own.changed() => {}
        }
    }
}

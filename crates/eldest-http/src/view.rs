//! Keeps what an observer has seen, and tells how old that is.

use std::time::Duration;

use eldest::internal::{Freshness, Inside, SharedEnv};
use eldest::{AsOf, Observer, Roster};
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
    /// `None`: etcd has not answered yet.
    pub(super) roster: Option<Roster>,
    /// Why etcd refuses the watch, if it does.
    pub(super) refused: Option<String>,
    pub(super) term_history: TermHistory,
    pub(super) confirmed: Confirmed,
}

/// As of when a view is complete.
#[derive(Debug, Clone, Default)]
pub(super) struct Confirmed {
    /// The source of changes, which knows as of when they are complete, and how many of them the view shows.
    source: Option<(Freshness, u64)>,
    /// As of when the view was complete at least, whatever the source reports.
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

    /// Notes as of when the data of the last change is complete.
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
        // Between two probes, and until a stream that does not answer counts as stalled.
        let least = session.ttl() / 3 + stall_bound(session.request_timeout());
        let as_of = view.as_of();
        Self {
            confirmed: as_of.map(|as_of| session.env().now().since(as_of)),
            bound: stale_after.unwrap_or(session.ttl()).max(least),
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

    /// Returns how long it takes at least until it is stale.
    pub(super) fn left(self) -> Duration {
        self.bound
            .saturating_sub(self.confirmed.unwrap_or(self.bound))
    }
}

/// Keeps a view up to date by the observers that `observe` starts, until the session closes or the guard is dropped. After
/// a refusal, the next observer starts when that pause is over.
pub(super) fn follow<O, F>(
    env: &SharedEnv,
    pause: Duration,
    observe: O,
) -> (watch::Receiver<View>, DropGuard)
where
    O: Fn() -> F + Send + 'static,
    F: Future<Output = eldest::Result<Observer>> + Send,
{
    let (seen, view) = watch::channel(View::default());
    let stop = CancellationToken::new();
    let timer = env.clone();
    let looking = async move {
        while let Ok(changes) = observe().await {
            look(&timer, changes, &seen).await;
            // etcd refused to let us look, which it may do for a while only.
            timer.sleep(pause).await;
        }
    };
    let until = stop.clone().run_until_cancelled_owned(looking);
    env.spawn(until.map(drop).boxed());
    (view, stop.drop_guard())
}

/// Shows what one observer sees.
async fn look(env: &SharedEnv, mut changes: Observer, view: &watch::Sender<View>) {
    // Nothing that anybody has to be told.
    view.send_if_modified(|view| {
        view.confirmed.begin(Freshness::of(&changes));
        false
    });
    while let Some(change) = changes.next().await {
        let now = millis(env.unix_time());
        view.send_modify(|view| {
            view.confirmed.take();
            match change {
                Ok(roster) => {
                    let leader = roster.leader();
                    let leader = leader.map(|it| (it.create_revision(), it.identity()));
                    view.term_history.see(leader, now);
                    view.confirmed.fix(roster.as_of());
                    view.roster = Some(roster);
                    view.refused = None;
                }
                Err(error) => view.refused = Some(error.report().to_string()),
            }
        });
    }
}

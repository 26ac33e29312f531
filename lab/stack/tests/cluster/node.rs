//! Runs a node: the unchanged library in its own environment, which campaigns for as long as its host lives.

use std::sync::Arc;
use std::time::Duration;

use eldest::{
    CancellationToken, Comparison, Condition, ErrorKind, Leadership, LostReason, Op, Session,
    SessionOptions, Term,
};
use eldest_sim_stack::sim_env;
use eldest_testing::history::{Outcome, What};

use crate::world::{ELECTION, Shared, World, millis};

/// The key of the counter, outside of the election's keys.
pub(crate) const COUNTER: &str = "count/jobs";
/// The time between two fenced writes.
const PACE: Duration = Duration::from_secs(2);

/// The behaviour of the nodes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Habits {
    /// True if nodes work for as long as their term is valid, even after its token is cancelled.
    pub(crate) stubborn: bool,
    /// The time after which a leader steps down, by its own clock.
    pub(crate) term: Option<Duration>,
}

/// Campaigns until the host ends.
pub(crate) async fn live(
    name: String,
    ttl: Duration,
    shared: Arc<Shared>,
    habits: Habits,
    (seed, offset, drift_ppm): (u64, Duration, i32),
) -> turmoil::Result {
    let env = sim_env(seed, offset, drift_ppm);
    let options = SessionOptions::new(&*name).ttl(ttl).env(env);
    let session = Session::connect_lazy(World::endpoints(), options)?;
    let election = session.election(ELECTION)?;
    let work = |leadership: Leadership| {
        let (name, shared) = (name.clone(), Arc::clone(&shared));
        let habits = habits.clone();
        async move {
            lead(&name, &shared, &habits, leadership).await;
            Ok::<_, eldest::BoxError>(())
        }
    };
    election.run(CancellationToken::new(), work).await?;
    Err(format!("{name} has stopped running for the election").into())
}

async fn lead(name: &str, shared: &Shared, habits: &Habits, leadership: Leadership) {
    let term = leadership.term();
    let token = term.fencing_token();
    shared.elected(name, &term);
    let steps_down = async {
        match habits.term {
            Some(after) => tokio::time::sleep(after).await,
            None => std::future::pending().await,
        }
    };
    let lost = term.lost();
    tokio::select! {
        biased;
        () = lost.cancelled() => {}
        () = write(name, shared, &term) => {}
        () = steps_down => {
            // A failure means that the term is already lost. The task is needed because stepping down waits for the end
            // of this work.
            tokio::spawn(async move { leadership.step_down().await });
            lost.cancelled().await;
        }
    }
    let reason = term.lost_reason().map_or("unknown", LostReason::as_str);
    let reason = reason.to_owned();
    shared
        .recorder
        .record(name, ELECTION, What::LostToken { token, reason });
    while habits.stubborn && term.is_valid() {
        shared
            .recorder
            .record(name, ELECTION, What::Guarded { token });
        tokio::time::sleep(millis(20)).await;
    }
    shared
        .recorder
        .record(name, ELECTION, What::Released { token });
}

/// Raises the fenced counter for as long as the term permits.
async fn write(name: &str, shared: &Shared, term: &Term) {
    let token = term.fencing_token();
    let record = |outcome| {
        let what = What::FencedWrite { token, outcome };
        shared.recorder.record(name, ELECTION, what);
    };
    loop {
        if let Some(value) = read(term).await {
            let next = value + 1;
            // An earlier write of this term, whose answer was lost, may yet arrive: it must not undo this one.
            let same = match value {
                0 => Condition::create_revision(COUNTER, Comparison::Equal, 0),
                _ => Condition::value(COUNTER, Comparison::Equal, value.to_string()),
            };
            let put = Op::put(COUNTER, next.to_string());
            record(Outcome::Sent);
            let written = term.txn([Op::when([same], [put], [])]).await;
            record(match written {
                Ok(outcome) if outcome.all_held() => Outcome::Admitted { value: next },
                Err(error) if error.kind() == ErrorKind::Ambiguous => Outcome::Unknown,
                Ok(_) | Err(_) => Outcome::Refused,
            });
        }
        tokio::time::sleep(PACE).await;
    }
}

/// Reads the counter under the term's guard.
async fn read(term: &Term) -> Option<u64> {
    let outcome = term.txn([Op::get(COUNTER)]).await.ok()?;
    match outcome.found().next() {
        Some(entry) => entry.value_str().ok()?.parse().ok(),
        None => Some(0),
    }
}

//! Makes a node use what a leader and an owner can have beside a key: it serves later, is warm before, requires a version,
//! and owns a share of a few partitions, which it keeps while it restarts.

use std::time::Duration;

use eldest::{BoxError, CancellationToken, Election, Leadership, Partition, Session};
use tokio::time::{Instant, sleep};

use crate::config::Config;
use crate::record::{Event, History, PARTITIONS};

/// How long a leader or owner that hands over waits for the next one.
const WARM_WITHIN: Duration = Duration::from_secs(2);
/// How long a leader may take until it serves.
const SERVING_WITHIN: Duration = Duration::from_secs(30);
/// The version of every node: each leader claims it before it leads.
const VERSION: &str = "1.0";

/// Returns the election with all limits, if the node is to use them.
pub(crate) fn election(me: &Config, election: Election) -> anyhow::Result<Election> {
    if me.ready.is_none() {
        return Ok(election);
    }
    let election = election.serving_within(SERVING_WITHIN);
    let election = election.warm_within(WARM_WITHIN);
    Ok(election.require_version(VERSION.parse()?))
}

/// Prepares for a term or for a partition, until it is asked to stop.
pub(crate) async fn prepare(me: &Config, stopped: CancellationToken) -> Result<(), BoxError> {
    let ready = me.ready.unwrap_or_default();
    stopped.run_until_cancelled(sleep(ready)).await;
    Ok(())
}

/// The moment from which a leader serves.
pub(crate) struct Serves(Option<Instant>);

impl Serves {
    pub(crate) fn new(me: &Config) -> Self {
        Self(me.ready.map(|ready| Instant::now() + ready))
    }

    /// Says that the leader serves, once it is ready. If etcd did not accept it, the next call repeats it.
    pub(crate) async fn say(&mut self, leadership: &Leadership) {
        let is_due = self.0.is_some_and(|at| at <= Instant::now());
        if is_due && leadership.serving().await.is_ok() {
            self.0 = None;
        }
    }
}

/// Owns a share of the partitions until `shutdown`, if the node is to own some.
pub(crate) async fn own(
    me: &Config,
    session: &Session,
    history: &History,
    shutdown: CancellationToken,
) -> eldest::Result<()> {
    if me.ready.is_none() {
        return Ok(());
    }
    let partitions = session
        .partitions(&me.election, PARTITIONS)?
        .warm_within(WARM_WITHIN)
        .keep_share_for(me.ttl * 2);
    let run = partitions
        .runner()
        .prepare(|coming| prepare(me, coming.stopped()))
        .run(shutdown, |partition| {
            own_one(history.of_partition(partition.number()), partition)
        });
    run.await.map(|_: Option<()>| ())
}

/// Owns one partition, and records the term. If the library drops the work, it records only the loss.
async fn own_one(history: History, partition: Partition) -> Result<(), BoxError> {
    struct Ends<'a>(&'a History, &'a Partition);

    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            if self.1.lost().is_cancelled() {
                self.0.record(Event::Lost(self.1));
            }
        }
    }

    history.record(Event::Elected(&partition));
    let ends = Ends(&history, &partition);
    partition.lost().cancelled().await;
    drop(ends);
    history.record(Event::Released(&partition));
    Ok(())
}

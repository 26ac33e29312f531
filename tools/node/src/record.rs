//! Defines the events of a node's history, which are written to a file only with the feature `history`.

use std::convert::Infallible;
use std::future::pending;

use eldest::internal::{ChallengeStep, Challenged};
use eldest::{Member, Term};
use tokio::sync::watch;

#[cfg(feature = "history")]
mod file;
#[cfg(not(feature = "history"))]
mod none;

#[cfg(feature = "history")]
pub(crate) use file::History;
#[cfg(not(feature = "history"))]
pub(crate) use none::History;

/// Returns the name under which a history lists an election's second counter, the register.
pub fn register_name(election: &str) -> String {
    format!("{election}, in the register")
}

/// The number of partitions that nodes share; each node owns one of them if there are three.
pub const PARTITIONS: u32 = 3;

/// Returns the name under which a history lists a partition, which is an election of its own there.
pub fn partition_name(election: &str, number: u32) -> String {
    format!("{election}, partition {number}")
}

/// An event that the history keeps.
#[cfg_attr(
    not(feature = "history"),
    expect(dead_code, reason = "nobody reads what is not written down")
)]
#[derive(Clone, Copy)]
pub(crate) enum Event<'a> {
    /// The resources that the process holds, before it connects to etcd.
    Baseline,
    /// The node's own key, as the roster shows it.
    Joined(&'a Member),
    Elected(&'a Term),
    /// The token is cancelled.
    Lost(&'a Term),
    /// The work has ended, and the library is about to delete the key.
    Released(&'a Term),
    /// The counter, the token, and the outcome of a write.
    Wrote(Counter, i64, Write),
    /// The lease of a silent session that this one has condemned.
    Condemned(i64),
    /// The node is about to leave.
    Left,
}

impl History {
    /// Records every session that this one condemns. Never returns.
    pub(crate) async fn record_condemned(
        self,
        mut challenged: watch::Receiver<Challenged>,
    ) -> Infallible {
        loop {
            for suspicion in &challenged.borrow_and_update().made {
                if suspicion.step == ChallengeStep::Condemned {
                    self.record(Event::Condemned(suspicion.lease_id));
                }
            }
            if challenged.changed().await.is_err() {
                return pending().await;
            }
        }
    }
}

/// One of the two counters that a leader raises.
#[derive(Clone, Copy)]
pub(crate) enum Counter {
    /// The counter in etcd, guarded by the leader's key.
    Etcd,
    /// The register outside etcd, guarded by the highest token seen.
    #[cfg_attr(
        not(feature = "register"),
        expect(dead_code, reason = "it is not there")
    )]
    Register,
}

/// The outcome of a fenced write.
#[cfg_attr(
    not(feature = "history"),
    expect(dead_code, reason = "nobody reads what is not written down")
)]
#[derive(Clone, Copy)]
pub(crate) enum Write {
    /// The write is about to be sent, because a killed process never records the outcome.
    Sent,
    /// The write was admitted, and this is the count after it.
    Admitted(u64),
    Refused,
    Unknown,
}

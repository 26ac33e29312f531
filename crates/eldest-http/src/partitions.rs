//! Observes partitions, and shows from memory which member owns each.

use std::collections::HashMap;
use std::time::Duration;

use eldest::internal::{Freshness, Inside, SharedEnv};
use eldest::{Error, ErrorKind, PartitionMap, PartitionMapObserver, Partitions};
use futures::FutureExt;
use http::StatusCode;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::contract::millis;
use super::contract::partitions::{
    AbsentMember, KeyOwner, PartitionMember, PartitionState, PartitionsState, PartitionsSummary,
};
use super::owning::Owning;
use super::problem::Problem;
use super::view::{Age, Confirmed};

/// The largest number of partitions, and of members, in one answer or event.
pub(super) const LARGEST: usize = 1024;

/// A set of partitions, as this node knows it.
#[derive(Debug)]
pub(super) struct ObservedPartitions {
    pub(super) partitions: Partitions,
    /// The membership, if the node owns partitions on behalf of its callers.
    pub(super) owning: Option<Owning>,
    pub(super) view: watch::Receiver<View>,
    /// Ends the observer when it is dropped.
    _looking: DropGuard,
}

/// The last state of an observer.
#[derive(Debug, Clone, Default)]
pub(super) struct View {
    /// The last map. `None` if etcd has not answered yet, or if others share the partitions under another count.
    pub(super) map: Option<PartitionMap>,
    refused: Option<Refusal>,
    confirmed: Confirmed,
}

#[derive(Debug, Clone)]
struct Refusal {
    kind: ErrorKind,
    detail: String,
}

impl ObservedPartitions {
    pub(super) fn new(partitions: Partitions, owning: Option<Owning>) -> Self {
        let session = Inside::from(&partitions);
        let (env, pause) = (session.env().clone(), session.request_timeout());
        let (seen, view) = watch::channel(View::default());
        let stop = CancellationToken::new();
        let observed = partitions.clone();
        let timer = env.clone();
        let looking = async move {
            while let Ok(changes) = observed.observe().await {
                follow_map(changes, &seen).await;
                // etcd refused the watch, perhaps only for a while.
                timer.sleep(pause).await;
            }
        };
        let until = stop.clone().run_until_cancelled_owned(looking);
        env.spawn(until.map(drop).boxed());
        Self {
            partitions,
            owning,
            view,
            _looking: stop.drop_guard(),
        }
    }

    pub(super) fn age(&self, view: &View, stale_after: Option<Duration>) -> Age {
        Age::of(self.inside(), &view.confirmed, stale_after)
    }

    pub(super) fn env(&self) -> &SharedEnv {
        self.inside().env()
    }

    pub(super) fn inside(&self) -> Inside<'_> {
        Inside::from(&self.partitions)
    }

    pub(super) fn summary(&self, stale_after: Option<Duration>) -> PartitionsSummary {
        let view = self.view.borrow().clone();
        let age = self.age(&view, stale_after);
        let map = view.map.as_ref();
        PartitionsSummary {
            name: self.partitions.name().to_owned(),
            partition_count: self.partitions.count(),
            member_count: map.map(|map| map.members().len()),
            owned_count: map.map(|map| map.iter().count()),
            revision: map.map(PartitionMap::revision),
            age_ms: age.confirmed_ms(),
            stale: age.is_stale(),
            refused: view.refused.map(|refusal| refusal.detail),
        }
    }

    /// Returns the state with these partitions.
    pub(super) fn state(&self, view: &View, age: Age, listed: Listed) -> PartitionsState {
        let map = view.map.as_ref();
        PartitionsState {
            name: self.partitions.name().to_owned(),
            now_unix_ms: millis(self.env().unix_time()),
            partition_count: self.partitions.count(),
            revision: map.map(PartitionMap::revision),
            member_count: map.map(|map| map.members().len()),
            members: map.map(|map| PartitionMember::all(map).take(LARGEST).collect()),
            absent: map.map(|map| AbsentMember::all(map).take(LARGEST).collect()),
            partitions: map.map(|_| listed.partitions),
            next_from: listed.next_from,
            age_ms: age.confirmed_ms(),
            stale: age.is_stale(),
            refused: view.refused.as_ref().map(|it| it.detail.clone()),
        }
    }

    /// Returns the owner of the partition that the key belongs to.
    pub(super) fn owner(
        &self,
        stale_after: Option<Duration>,
        key: &[u8],
    ) -> Result<KeyOwner, Problem> {
        let view = self.view.borrow().clone();
        let (name, partition) = (self.partitions.name(), self.partitions.partition_for(key));
        let map = view.map.as_ref().ok_or_else(|| view.why_unknown())?;
        let owner = map.owner(partition).ok_or_else(|| {
            let detail = format!("the partition {partition} of {name:?} has no owner now");
            Problem::try_again("no_owner", detail)
        })?;
        let age = self.age(&view, stale_after);
        Ok(KeyOwner {
            name: name.to_owned(),
            partition_count: map.count(),
            partition,
            owner: owner.into(),
            revision: map.revision(),
            age_ms: age.confirmed_ms(),
            stale: age.is_stale(),
        })
    }
}

impl View {
    fn why_unknown(&self) -> Problem {
        match &self.refused {
            Some(Refusal { kind, detail }) if *kind == ErrorKind::CountMismatch => {
                Problem::new(StatusCode::CONFLICT, "count_mismatch", detail.clone())
            }
            Some(refused) => Problem::try_again("etcd", refused.detail.clone()),
            None => Problem::try_again(
                "not_observed_yet",
                "etcd has not sent the partitions to this node yet",
            ),
        }
    }

    fn refuse(&mut self, error: &Error) {
        let kind = error.kind();
        // Owners under another count do not own partitions of this one.
        if kind == ErrorKind::CountMismatch {
            self.map = None;
        }
        self.refused = Some(Refusal {
            kind,
            detail: error.report().to_string(),
        });
    }
}

/// Publishes the maps of one observer.
async fn follow_map(mut changes: PartitionMapObserver, view: &watch::Sender<View>) {
    // This change needs no notification of callers.
    view.send_if_modified(|view| {
        view.confirmed.begin(Freshness::of_map(&changes));
        false
    });
    while let Some(change) = changes.next().await {
        view.send_modify(|view| {
            view.confirmed.take();
            match change {
                Ok(map) => {
                    view.confirmed.fix(map.as_of());
                    view.map = Some(map);
                    view.refused = None;
                }
                Err(error) => view.refuse(&error),
            }
        });
    }
}

/// Returns the fields of a partition's owner that answers show. They are borrowed, because each change compares all
/// partitions.
fn shown(map: &PartitionMap, partition: u32) -> Option<(&str, Option<&str>, i64, i64)> {
    let owner = map.owner(partition)?;
    Some((
        owner.identity(),
        owner.address(),
        owner.fencing_token(),
        owner.lease_id(),
    ))
}

/// A list of as many partitions as one answer has room for.
#[derive(Default)]
pub(super) struct Listed {
    partitions: Vec<PartitionState>,
    pub(super) next_from: Option<u32>,
}

impl Listed {
    /// Lists partitions of the map from that one on, except those that are the same in `before`.
    pub(super) fn of(map: &PartitionMap, from: u32, before: Option<&PartitionMap>) -> Self {
        let blocked: HashMap<u32, _> = map.blocked().collect();
        let blocked_before: HashMap<u32, _> = before.iter().flat_map(|map| map.blocked()).collect();
        let kept_for = |map: &PartitionMap, partition: u32| {
            let share = map.kept_share(partition);
            share.map(|share| share.identity().to_owned())
        };
        let is_same = |partition: u32, before: &PartitionMap| {
            blocked.get(&partition) == blocked_before.get(&partition)
                && kept_for(map, partition) == kept_for(before, partition)
                && shown(map, partition) == shown(before, partition)
        };
        let mut changed =
            (from..map.count()).filter(|at| before.is_none_or(|before| !is_same(*at, before)));
        let partitions = changed.by_ref().take(LARGEST);
        let partitions = partitions.map(|at| PartitionState::of(map, at, blocked.get(&at)));
        Self {
            partitions: partitions.collect(),
            next_from: changed.next(),
        }
    }
}

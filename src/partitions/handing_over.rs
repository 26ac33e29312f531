//! Hands a member's partitions over before the member leaves: it announces that it takes none, and owns each until the
//! next owner is ready for it.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{PartitionMembership, Partitions};
use crate::election::Announcer;
use crate::error::ErrorKind;
use crate::observe::PartitionMap;
use crate::state::{live_lease, share};
use eldest_etcd::runtime::timeout;

/// The way in which a member leaves after its shutdown.
pub(super) struct Leaving {
    partitions: Partitions,
    announcer: Announcer,
    /// How long the member hands over its partitions; `None`: it leaves at once.
    limit: Option<Duration>,
}

impl Leaving {
    pub(super) fn new(
        partitions: &Partitions,
        member: &PartitionMembership,
        limit: Option<Duration>,
    ) -> Self {
        Self {
            partitions: partitions.clone(),
            announcer: member.announcer(),
            limit,
        }
    }

    /// Completes when the member must leave: at `shutdown`, or later if it hands over its partitions before.
    pub(super) async fn after(self, shutdown: &CancellationToken) {
        shutdown.cancelled().await;
        let Some(limit) = self.limit else {
            return;
        };
        let shared = &self.partitions.handle.shared;
        let (identity, partitions) = (&*shared.settings.identity, self.partitions.name());
        tracing::info!(target: "eldest::election", identity, partitions, ?limit, "hands over its partitions before it leaves");
        if timeout(&*shared.env, limit, self.hand_over())
            .await
            .is_none()
        {
            tracing::warn!(target: "eldest::election", identity, partitions, ?limit, "leaves before all of its partitions have moved");
        }
    }

    /// Completes when other members own all partitions, or when no other member takes any.
    async fn hand_over(&self) {
        let shared = &self.partitions.handle.shared;
        while let Err(error) = self.announcer.hand_over().await {
            if error.kind() == ErrorKind::Closed {
                return;
            }
            shared.env.sleep(shared.settings.request_timeout).await;
        }
        while let Ok(mut maps) = self.partitions.observe().await {
            while let Some(map) = maps.next().await {
                let lease = live_lease(&shared.state.borrow());
                if map.is_ok_and(|map| !is_awaited(&map, lease)) {
                    return;
                }
            }
            // etcd refused the watch, perhaps only for a while.
            shared.env.sleep(shared.settings.request_timeout).await;
        }
    }
}

/// Returns true if the member with that lease owns a partition that another member will take.
fn is_awaited(map: &PartitionMap, lease: Option<i64>) -> bool {
    let mut others = map.members().iter();
    let takes = others
        .any(|member| Some(member.lease_id()) != lease && !share(&member.entry().value).aside);
    takes && map.iter().any(|(_, owner)| Some(owner.lease_id()) == lease)
}

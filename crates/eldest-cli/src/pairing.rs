//! Challenges both sessions of a silent node at once: the one of its election, lock or partitions, which this node's first
//! session challenges, and the one that holds the locks of its programs.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::mem;

use eldest::internal::{self, ChallengeStep, Suspicion};
use eldest::{Partitions, Result, Session};

use crate::resource::{Resource, Sharing, lock_of_partition};

/// The programs of the nodes.
pub(crate) enum Programs {
    /// Programs of an election, lock or semaphore, under a lock of that name.
    Of(String, Sharing),
    /// One for each partition.
    OfPartitions(Partitions),
}

impl Programs {
    /// Returns the lock of one program of the node of that name, if the node may have one.
    async fn lock(&self, guards: &Session, identity: &str) -> Result<Option<Resource>> {
        match self {
            Self::Of(name, sharing) => Resource::new(guards, name, *sharing).map(Some),
            Self::OfPartitions(partitions) => {
                let map = partitions.map().await?;
                let mut owned = map.iter();
                let owned = owned.find(|(_, owner)| owner.identity() == identity);
                let name = owned.map(|(number, _)| lock_of_partition(partitions, number));
                name.map(|name| Resource::new(guards, &name, Sharing::Alone))
                    .transpose()
            }
        }
    }
}

/// Challenges by `guards` the holder of a program's lock, as soon as `session` suspects the node of that name, so that a
/// takeover takes the time to answer once. Without this, the next node would find out that the holder is silent when it
/// leads. Returns when the session is closed.
pub(crate) async fn challenge_both(session: Session, guards: Session, programs: Programs) {
    let mut seen = internal::watch_challenges(&session);
    // The leases of the holders that were challenged, by the number of the suspicion.
    let mut holders = BTreeMap::<u64, Vec<i64>>::new();
    loop {
        let made = seen.borrow_and_update().made.clone();
        holders.retain(|number, _| made.iter().any(|suspicion| suspicion.number == *number));
        for suspicion in made {
            match holders.entry(suspicion.number) {
                // A condemned session is gone, and its node's other session still has to answer.
                Entry::Occupied(challenged)
                    if suspicion.is_over && suspicion.step != ChallengeStep::Condemned =>
                {
                    for lease in mem::take(challenged.into_mut()) {
                        // A session that is closed challenges nobody.
                        let _ = internal::suspect(&guards, lease, false);
                    }
                }
                Entry::Vacant(new) if !suspicion.is_over => {
                    // If etcd does not answer, the holder is challenged when this node leads.
                    let leases = challenge_holders(&guards, &suspicion, &programs).await;
                    new.insert(leases.unwrap_or_default());
                }
                _ => {}
            }
        }
        if seen.changed().await.is_err() {
            return;
        }
    }
}

/// Challenges the sessions of the suspected node that hold the lock. Returns their leases.
async fn challenge_holders(
    guards: &Session,
    suspicion: &Suspicion,
    programs: &Programs,
) -> Result<Vec<i64>> {
    let Some(identity) = suspicion.identity.as_deref() else {
        return Ok(Vec::new());
    };
    let Some(lock) = programs.lock(guards, identity).await? else {
        return Ok(Vec::new());
    };
    let roster = lock.roster().await?;
    let mut leases = Vec::new();
    for member in roster.members() {
        if member.identity() == identity {
            internal::suspect_holder(guards, member)?;
            leases.push(member.lease_id());
        }
    }
    Ok(leases)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use eldest::{BoxError, Challenges, SessionOptions};
    use eldest_testing::{MemoryEtcd, crash};
    use tokio::time::{Instant, sleep, timeout};

    use super::*;
    use crate::supervise::warm_up;

    /// The time to answer, far below the TTL.
    const D: Duration = Duration::from_secs(2);

    async fn session(etcd: &MemoryEtcd, identity: &str) -> Result<Session> {
        let options = SessionOptions::new(identity)
            .ttl(Duration::from_secs(60))
            .grace(D / 10)
            .challenges(Challenges::answer_within(D));
        etcd.session(options).await
    }

    /// No candidate of the other node waits for the lock, which its second session would find silent much later.
    #[tokio::test(start_paused = true)]
    async fn lock_of_a_silent_nodes_partition_is_free_when_its_member_is_condemned()
    -> Result<(), BoxError> {
        let etcd = MemoryEtcd::start();
        let (silent, guards) = (session(&etcd, "a").await?, session(&etcd, "a").await?);
        let mut member = silent.partitions("p", 1)?.join().await?;
        let owned = member.owned().await?;
        let lock = lock_of_partition(&silent.partitions("p", 1)?, owned.number());
        let _held = guards.lock(&lock)?.acquire().await?;

        let (next, next_guards) = (session(&etcd, "b").await?, session(&etcd, "b").await?);
        warm_up(&next_guards).await?;
        let partitions = next.partitions("p", 1)?;
        let mut successor = partitions.join().await?;
        let programs = Programs::OfPartitions(partitions);
        tokio::spawn(challenge_both(next.clone(), next_guards.clone(), programs));
        sleep(D).await;
        crash(&silent)?;
        crash(&guards)?;
        let begun = Instant::now();
        internal::suspect(&next, owned.term().lease_id(), true)?;
        let _next = timeout(D * 2, successor.owned()).await??;
        let at_once = next_guards.lock(&lock)?;
        let _lock = timeout(D / 2, at_once.acquire()).await??;
        let took = begun.elapsed();
        assert!(took < D + D / 2, "{took:?}");
        Ok(())
    }
}

//! Tests what challenges free when a session falls silent: its locks, permits, partitions and places in groups, after its
//! time to answer.

use std::time::Duration;

use crate::common::{Result, identities, in_memory, nothing_under, options, soon};
use eldest::{Challenges, Partition, PartitionMembership, Session, Status, internal};
use eldest_testing::{MemoryEtcd, crash};
use tokio::time::Instant;

/// The time to answer, far below the TTL of [`options`].
const D: Duration = Duration::from_secs(2);
/// The time that etcd in memory, and the pauses of requests, take at most.
const REQUESTS: Duration = Duration::from_millis(300);

async fn challenged(etcd: &MemoryEtcd, identity: &str) -> Result<Session> {
    let options = options(identity).grace(D / 10);
    let challenges = Challenges::answer_within(D);
    Ok(etcd.session(options.challenges(challenges)).await?)
}

/// Crashes the session of that lease, and makes the other one suspect it.
fn falls_silent(silent: &Session, lease: i64, by: &Session) -> Result<Instant> {
    crash(silent)?;
    internal::suspect(by, lease, true)?;
    Ok(Instant::now())
}

/// Asserts that a successor took over after the time to answer, with drift and margin, and not later.
fn took_once(begun: Instant) {
    let (took, waits) = (begun.elapsed(), D.mul_f64(1.001) + D / 20);
    assert!(took >= waits && took < waits + REQUESTS, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn lock_of_a_silent_holder_is_free_after_its_time_to_answer() -> Result {
    let etcd = in_memory();
    let [a, b] = [challenged(&etcd, "a").await?, challenged(&etcd, "b").await?];
    let held = soon("acquire", a.lock("l")?.acquire()).await?;
    let lock = b.lock("l")?;
    let waiting = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(D).await;
    let begun = falls_silent(&a, held.lease_id(), &b)?;
    let next = waiting.await??;
    took_once(begun);
    assert!(next.is_valid() && !held.is_valid());
    assert!(next.fencing_token() > held.fencing_token());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn permit_of_a_silent_holder_is_free_and_the_other_one_stays() -> Result {
    let etcd = in_memory();
    let [a, b, c] = [
        challenged(&etcd, "a").await?,
        challenged(&etcd, "b").await?,
        challenged(&etcd, "c").await?,
    ];
    let silent = soon("a permit", a.semaphore("s", 2)?.acquire()).await?;
    let stays = soon("a permit", b.semaphore("s", 2)?.acquire()).await?;
    let semaphore = c.semaphore("s", 2)?;
    let waiting = tokio::spawn(async move { semaphore.acquire().await });
    tokio::time::sleep(D).await;
    let begun = falls_silent(&a, silent.lease_id(), &c)?;
    let next = waiting.await??;
    took_once(begun);
    assert!(next.is_valid() && stays.is_valid() && !silent.is_valid());
    Ok(())
}

async fn owned(member: &mut PartitionMembership) -> Result<Partition> {
    Ok(soon("a partition", member.owned()).await?)
}

#[tokio::test(start_paused = true)]
async fn partitions_of_a_silent_member_move_after_its_time_to_answer() -> Result {
    let etcd = in_memory();
    let [a, b] = [challenged(&etcd, "a").await?, challenged(&etcd, "b").await?];
    let partitions = [a.partitions("p", 2)?, b.partitions("p", 2)?];
    let mut first = soon("join", partitions[0].join()).await?;
    let all = [owned(&mut first).await?, owned(&mut first).await?];
    let mut second = soon("join", partitions[1].join()).await?;
    let lost = all
        .iter()
        .map(|it| Box::pin(it.term().lost().cancelled_owned()));
    futures::future::select_all(lost).await;
    let [one, other] = all;
    let silent = if one.is_valid() {
        drop(other);
        one
    } else {
        drop(one);
        other
    };
    let _moved = owned(&mut second).await?;
    let begun = falls_silent(&a, silent.term().lease_id(), &b)?;
    let next = owned(&mut second).await?;
    took_once(begun);
    assert_eq!(next.number(), silent.number());
    assert!(next.is_valid() && !silent.is_valid());
    Ok(())
}

/// The eldest is watched by the next one, and the youngest by the eldest.
#[tokio::test(start_paused = true)]
async fn silent_member_is_gone_from_its_group_after_its_time_to_answer() -> Result {
    for (silent, by) in [(0, 1), (2, 0)] {
        let etcd = in_memory();
        let sessions = [
            challenged(&etcd, "a").await?,
            challenged(&etcd, "b").await?,
            challenged(&etcd, "c").await?,
        ];
        let mut memberships = Vec::new();
        for session in &sessions {
            memberships.push(soon("join", session.group("g")?.join()).await?);
        }
        let group = sessions[by].group("g")?;
        let mut changes = group.observe().await?;
        let all = soon("the members", changes.next()).await.unwrap()?;
        assert_eq!(identities(&all), ["a", "b", "c"]);
        tokio::time::sleep(D).await;
        let lease = all.members()[silent].lease_id();
        let begun = falls_silent(&sessions[silent], lease, &sessions[by])?;
        let left = soon("a change", changes.next()).await.unwrap()?;
        took_once(begun);
        assert_eq!(left.members().len(), 2);
        assert!(left.members().iter().all(|m| m.lease_id() != lease));
        assert_eq!(memberships[by].status(), Status::Present);
    }
    Ok(())
}

/// No other member of the group is left to watch it.
#[tokio::test(start_paused = true)]
async fn silent_member_leaves_its_group_with_the_lease_that_an_election_condemns() -> Result {
    let etcd = in_memory();
    let [a, b] = [challenged(&etcd, "a").await?, challenged(&etcd, "b").await?];
    let _member = soon("join", a.group("g")?.join()).await?;
    let group = b.group("g")?;
    let mut leader = soon("campaign", a.election("e")?.campaign()).await?;
    let leads = soon("a term", leader.elected()).await?;
    let mut next = soon("campaign", b.election("e")?.campaign()).await?;
    tokio::time::sleep(D).await;
    assert_eq!(identities(&group.members().await?), ["a"]);
    let begun = falls_silent(&a, leads.lease_id(), &b)?;
    let _next = next.elected().await?;
    nothing_under(&mut etcd.client().await, group.prefix()).await?;
    took_once(begun);
    Ok(())
}

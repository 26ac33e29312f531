//! Tests sessions that allow challenges: a silent leader is succeeded after the time to answer, and one that lives is
//! not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{Key, Result, Running, elected, in_memory, keys, only_key, options, soon};
use eldest::{Announcement, Challenges, Election, Leadership, Session, internal};
use eldest_testing::{MemoryEtcd, crash};
use tokio::time::{Instant, sleep};

/// The time to answer, far below the TTL of [`options`].
const D: Duration = Duration::from_secs(2);
/// The time that etcd in memory, and the pauses of requests, take at most.
const REQUESTS: Duration = Duration::from_millis(300);

async fn challenged(etcd: &MemoryEtcd, identity: &str) -> Result<Session> {
    let options = options(identity).grace(D / 10);
    Ok(etcd
        .session(options.challenges(Challenges::answer_within(D)))
        .await?)
}

async fn leading(session: &Session) -> Result<(Election, Leadership)> {
    let election = session.election("e")?;
    let mut candidate = soon("campaign", election.campaign()).await?;
    let leadership = elected(&mut candidate).await?;
    // The candidate's handle is kept by the task, so that it stays in the queue.
    tokio::spawn(async move { candidate.elected().await });
    Ok((election, leadership))
}

fn anchor(key: &Key) -> Option<(String, i64)> {
    let value: serde_json::Value = serde_json::from_str(&key.value).ok()?;
    let anchor = value.get("anchor")?;
    let path = anchor["key"].as_str()?.to_owned();
    Some((path, anchor["create_revision"].as_i64()?))
}

#[tokio::test(start_paused = true)]
async fn silent_leader_is_succeeded_after_its_time_to_answer() -> Result {
    let etcd = in_memory();
    let [a, b] = [challenged(&etcd, "a").await?, challenged(&etcd, "b").await?];
    let (_election, first) = leading(&a).await?;
    let mut second = soon("campaign", b.election("e")?.campaign()).await?;
    // The first session announces no address, so it is challenged once after 2 D.
    sleep(D * 4).await;
    assert!(first.is_valid(), "clean reads move its deadline");
    assert!(first.valid_until().time_left() < D);

    crash(&a)?;
    let begun = Instant::now();
    let (lost, silent) = (first.lost(), first.term());
    let ended = tokio::spawn(async move {
        lost.cancelled().await;
        Instant::now()
    });
    internal::suspect(&b, first.lease_id(), true)?;
    let next = elected(&mut second).await?;
    let took = begun.elapsed();
    assert!(!silent.is_valid() && next.is_valid());
    assert!(ended.await? < Instant::now(), "the token came first");
    let waits = D.mul_f64(1.001) + D / 20;
    assert!(took >= waits && took < waits + REQUESTS, "{took:?}");
    assert!(next.fencing_token() > silent.fencing_token());
    // The condemned session's anchor, key and lease are gone, and the challenge too.
    let mut client = etcd.client().await;
    let sessions = only_key(&mut client, "eldest/~session/").await;
    assert_eq!(sessions.lease, next.lease_id());
    assert_eq!(
        only_key(&mut client, "eldest/e/").await.lease,
        next.lease_id()
    );
    assert_eq!(client.leases().await?.leases().len(), 1);
    Ok(())
}

/// Two candidates wait in each of its elections: those that may challenge it.
#[tokio::test(start_paused = true)]
async fn hundred_challengers_condemn_a_leader_only_once_it_is_silent() -> Result {
    const ELECTIONS: usize = 50;
    let etcd = in_memory();
    let a = challenged(&etcd, "a").await?;
    let (mut terms, mut sessions, mut candidates) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..ELECTIONS {
        let name = format!("e{number}");
        let mut leads = soon("campaign", a.election(&name)?.campaign()).await?;
        terms.push((elected(&mut leads).await?, leads));
        for place in 0..2 {
            let session = challenged(&etcd, &format!("b{number}-{place}")).await?;
            candidates.push(soon("campaign", session.election(&name)?.campaign()).await?);
            sessions.push(session);
        }
    }
    let lease = terms[0].0.lease_id();
    let suspect = |is_silent| {
        let mut all = sessions.iter();
        all.try_for_each(|session| internal::suspect(session, lease, is_silent))
    };
    for _ in 0..2 {
        suspect(true)?;
        sleep(D * 2).await;
        assert!(terms.iter().all(|(term, _)| term.is_valid()));
        suspect(false)?;
        sleep(D / 4).await;
    }

    crash(&a)?;
    let begun = Instant::now();
    suspect(true)?;
    sleep(D / 2).await;
    let mut client = etcd.client().await;
    let below = format!("eldest/~session/{lease:x}/challenges/");
    assert_eq!(keys(&mut client, &below).await.len(), sessions.len());
    for next in candidates.iter_mut().step_by(2) {
        let next = elected(next).await?;
        assert!(next.is_valid() && terms.iter().all(|(term, _)| !term.is_valid()));
    }
    let took = begun.elapsed();
    assert!(took < D.mul_f64(1.001) + D / 20 + REQUESTS, "{took:?}");
    sleep(D).await;
    assert_eq!(keys(&mut client, &below).await, []);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn work_that_winds_up_after_shutdown_is_covered_by_clean_reads() -> Result {
    let etcd = in_memory();
    let a = challenged(&etcd, "a").await?;
    let covered = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&covered);
    let running = Running::start(&a.election("e")?, move |leadership: Leadership| {
        let covered = Arc::clone(&seen);
        async move {
            leadership.lost().cancelled().await;
            sleep(D * 3).await;
            covered.store(leadership.is_valid(), Ordering::SeqCst);
            Ok(())
        }
    });
    sleep(D).await;
    running.stop().await?;
    assert!(covered.load(Ordering::SeqCst));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn candidates_announce_the_anchor_as_long_as_they_stand() -> Result {
    let etcd = in_memory();
    let a = challenged(&etcd, "a").await?;
    let election = a.election("e")?;
    let mut candidate = soon("campaign", election.campaign()).await?;
    let leadership = elected(&mut candidate).await?;
    let mut client = etcd.client().await;
    let own = only_key(&mut client, "eldest/~session/").await;
    let announces = async |client: &mut _| {
        let key = only_key(client, "eldest/e/").await;
        assert_eq!(anchor(&key), Some((own.path.clone(), own.created)));
        key
    };
    announces(&mut client).await;
    let changed = Announcement::default().with_address("a:1");
    leadership.proclaim(changed).await?;
    announces(&mut client).await;
    let address = async || -> Result<Option<String>> {
        let roster = election.roster().await?;
        let leader = roster.leader().ok_or("a leader")?;
        assert_eq!(leader.identity(), "a");
        Ok(leader.announcement().address().map(str::to_owned))
    };
    assert_eq!(address().await?.as_deref(), Some("a:1"));
    // A key that replaces it announces the same anchor.
    let first = announces(&mut client).await;
    client.delete(first.path.as_str(), None).await?;
    drop(leadership);
    let next = elected(&mut candidate).await?;
    let second = announces(&mut client).await;
    assert_eq!(second.created, next.fencing_token());
    assert!(second.created > first.created);
    assert_eq!(address().await?.as_deref(), Some("a:1"));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn anchors_are_no_queues_in_an_overview() -> Result {
    let etcd = in_memory();
    let a = challenged(&etcd, "a").await?;
    let (_election, leadership) = leading(&a).await?;
    let overview = a.overview("").await?;
    let names: Vec<_> = overview.queues().iter().map(eldest::Queue::name).collect();
    assert_eq!(names, ["e"]);
    assert!(a.election_at("other/~session/x").is_err());
    drop(leadership);
    a.close().await?;
    let left = keys(&mut etcd.client().await, "").await;
    assert_eq!(left, [], "the anchor went with its lease");
    Ok(())
}

//! Tests one candidacy from join to end, on every supported version of etcd.
#![allow(clippy::disallowed_methods)] // tests run in real time

use std::collections::BTreeMap;
use std::time::Duration;

use eldest::{
    BoxError, CancellationToken, ErrorKind, LostReason, Observer, Op, Roster, Session,
    SessionOptions, Status,
};
use eldest_testing::{Etcd, Proxy, eventually};
use etcd_client::{Client, GetOptions};
use tokio::time::timeout;

type Result<T = ()> = std::result::Result<T, BoxError>;

const TTL: Duration = Duration::from_secs(3);

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(30);

async fn session(endpoint: String, identity: &str) -> Result<Session> {
    let options = SessionOptions::new(identity).ttl(TTL);
    Ok(Session::connect([endpoint], options).await?)
}

/// Returns the next state with exactly these candidates, eldest first.
async fn standing(observer: &mut Observer, wanted: &[&str]) -> Result<Roster> {
    let names = |roster: &Roster| -> Vec<String> {
        let members = roster.members().iter();
        members.map(|member| member.identity().to_owned()).collect()
    };
    let there = async {
        loop {
            match observer.next().await {
                Some(Ok(roster)) if names(&roster) == wanted => return Result::Ok(roster),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error.into()),
                None => return Err("the observer ended".into()),
            }
        }
    };
    timeout(LONG, there).await?
}

/// Checks that etcd holds no key and no lease.
async fn nothing_is_left(client: &mut Client) -> Result {
    let all = GetOptions::new().with_all_keys().with_keys_only();
    let keys = client.get("", Some(all)).await?;
    assert!(keys.kvs().is_empty(), "left: {:?}", keys.kvs());
    assert_eq!(client.leases().await?.leases().len(), 0, "no lease is left");
    Ok(())
}

#[tokio::test]
async fn the_eldest_leads_and_the_next_follows_and_nothing_is_left() -> Result {
    let etcd = Etcd::start().await?;
    let a = session(etcd.endpoint(), "a").await?;
    let b = session(etcd.endpoint(), "b").await?;
    let dashboard = session(etcd.endpoint(), "dashboard").await?;
    let mut observer = dashboard.election("jobs")?.observe().await?;
    assert!(standing(&mut observer, &[]).await?.is_vacant());

    let mut elder = a.election("jobs")?.campaign().await?;
    let mut younger = b.election("jobs")?.campaign().await?;
    let first = timeout(LONG, elder.elected()).await??;
    assert!(first.is_valid());
    let mut status = younger.subscribe();
    let second_in_line = Status::waiting(1);
    timeout(LONG, status.wait_for(|s| *s == second_in_line)).await??;

    let roster = standing(&mut observer, &["a", "b"]).await?;
    let seen = roster.leader().expect("somebody leads");
    assert_eq!(seen.create_revision(), first.fencing_token());
    assert_eq!(seen.key(), first.key());
    let asked = b.election("jobs")?.leader().await?;
    assert_eq!(asked.as_ref(), Some(seen));

    let term = first.term();
    let put = Op::put("eldest/written", "by a");
    term.txn([put]).await?;
    first.proclaim("a, still here").await?;
    standing(&mut observer, &["a, still here", "b"]).await?;

    first.resign().await?;
    assert!(!term.is_valid());
    assert_eq!(term.lost_reason(), Some(LostReason::Resigned));
    let second = timeout(LONG, younger.elected()).await??;
    assert!(second.fencing_token() > term.fencing_token());
    standing(&mut observer, &["b"]).await?;
    let put = Op::put("eldest/written", "too late");
    let refused = term.txn([put]).await.expect_err("its term is over");
    assert_eq!(refused.kind(), ErrorKind::LeadershipLost);

    drop(second);
    standing(&mut observer, &[]).await?;
    for session in [a, b, dashboard] {
        session.close().await?;
    }
    let mut client = etcd.client().await;
    let written = client.delete("eldest/written", None).await?;
    assert_eq!(
        written.deleted(),
        1,
        "what the leader wrote is not ours to remove"
    );
    nothing_is_left(&mut client).await
}

#[tokio::test]
async fn a_leader_out_of_reach_stops_before_the_next_one_leads() -> Result {
    let etcd = Etcd::start().await?;
    let proxy = Proxy::start(etcd.address()).await?;
    let a = session(proxy.endpoint(), "a").await?;
    let b = session(etcd.endpoint(), "b").await?;
    let mut elder = a.election("jobs")?.campaign().await?;
    let first = timeout(LONG, elder.elected()).await??;
    let mut younger = b.election("jobs")?.campaign().await?;

    // Connections that merely break cost nothing.
    let valid_until = first.valid_until().since_boot();
    proxy.drop_connections();
    eventually(LONG, "renewed over new connections", async || {
        (first.valid_until().since_boot() > valid_until).then_some(())
    })
    .await?;
    assert_eq!(first.lost_reason(), None);

    proxy.cut();
    let token = first.lost();
    let second = timeout(LONG, younger.elected()).await??;
    assert!(!first.is_valid(), "two leaders at a time");
    assert!(token.is_cancelled());
    assert_eq!(first.lost_reason(), Some(LostReason::LeaseExpiring));
    assert!(second.fencing_token() > first.fencing_token());

    proxy.heal();
    drop(first);
    let mut status = elder.subscribe();
    let behind = Status::waiting(1);
    timeout(LONG, status.wait_for(|s| *s == behind)).await??;
    second.resign().await?;
    let third = timeout(LONG, elder.elected()).await??;
    third.resign().await?;
    a.close().await?;
    b.close().await?;
    nothing_is_left(&mut etcd.client().await).await
}

#[tokio::test]
async fn a_lock_and_a_semaphore_are_passed_on() -> Result {
    let etcd = Etcd::start().await?;
    let a = session(etcd.endpoint(), "a").await?;
    let b = session(etcd.endpoint(), "b").await?;
    let (ours, theirs) = (a.lock("l")?, b.lock("l")?);
    let guard = timeout(LONG, ours.try_acquire()).await??.ok_or("free")?;
    assert!(timeout(LONG, theirs.try_acquire()).await??.is_none());
    let token = guard.fencing_token();
    drop(guard);
    let guard = timeout(LONG, theirs.acquire()).await??;
    assert!(guard.fencing_token() > token);
    guard.release().await?;

    let (ours, theirs) = (a.semaphore("s", 2)?, b.semaphore("s", 2)?);
    let first = timeout(LONG, ours.acquire()).await??;
    let second = timeout(LONG, theirs.try_acquire())
        .await??
        .ok_or("one is free")?;
    assert!(timeout(LONG, theirs.try_acquire()).await??.is_none());
    let other = session(etcd.endpoint(), "c").await?;
    let error = timeout(LONG, other.semaphore("s", 3)?.acquire()).await?;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::CapacityMismatch);
    drop((first, second));
    for session in [a, b, other] {
        session.close().await?;
    }
    nothing_is_left(&mut etcd.client().await).await
}

#[tokio::test]
async fn partitions_are_shared_and_handed_over() -> Result {
    const COUNT: u32 = 150; // more than one transaction takes
    let etcd = Etcd::start().await?;
    let a = session(etcd.endpoint(), "a").await?;
    let b = session(etcd.endpoint(), "b").await?;
    let mut tokens = BTreeMap::new();
    let mut owned = Vec::new();
    let mut first = a.partitions("p", COUNT)?.join().await?;
    while owned.len() < COUNT as usize {
        owned.push(timeout(LONG, first.owned()).await??);
    }
    for partition in &owned {
        tokens.insert(partition.number(), partition.fencing_token());
    }
    let shared = b.partitions("p", COUNT)?;
    let mut second = shared.join().await?;
    let mut moved = Vec::new();
    timeout(LONG, async {
        while moved.len() < COUNT as usize / 2 {
            // A moving partition is released when its work has ended.
            owned.retain(|partition| !partition.lost().is_cancelled());
            let next = timeout(Duration::from_millis(50), second.owned()).await;
            if let Ok(partition) = next {
                moved.push(partition?);
            }
        }
        Result::Ok(())
    })
    .await??;
    for partition in &moved {
        assert!(partition.fencing_token() > tokens[&partition.number()]);
        assert!(partition.is_valid());
    }
    let map = shared.map().await?;
    assert_eq!((map.members().len(), map.unowned().count()), (2, 0));
    drop((owned, moved));
    a.close().await?;
    b.close().await?;
    nothing_is_left(&mut etcd.client().await).await
}

#[tokio::test]
async fn work_runs_while_its_node_leads_and_ends_on_shutdown() -> Result {
    let etcd = Etcd::start().await?;
    let a = session(etcd.endpoint(), "a").await?;
    let election = a.election("jobs")?;
    let shutdown = CancellationToken::new();
    let mut terms = Vec::new();
    let run = election.run(shutdown.clone(), |leadership| {
        terms.push(leadership.fencing_token());
        shutdown.cancel();
        async move {
            leadership.lost().cancelled().await;
            Ok::<_, eldest::BoxError>(())
        }
    });
    timeout(LONG, run).await??;
    assert_eq!(terms.len(), 1);
    assert!(election.roster().await?.is_vacant(), "released on return");
    a.close().await?;
    nothing_is_left(&mut etcd.client().await).await
}

#[tokio::test]
async fn a_candidate_with_an_unread_victory_leaves_cleanly() -> Result {
    let etcd = Etcd::start().await?;
    let a = session(etcd.endpoint(), "a").await?;
    let election = a.election("jobs")?;
    let mut candidate = election.campaign().await?;
    let mut status = candidate.subscribe();
    let leading = status.wait_for(|s| matches!(s, Status::Leading { .. }));
    timeout(LONG, leading).await??;
    candidate.leave().await?;
    assert!(election.roster().await?.is_vacant(), "the key is gone");
    let ended = candidate.elected().await.expect_err("it left");
    assert_eq!(ended.kind(), ErrorKind::Ended);
    a.close().await?;
    nothing_is_left(&mut etcd.client().await).await
}

//! Tests candidates: waiting, leaving, proclaiming, and rejoining after their key was removed.

use std::time::Duration;

use crate::common::{
    Key, Result, SOON, WHILE, behind_a_proxy, elected, in_memory, join_election, key_exists, keys,
    only_key, options, session, soon, status, stays,
};
use eldest::{Announcement, EndReason, ErrorKind, LostReason, Session, Status};
use eldest_testing::eventually;
use etcd_client::Client;

/// Returns the key whose value names that identity.
async fn key_of(client: &mut Client, identity: &str) -> Option<Key> {
    let mut all = keys(client, "eldest/e/").await;
    all.retain(|key| key.is_of(identity));
    all.pop()
}

/// Waits until the identity has a key younger than `created`.
async fn await_rejoin(client: &mut Client, identity: &str, created: i64) -> Result<Key> {
    Ok(eventually(SOON, format!("{identity} rejoins"), async || {
        key_of(client, identity)
            .await
            .filter(|key| key.created > created)
    })
    .await?)
}

#[tokio::test]
async fn a_candidate_whose_etcd_is_away_is_joining() -> Result {
    let (etcd, proxy) = behind_a_proxy().await?;
    let mut client = etcd.client().await;
    let session = Session::connect([proxy.endpoint()], options("a")).await?;
    let mut candidate = soon("campaign", session.election("e")?.campaign()).await?;
    let leadership = elected(&mut candidate).await?;
    client.delete(leadership.key(), None).await?;
    soon("the token", leadership.lost().cancelled()).await;
    let ending = Status::ending(LostReason::KeyDeleted);
    assert_eq!(candidate.status(), ending);
    proxy.cut();
    drop(leadership);
    status(&candidate, |s| *s == Status::Joining).await?;
    proxy.heal();
    assert!(elected(&mut candidate).await?.is_valid());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn dropped_waits_lose_neither_place_nor_victory() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_a, _, mut a) = join_election(&etcd, "a").await?;
    let first = elected(&mut a).await?;
    let (_b, _, mut b) = join_election(&etcd, "b").await?;
    let created = key_of(&mut client, "b")
        .await
        .expect("b is a candidate")
        .created;
    for _ in 0..100 {
        let waiting = tokio::time::timeout(Duration::from_micros(200), b.elected()).await;
        assert!(waiting.is_err(), "a leads");
    }
    drop(first);
    // Won while no call awaits it; waits are dropped in the middle of the victory.
    for _ in 0..20 {
        if let Ok(won) = tokio::time::timeout(Duration::ZERO, b.elected()).await {
            assert_eq!(won?.fencing_token(), created);
            return Ok(());
        }
    }
    status(&b, |s| matches!(s, Status::Leading { .. })).await?;
    let leadership = elected(&mut b).await?;
    assert!(leadership.is_valid());
    assert_eq!(leadership.fencing_token(), created);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn leaving_returns_when_the_key_is_gone_for_certain() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_a, _, _first) = join_election(&etcd, "a").await?;
    let (_b, _, mut b) = join_election(&etcd, "b").await?;
    soon("leave", b.leave()).await?;
    assert_eq!(key_of(&mut client, "b").await, None);
    let ended = Status::ended(EndReason::Left);
    assert_eq!(b.status(), ended);
    soon("leaving again is no error", b.leave()).await?;
    let error = soon("elected", b.elected()).await.expect_err("it left");
    assert_eq!(error.kind(), ErrorKind::Ended);
    let error = soon("proclaim", b.proclaim("x"))
        .await
        .expect_err("it left");
    assert_eq!(error.kind(), ErrorKind::Ended);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn leaving_while_leading_leads_on_to_the_end_of_that_term() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_a, _, mut a) = join_election(&etcd, "a").await?;
    let leadership = elected(&mut a).await?;
    let error = tokio::time::timeout(WHILE, a.leave()).await;
    assert!(error.is_err(), "the term goes on: {error:?}");
    assert!(leadership.is_valid());
    client.delete(leadership.key(), None).await?;
    soon("the token", leadership.lost().cancelled()).await;
    drop(leadership);
    soon("leave", a.leave()).await?;
    let error = soon("elected", a.elected())
        .await
        .expect_err("no other term");
    assert_eq!(error.kind(), ErrorKind::Ended);
    assert_eq!(keys(&mut client, "eldest/").await, []);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_campaign_dropped_midway_leaves_no_key() -> Result {
    // Complaint 4. Behind a leader, because a term that no caller takes would be released anyway.
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_b, _, mut b) = join_election(&etcd, "b").await?;
    let leads = elected(&mut b).await?;
    let session = session(&etcd, "a").await?;
    let election = session.election("e")?;
    for step in 0..40u64 {
        let patience = Duration::from_micros(step * 250);
        drop(tokio::time::timeout(patience, election.campaign()).await);
        eventually(SOON, "a is gone", async || {
            key_of(&mut client, "a").await.is_none().then_some(())
        })
        .await?;
    }
    stays(WHILE, "no key comes late", async || {
        keys(&mut client, "eldest/").await.len() == 1
    })
    .await?;
    let mut candidate = soon("campaign", election.campaign()).await?;
    drop(leads);
    assert!(elected(&mut candidate).await?.is_valid());
    Ok(())
}

#[tokio::test]
async fn new_campaign_never_takes_over_the_key_of_a_dropped_one() -> Result {
    let (etcd, proxy) = behind_a_proxy().await?;
    let mut client = etcd.client().await;
    let session = Session::connect([proxy.endpoint()], options("a")).await?;
    // Provides a lease, so that the join is the only request in flight.
    let other = session.election("other")?;
    let _other = soon("campaign", other.campaign()).await?;
    let election = session.election("e")?;
    proxy.hold_responses();
    let mut first = Box::pin(election.campaign());
    eventually(SOON, "the first join is done, unheard", async || {
        let _ = tokio::time::timeout(Duration::ZERO, &mut first).await;
        (!keys(&mut client, "eldest/e/").await.is_empty()).then_some(())
    })
    .await?;
    let orphan = only_key(&mut client, "eldest/e/").await;
    drop(first);
    let mut second = Box::pin(election.campaign());
    // The second campaign begins before the answer to the first one is read.
    let early = tokio::time::timeout(WHILE, &mut second).await;
    assert!(early.is_err(), "{early:?}");
    proxy.heal();
    let mut candidate = soon("campaign", second).await?;
    let leadership = elected(&mut candidate).await?;
    assert!(
        leadership.fencing_token() > orphan.created,
        "a key that was given up came back"
    );
    stays(WHILE, "the second one leads", async || {
        leadership.lost_reason().is_none()
            && key_exists(&mut client, leadership.key(), leadership.fencing_token()).await
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn proclaimed_value_is_kept_after_a_rejoin() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_a, _, mut a) = join_election(&etcd, "a").await?;
    let first = elected(&mut a).await?;
    let (_b, election, mut b) = join_election(&etcd, "b").await?;
    let place = key_of(&mut client, "b").await.expect("b is a candidate");
    let since = async || {
        let roster = election.roster().await.ok()?;
        let mut members = roster.members().iter();
        members
            .find(|member| member.lease_id() == place.lease)?
            .since()
    };
    let joined = since().await;
    let moved = Announcement::new("b2").with_address("b:2");
    soon("proclaim", b.proclaim(moved)).await?;
    assert!(joined.is_some() && since().await == joined);
    let key = key_of(&mut client, "b2").await.expect("proclaimed");
    assert_eq!(
        (key.created, key.lease),
        (place.created, place.lease),
        "the same place"
    );

    client.delete(key.path, None).await?;
    let again = await_rejoin(&mut client, "b2", key.created).await?;
    drop(first);
    let leadership = elected(&mut b).await?;
    assert_eq!(leadership.fencing_token(), again.created);
    soon("proclaim", leadership.proclaim("b3")).await?;
    let key = key_of(&mut client, "b3").await.expect("proclaimed");
    assert_eq!(key.created, leadership.fencing_token(), "the same term");
    assert!(leadership.is_valid());

    client.delete(key.path, None).await?;
    soon("the token", leadership.lost().cancelled()).await;
    let error = soon("proclaim", leadership.proclaim("b4")).await.err();
    if let Some(error) = error {
        assert_eq!(error.kind(), ErrorKind::FenceLost);
    }
    let error = leadership.txn([]).await.expect_err("the term is over");
    assert_eq!(error.kind(), ErrorKind::LeadershipLost);
    soon("proclaim", b.proclaim("b5")).await?;
    drop(leadership);
    await_rejoin(&mut client, "b5", key.created).await?;
    Ok(())
}

//! Tests observers: they see the current state first, then every change, despite interruptions.

use crate::common::{
    Result, SOON, elected, in_memory, join_election, keys, options, session, soon,
};
use eldest::{LeaderChange, Observer, Roster, Session};
use eldest_testing::{Etcd, Proxy, eventually};
use etcd_client::{Client, CompactionOptions, PutOptions, Txn, TxnOp};
use futures::FutureExt;

async fn next(observer: &mut Observer) -> Result<Roster> {
    let item = soon("a change", observer.next()).await;
    Ok(item.ok_or("the stream ended")??)
}

fn who(roster: &Roster) -> Vec<&str> {
    roster
        .members()
        .iter()
        .map(eldest::Member::identity)
        .collect()
}

/// Reads until the roster is as wanted; revisions must rise with each roster.
async fn until(observer: &mut Observer, wanted: &[&str]) -> Result<Roster> {
    let mut last = 0;
    loop {
        let roster = next(observer).await?;
        assert!(
            roster.revision() > last,
            "{} after {last}",
            roster.revision()
        );
        if who(&roster) == wanted {
            return Ok(roster);
        }
        last = roster.revision();
    }
}

#[tokio::test(start_paused = true)]
async fn changes_of_the_leader_are_reported_once_each_and_in_order() -> Result {
    let etcd = in_memory();
    let dashboard = session(&etcd, "dashboard").await?;
    let mut changes = dashboard.election("e")?.leader_changes().await?;
    let (_a, _, mut a) = join_election(&etcd, "a").await?;
    let first = elected(&mut a).await?;
    // Neither of these changes is a change of the leader.
    let (_b, _, mut b) = join_election(&etcd, "b").await?;
    soon("proclaim", first.proclaim("a2")).await?;
    soon("resign", first.resign()).await?;
    let second = elected(&mut b).await?;
    soon("resign", second.resign()).await?;
    let tokens = [first.fencing_token(), second.fencing_token()];

    let expected = [None, Some(tokens[0]), Some(tokens[1]), None];
    let mut last = 0;
    for wanted in expected {
        let change = soon("a change", changes.next()).await;
        let (token, revision) = match change.ok_or("it goes on")?? {
            LeaderChange::Elected {
                leader, revision, ..
            } => (Some(leader.create_revision()), revision),
            LeaderChange::Vacant { revision, .. } => (None, revision),
            other => panic!("{other:?}"),
        };
        assert_eq!(token, wanted);
        assert!(revision > last, "{revision} after {last}");
        last = revision;
    }
    dashboard.close().await?;
    assert!(soon("it ends", changes.next()).await.is_none());
    Ok(())
}

/// Two keys that one transaction creates have one create revision.
#[tokio::test(start_paused = true)]
async fn a_change_between_leaders_of_one_revision_is_reported() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let dashboard = session(&etcd, "dashboard").await?;
    let mut changes = dashboard.election("e")?.leader_changes().await?;
    let vacant = soon("the first state", changes.next()).await;
    assert!(matches!(vacant, Some(Ok(LeaderChange::Vacant { .. }))));
    let lease = client.lease_grant(60, None).await?.id();
    let bound = || Some(PutOptions::new().with_lease(lease));
    let puts = ["eldest/e/aa", "eldest/e/bb"].map(|key| TxnOp::put(key, "", bound()));
    client.txn(Txn::new().and_then(puts)).await?;
    let mut leads = async || {
        let change = soon("a change", changes.next()).await;
        match change.ok_or("it goes on")?? {
            LeaderChange::Elected { leader, .. } => Result::Ok(leader.key().to_vec()),
            other => Err(format!("{other:?}").into()),
        }
    };
    assert_eq!(leads().await?, b"eldest/e/aa");
    client.delete("eldest/e/aa", None).await?;
    assert_eq!(leads().await?, b"eldest/e/bb");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn observer_gets_the_current_state_then_each_change_and_vacancy() -> Result {
    // Complaints 7 and 21.
    let etcd = in_memory();
    let dashboard = session(&etcd, "dashboard").await?;
    let mut early = dashboard.election("e")?.observe().await?;
    let vacant = next(&mut early).await?;
    assert!(vacant.is_vacant() && vacant.leader().is_none());

    let (_a, election, mut a) = join_election(&etcd, "a").await?;
    let first = elected(&mut a).await?;
    let (_b, _, mut b) = join_election(&etcd, "b").await?;
    let mut late = election.observe().await?;
    assert_eq!(who(&next(&mut late).await?), ["a", "b"]);
    soon("proclaim", b.proclaim("b2")).await?;
    soon("resign", first.resign()).await?;
    let second = elected(&mut b).await?;
    soon("resign", second.resign()).await?;

    let expected: [&[&str]; 5] = [&["a"], &["a", "b"], &["a", "b2"], &["b2"], &[]];
    let mut last = vacant.revision();
    for (index, wanted) in expected.iter().enumerate() {
        let roster = next(&mut early).await?;
        assert_eq!(who(&roster), *wanted);
        assert!(roster.revision() > last);
        last = roster.revision();
        let leader = roster.leader().map(eldest::Member::identity);
        assert_eq!(leader, wanted.first().copied());
        assert_eq!(roster.is_vacant(), wanted.is_empty());
        if index >= 2 {
            assert_eq!(next(&mut late).await?, roster, "both see the same");
        }
    }
    assert!(early.next().now_or_never().is_none() && late.next().now_or_never().is_none());
    Ok(())
}

#[tokio::test]
async fn many_observers_see_the_same() -> Result {
    // Complaint 21.
    let etcd = Etcd::start().await?;
    let dashboard = session(&etcd, "dashboard").await?;
    let (_a, election, mut a) = join_election(&etcd, "a").await?;
    let mut observers = Vec::new();
    for _ in 0..50 {
        observers.push(dashboard.election("e")?.observe().await?);
        observers.push(election.observe().await?);
    }
    for observer in &mut observers {
        assert_eq!(who(&next(observer).await?), ["a"]);
    }
    // Each session has one watch for all its observers, and the candidate's session one for it and one for orders.
    let watchers = etcd.metric("etcd_debugging_mvcc_watcher_total").await;
    assert!((watchers - 4.0).abs() < 0.5, "{watchers}");
    let first = elected(&mut a).await?;
    soon("resign", first.resign()).await?;
    let (_b, _, _candidate) = join_election(&etcd, "b").await?;
    for observer in &mut observers {
        assert!(next(observer).await?.is_vacant());
        assert_eq!(who(&next(observer).await?), ["b"]);
    }
    Ok(())
}

#[tokio::test]
async fn observer_that_comes_and_goes_repeatedly_opens_one_stream() -> Result {
    let etcd = Etcd::start().await?;
    let dashboard = session(&etcd, "dashboard").await?;
    let opened = r#"grpc_server_started_total{grpc_method="Watch",grpc_type="bidi_stream"}"#;
    let before = etcd.metric(opened).await;
    for _ in 0..50 {
        let mut observer = dashboard.election("e")?.observe().await?;
        assert!(next(&mut observer).await?.is_vacant());
    }
    // A busy machine may once or twice take longer than a view lingers.
    let streams = etcd.metric(opened).await - before;
    assert!((0.5..5.0).contains(&streams), "{streams}");
    // In the end no key is watched.
    eventually(SOON, "nothing is watched", async || {
        let watchers = etcd.metric("etcd_debugging_mvcc_watcher_total").await;
        (watchers < 0.5).then_some(())
    })
    .await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_observer_sees_a_blocker_and_nothing_of_other_elections() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let dashboard = session(&etcd, "dashboard").await?;
    let mut observer = dashboard.election("e")?.observe().await?;
    next(&mut observer).await?;
    for key in ["eldest/ef/1", "eldest/e/deep/1", "eldest/e"] {
        client.put(key, "x", None).await?;
    }
    client.put("eldest/e/stuck", "who?", None).await?;
    let roster = next(&mut observer).await?;
    assert_eq!(who(&roster), ["who?"]);
    assert!(roster.leader().is_none() && roster.blocker().is_some() && !roster.is_vacant());
    Ok(())
}

/// Puts and deletes some foreign keys, and compacts their history.
async fn compact(client: &mut Client) -> Result {
    for number in 0..20 {
        client.put("noise", number.to_string(), None).await?;
    }
    let now = client.get("noise", None).await?;
    let revision = now.header().ok_or("no header")?.revision();
    let physical = CompactionOptions::new().with_physical();
    client.compact(revision, Some(physical)).await?;
    Ok(())
}

#[tokio::test]
async fn an_observer_survives_a_compaction_beyond_its_revision() -> Result {
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let proxy = Proxy::start(etcd.address()).await?;
    let (_a, _, mut a) = join_election(&etcd, "a").await?;
    let first = elected(&mut a).await?;
    let dashboard = Session::connect([proxy.endpoint()], options("dashboard")).await?;
    let mut observer = dashboard.election("e")?.observe().await?;
    assert_eq!(who(&next(&mut observer).await?), ["a"]);
    proxy.cut();
    let (_b, _, _b_candidate) = join_election(&etcd, "b").await?;
    soon("resign", first.resign()).await?;
    let (_c, _, _c_candidate) = join_election(&etcd, "c").await?;
    compact(&mut client).await?;
    proxy.heal();
    let roster = until(&mut observer, &["b", "c"]).await?;
    assert_eq!(roster.leader().expect("b").identity(), "b");
    // The observer continues.
    let (_d, _, _d_candidate) = join_election(&etcd, "d").await?;
    assert_eq!(who(&next(&mut observer).await?), ["b", "c", "d"]);
    Ok(())
}

#[tokio::test]
async fn a_session_survives_a_compaction_and_a_restart_of_etcd() -> Result {
    let mut etcd = Etcd::start().await?;
    let (_a, election, mut a) = join_election(&etcd, "a").await?;
    let first = elected(&mut a).await?;
    let (_b, _, mut b) = join_election(&etcd, "b").await?;
    let dashboard = session(&etcd, "dashboard").await?;
    let mut observer = dashboard.election("e")?.observe().await?;
    let mut own = election.observe().await?;
    assert_eq!(who(&next(&mut observer).await?), ["a", "b"]);
    assert_eq!(who(&next(&mut own).await?), ["a", "b"]);
    compact(&mut etcd.client().await).await?;
    etcd.restart().await?;
    assert!(first.is_valid(), "the lease has time left");
    let mut client = etcd.client().await;
    assert_eq!(keys(&mut client, "eldest/e/").await.len(), 2);
    let (_c, _, _c_candidate) = join_election(&etcd, "c").await?;
    for observer in [&mut observer, &mut own] {
        until(observer, &["a", "b", "c"]).await?;
    }
    soon("resign", first.resign()).await?;
    let second = elected(&mut b).await?;
    for observer in [&mut observer, &mut own] {
        let roster = until(observer, &["b", "c"]).await?;
        let leader = roster.leader().expect("b leads");
        assert_eq!(leader.create_revision(), second.fencing_token());
    }
    Ok(())
}

/// More changes than an observer may be behind.
const CHANGES: usize = 400;

#[tokio::test(start_paused = true)]
async fn an_observer_that_lags_skips_but_ends_at_the_newest_state() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let dashboard = session(&etcd, "dashboard").await?;
    let election = dashboard.election("e")?;
    let mut lagging = election.observe().await?;
    let mut keen = election.observe().await?;
    next(&mut keen).await?;
    for number in 0..CHANGES {
        client.put("eldest/e/x", number.to_string(), None).await?;
    }
    let newest = (CHANGES - 1).to_string();
    let mut seen = 0;
    while {
        seen += 1;
        who(&next(&mut keen).await?) != [&*newest]
    } {}
    assert!(seen <= CHANGES);
    // The slow observer has read nothing yet; all missed changes are available, except the oldest.
    let mut items = 0;
    eventually(SOON, "the newest state", async || {
        let roster = lagging.next().await?.ok()?;
        items += 1;
        (who(&roster) == [&*newest]).then_some(())
    })
    .await?;
    assert!(items <= 256, "{items}");
    assert!(lagging.next().now_or_never().is_none());
    Ok(())
}

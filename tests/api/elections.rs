//! Tests elections: their keys in etcd, the leader, and the views of all nodes.

use crate::common::{
    Result, WHILE, elected, foreign, identities, in_memory, join_election, keys, leases,
    nothing_under, only_key, options, session, soon, status, stays,
};
use eldest::{EndReason, ErrorKind, Status};

#[tokio::test(start_paused = true)]
async fn candidate_key_is_prefix_and_hex_lease_and_its_value_the_announcement() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_session, election, mut candidate) = join_election(&etcd, "node-a").await?;
    let key = only_key(&mut client, "eldest/").await;
    assert_eq!(key.path, format!("{}{:x}", election.prefix(), key.lease));
    assert!(
        key.value
            .starts_with(r#"{"identity":"node-a","since_unix_ms":"#)
    );
    assert!(election.roster().await?.members()[0].since().is_some());
    let leadership = elected(&mut candidate).await?;
    assert_eq!(leadership.key(), key.path.as_bytes());
    assert_eq!(leadership.fencing_token(), key.created);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn eldest_candidate_leads_and_all_nodes_see_the_same_order() -> Result {
    let etcd = in_memory();
    let mut nodes = Vec::new();
    for identity in ["a", "b", "c"] {
        nodes.push(join_election(&etcd, identity).await?);
    }
    let observer = session(&etcd, "observer").await?;
    for eldest in 0..3 {
        let statuses = nodes[eldest].2.subscribe();
        assert!(statuses.has_changed()?, "the first status is news");
        let leadership = elected(&mut nodes[eldest].2).await?;
        let leading = Status::leading(leadership.fencing_token());
        assert_eq!(*statuses.borrow(), leading);
        let roster = observer.election("e")?.roster().await?;
        assert_eq!(identities(&roster), &["a", "b", "c"][eldest..]);
        let ranks: Vec<_> = roster.members().iter().map(eldest::Member::rank).collect();
        assert_eq!(ranks, (1..=3 - eldest).collect::<Vec<_>>());
        let leader = roster.leader().expect("somebody leads");
        assert_eq!(leader.create_revision(), leadership.fencing_token());
        assert_eq!(leader.key(), leadership.key());
        assert_eq!(
            observer.election("e")?.leader().await?.as_ref(),
            Some(leader)
        );
        assert!(roster.revision() >= leadership.fencing_token());
        for (ahead, (_, _, waiting)) in nodes[eldest..].iter().enumerate().skip(1) {
            let place = Status::waiting(ahead);
            status(waiting, |s| *s == place).await?;
        }
        soon("resign", leadership.resign()).await?;
        assert_eq!(*statuses.borrow(), Status::ended(EndReason::Resigned));
    }
    assert!(observer.election("e")?.leader().await?.is_none());
    assert!(observer.election("e")?.roster().await?.is_vacant());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn first_key_without_a_lease_is_reported_and_blocks_the_election() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let stuck = &b"eldest/e/\xff\0"[..];
    client.put(stuck, "who?", None).await?;
    let (_session, election, mut candidate) = join_election(&etcd, "a").await?;
    let roster = election.roster().await?;
    let blocker = roster.blocker().expect("the key without lease");
    assert_eq!((blocker.key(), blocker.identity()), (stuck, "who?"));
    assert!(roster.leader().is_none() && !roster.is_vacant());
    assert!(election.leader().await?.is_none());
    let statuses = candidate.subscribe();
    stays(WHILE, "nobody leads", async || {
        matches!(
            *statuses.borrow(),
            Status::Waiting {
                rank: 2,
                ahead: 1,
                ..
            }
        )
    })
    .await?;
    client.delete(stuck, None).await?;
    let leadership = elected(&mut candidate).await?;
    // Behind a leader, the key blocks no candidate yet.
    client.put(stuck, "who?", None).await?;
    let roster = election.roster().await?;
    assert!(roster.blocker().is_none() && leadership.is_valid());
    assert_eq!(roster.members().len(), 2);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn empty_namespace_shares_the_election_with_programs_without_one() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let lease = foreign(&mut client, "svc/leader/1a2b", "go-node").await?;
    let session = etcd.session(options("a").namespace("")).await?;
    let election = session.election("svc/leader")?;
    let mut candidate = soon("campaign", election.campaign()).await?;
    let leader = election.leader().await?.expect("the foreigner");
    assert_eq!((leader.identity(), leader.since()), ("go-node", None));
    assert_eq!(leader.lease_id(), lease);
    status(&candidate, |s| *s == Status::waiting(1)).await?;
    client.lease_revoke(lease).await?;
    let leadership = elected(&mut candidate).await?;
    assert!(leadership.key().starts_with(b"svc/leader/"));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn too_large_an_announcement_is_refused_with_nothing_left_in_etcd() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let big = "x".repeat(32 * 1024 + 1);
    let session = etcd
        .session(options("a").announcement(big.as_str()))
        .await?;
    let election = session.election("e")?;
    let error = soon("campaign", election.campaign())
        .await
        .expect_err("too large");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("32768"), "{error}");
    assert_eq!(keys(&mut client, "").await, []);
    assert_eq!(leases(&mut client).await, 0);

    let largest = "x".repeat(32 * 1024);
    let (_session, _, mut candidate) = join_election(&etcd, "b").await?;
    candidate.proclaim(largest.as_str()).await?;
    let error = candidate
        .proclaim(big.as_str())
        .await
        .expect_err("too large");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let leadership = elected(&mut candidate).await?;
    let error = leadership.proclaim(big).await.expect_err("too large");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(only_key(&mut client, "eldest/").await.value, largest);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_session_joins_an_election_once_and_again_after_leaving() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (session, election, mut candidate) = join_election(&etcd, "a").await?;
    let refused = async |what: &str| {
        let error = soon("campaign", election.campaign()).await.expect_err(what);
        assert_eq!(error.kind(), ErrorKind::AlreadyCampaigning, "{error}");
        assert!(error.to_string().contains("\"e\""), "{error}");
    };
    let leadership = elected(&mut candidate).await?;
    refused("it leads").await;
    let other_handle = session.election("e")?;
    let error = soon("campaign", other_handle.campaign())
        .await
        .expect_err("the same election");
    assert_eq!(error.kind(), ErrorKind::AlreadyCampaigning);
    drop(candidate);
    refused("a term lives on without its candidate").await;
    soon("resign", leadership.resign()).await?;

    let (_b, _, mut b) = join_election(&etcd, "b").await?;
    let leads = elected(&mut b).await?;
    let mut last = 0;
    for _ in 0..3 {
        let mut candidate = soon("after resigning, leaving, dropping", election.campaign()).await?;
        refused("it waits").await;
        soon("leave", candidate.leave()).await?;
        let candidate = soon("after leaving", election.campaign()).await?;
        drop(candidate);
        let candidate = soon("after dropping", election.campaign()).await?;
        let roster = election.roster().await?;
        let created = roster.members().last().expect("we stand").create_revision();
        assert_eq!(roster.members().len(), 2, "never two of ours: {roster:?}");
        assert!(created > last, "at the back");
        last = created;
        drop(candidate);
    }
    drop(election);
    soon("close", session.close()).await?;
    drop(leads);
    nothing_under(&mut client, "eldest/e/").await
}

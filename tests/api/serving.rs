//! Tests elections in which a leader serves only once it says so.

use std::time::Duration;

use crate::common::{
    Result, SOON, elected, in_memory, only_key, options, queue, session, soon, stays, until_lost,
};
use eldest::{
    Announcement, BoxError, CancellationToken, Candidate, Due, Election, ErrorKind, LostReason,
    Member, Observer, Schedule, Session,
};
use eldest_testing::{MemoryEtcd, eventually};
use tokio::time::Instant;

/// A limit that no test reaches.
const LONG: Duration = Duration::from_secs(24 * 60 * 60);
/// The TTL of [`options`].
const TTL: Duration = Duration::from_secs(60);
/// A limit that passes long before the TTL.
const SHORT: Duration = Duration::from_secs(5);

fn within(session: &Session, limit: Duration) -> Result<Election> {
    Ok(session.election("e")?.serving_within(limit))
}

async fn candidate(
    etcd: &MemoryEtcd,
    identity: &str,
    limit: Duration,
) -> Result<(Session, Election, Candidate)> {
    let session = session(etcd, identity).await?;
    let election = within(&session, limit)?;
    let candidate = soon("campaign", election.campaign()).await?;
    Ok((session, election, candidate))
}

/// Returns the term in which the only candidate says that it serves, as its key has it.
async fn said(etcd: &MemoryEtcd) -> Result<Option<i64>> {
    let key = only_key(&mut etcd.client().await, "eldest/e/").await;
    let announced: serde_json::Value = serde_json::from_str(&key.value)?;
    Ok(announced["serves"].as_i64())
}

async fn is_serving(election: &Election) -> Result<bool> {
    Ok(election.leader().await?.ok_or("a leader")?.is_serving())
}

async fn serves(changes: &mut Observer) -> Result<bool> {
    let roster = soon("a change", changes.next()).await;
    let roster = roster.ok_or("the stream goes on")??;
    Ok(roster.leader().is_some_and(Member::is_serving))
}

#[tokio::test(start_paused = true)]
async fn leader_serves_only_once_it_says_so_and_in_that_term_alone() -> Result {
    let etcd = in_memory();
    let (_a, election, mut candidate) = candidate(&etcd, "a", LONG).await?;
    let late = session(&etcd, "late").await?.election("e")?;
    let mut changes = late.observe().await?;
    for _ in 0..2 {
        let leadership = elected(&mut candidate).await?;
        let token = leadership.fencing_token();
        assert!(leadership.is_valid() && !leadership.is_serving());
        assert!(!is_serving(&election).await?, "of token {token}");
        assert!(!serves(&mut changes).await?);
        soon("it serves", leadership.serving()).await?;
        assert!(leadership.is_serving() && is_serving(&late).await?);
        assert_eq!(said(&etcd).await?, Some(token));
        while !serves(&mut changes).await? {}
        // Another announcement of the leader keeps that.
        soon("proclaim", leadership.proclaim(Announcement::new("a2"))).await?;
        assert!(is_serving(&late).await?);
        soon("again", leadership.serving()).await?;
        soon("it leads later", leadership.step_down()).await?;
        assert!(!leadership.is_serving());
        // The key of its next term exists, and says that it does not serve.
        assert_eq!(said(&etcd).await?, Some(0));
        changes = late.observe().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn leader_without_a_limit_serves_at_once_and_announces_nothing() -> Result {
    let etcd = in_memory();
    let session = session(&etcd, "a").await?;
    let election = session.election("e")?;
    let mut candidate = soon("campaign", election.campaign()).await?;
    let leadership = elected(&mut candidate).await?;
    assert!(leadership.is_serving() && is_serving(&election).await?);
    soon("it serves", leadership.serving()).await?;
    assert_eq!(said(&etcd).await?, None);
    let read = election.roster().await?;
    let [member] = read.members() else {
        return Err("one member".into());
    };
    assert_eq!(
        read.revision(),
        member.create_revision(),
        "nothing else was written"
    );
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn leader_that_does_not_serve_in_time_joins_again_at_the_end() -> Result {
    let etcd = in_memory();
    let (_a, _, mut a) = candidate(&etcd, "a", SHORT).await?;
    let (_b, election, mut b) = candidate(&etcd, "b", SHORT).await?;
    let begun = Instant::now();
    let first = elected(&mut a).await?;
    soon("it ends", first.lost().cancelled()).await;
    assert!(begun.elapsed() >= SHORT);
    assert_eq!(first.lost_reason(), Some(LostReason::NotServing));
    let error = first.serving().await.expect_err("too late");
    assert_eq!(error.kind(), ErrorKind::LeadershipLost, "{error}");
    assert!(!first.is_serving());
    drop(first);
    queue(&election, &["b", "a"]).await?;
    // The next leader serves, so its term lasts.
    let second = elected(&mut b).await?;
    soon("it serves", second.serving()).await?;
    stays(SHORT * 2, "it leads", async || second.is_serving()).await
}

#[tokio::test(start_paused = true)]
async fn leader_announces_that_it_serves_once_etcd_answers_again() -> Result {
    let etcd = in_memory();
    let options = options("a").request_timeout(Duration::from_secs(1));
    let session = etcd.session(options).await?;
    let election = within(&session, LONG)?;
    let mut candidate = soon("campaign", election.campaign()).await?;
    let leadership = elected(&mut candidate).await?;
    // No other announcement of this term follows.
    eventually(TTL, "the beginning is announced", async || {
        election.leader().await.ok()??.leads_since()
    })
    .await?;
    etcd.pause();
    // The caller gives up after the first requests have failed; the session continues.
    let gives_up = tokio::time::timeout(SHORT, leadership.serving());
    assert!(gives_up.await.is_err(), "etcd is silent");
    assert!(leadership.is_serving());
    etcd.resume();
    assert!(!is_serving(&election).await?);
    eventually(TTL, "it is announced", async || {
        is_serving(&election).await.ok()?.then_some(())
    })
    .await?;
    soon("it serves", leadership.serving()).await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn announcement_that_cannot_say_so_and_limits_out_of_bounds_are_refused() -> Result {
    let etcd = in_memory();
    let session = session(&etcd, "a").await?;
    let refused = |outcome: eldest::Result<()>, rule: &str| {
        let error = outcome.expect_err(rule);
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(rule), "{error}");
    };
    let plain = within(&session, LONG)?.announcement("a");
    refused(plain.campaign().await.map(drop), "plain string");
    for limit in [Duration::ZERO, LONG + Duration::from_millis(1)] {
        let election = within(&session, limit)?;
        refused(election.campaign().await.map(drop), "serving_within is");
        let run = election.run(std::future::pending::<()>(), until_lost);
        refused(run.await.map(drop), "serving_within is");
    }
    let long = Announcement::new("a").with_metadata("m", "x".repeat(32 * 1024 - 70));
    let long = within(&session, LONG)?.announcement(long);
    refused(
        long.campaign().await.map(drop),
        "in an election with `serving_within`",
    );
    assert!(session.election("e")?.roster().await?.is_vacant());
    // A later announcement is refused too, and the present one stays.
    let mut candidate = within(&session, LONG)?.campaign().await?;
    refused(candidate.proclaim("a").await, "plain string");
    let leadership = elected(&mut candidate).await?;
    refused(leadership.proclaim("a").await, "plain string");
    assert_eq!(said(&etcd).await?, Some(0));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn schedule_serves_as_soon_as_its_node_leads() -> Result {
    let etcd = in_memory();
    let session = session(&etcd, "a").await?;
    let election = within(&session, SHORT)?;
    let shutdown = CancellationToken::new();
    let hourly = election.every(Schedule::interval(Duration::from_secs(3600))?);
    let run = hourly.run(shutdown.clone(), async |_: Due| Ok::<_, BoxError>(()));
    let run = tokio::spawn(run);
    let serves = || election.term().is_some_and(|term| term.is_serving());
    eventually(SOON, "it serves", async || serves().then_some(())).await?;
    stays(SHORT * 2, "it serves", async || serves()).await?;
    shutdown.cancel();
    Ok(soon("it stops", run).await??)
}

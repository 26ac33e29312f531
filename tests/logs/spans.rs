//! Tests the spans of campaigns, terms and renewals: their names, fields and order, and when they end.

use std::time::Duration;

use eldest::{BoxError, CancellationToken, Session};
use eldest_testing::{Etcd, Proxy, eventually};
use tokio::time::timeout;
use tracing::Level;

use super::{LONG, Result, capture, leader, options, rank};
use crate::capture::{Line, Logs};

/// Returns the one ended span with that name and identity.
async fn ended(logs: &Logs, span: &str, identity: &str) -> Result<Line> {
    let what = format!("{span} of {identity}");
    let ended = eventually(LONG, what, async || {
        let mut ended = logs.ended(span);
        ended.retain(|line| line.says(&[("identity", identity)]));
        (!ended.is_empty()).then_some(ended)
    })
    .await?;
    assert_eq!(ended.len(), 1, "{ended:?}");
    Ok(ended[0].clone())
}

#[tokio::test]
async fn a_campaign_has_a_span_for_each_step_and_term() -> Result {
    let logs = capture();
    let etcd = Etcd::start().await?;
    let (_first, _candidate, leadership) = leader(&etcd).await?;
    let session = Session::connect([etcd.endpoint()], options("b")).await?;
    let mut candidate = session.election("jobs")?.campaign().await?;
    rank(&candidate, 2).await?;
    let join = ended(&logs, "join", "b").await?;
    assert_eq!(
        (join.level, &join.within[..]),
        (Level::INFO, &["campaign"][..])
    );
    assert_eq!(logs.ended("wait").len(), 0, "it still waits");
    assert_eq!(logs.ended("term").len(), 0, "the first one still leads");

    let token = leadership.fencing_token().to_string();
    drop(leadership);
    let second = timeout(LONG, candidate.elected()).await??;
    let wait = ended(&logs, "wait", "b").await?;
    assert_eq!(
        (wait.field("ahead"), &wait.within[..]),
        ("1", &["campaign"][..])
    );
    let hand_over = ended(&logs, "hand_over", "b").await?;
    assert_eq!(hand_over.within, ["campaign"]);
    let campaign = ended(&logs, "campaign", "b").await?;
    assert!(campaign.says(&[("election", "jobs"), ("outcome", "elected")]));
    assert_eq!(
        campaign.within, [""; 0],
        "each campaign is a trace of its own"
    );
    let term = ended(&logs, "term", "a").await?;
    assert!(term.says(&[
        ("election", "jobs"),
        ("token", &token),
        ("reason", "resigned")
    ]));
    assert_eq!(term.within, [""; 0]);
    assert_eq!(logs.ended("term").len(), 1, "the second one leads");

    second.resign().await?;
    let term = ended(&logs, "term", "b").await?;
    assert_eq!(term.field("reason"), "resigned");
    Ok(())
}

#[tokio::test]
async fn a_candidate_that_leaves_ends_its_campaign() -> Result {
    let logs = capture();
    let etcd = Etcd::start().await?;
    let (_first, _candidate, _leadership) = leader(&etcd).await?;
    let session = Session::connect([etcd.endpoint()], options("b")).await?;
    let mut candidate = session.election("jobs")?.campaign().await?;
    candidate.leave().await?;
    let campaign = ended(&logs, "campaign", "b").await?;
    assert_eq!(campaign.field("outcome"), "left");
    let member = session.group("workers")?.join().await?;
    let of_group = eventually(LONG, "present", async || {
        let mut campaigns = logs.ended("campaign").into_iter();
        campaigns.find(|line| line.says(&[("election", "workers")]))
    });
    assert_eq!(of_group.await?.field("outcome"), "present");
    drop(member);
    Ok(())
}

/// The spans of a lock are details, so thousands of them do not flood a subscriber that records changes of leaders.
#[tokio::test]
async fn the_spans_of_locks_and_renewals_are_details() -> Result {
    let logs = capture();
    let etcd = Etcd::start().await?;
    let session = Session::connect([etcd.endpoint()], options("a")).await?;
    timeout(LONG, session.lock("l")?.acquire())
        .await??
        .release()
        .await?;
    for name in ["campaign", "join", "hand_over", "term"] {
        let span = ended(&logs, name, "a").await?;
        assert_eq!(span.level, Level::DEBUG, "{span:?}");
    }
    let lease = logs.one(super::SESSION, "lease granted", &[]);
    let lease = lease.field("lease");
    for outcome in ["opened", "verified"] {
        let renewal = eventually(LONG, outcome, async || {
            let mut renewals = logs.ended("renewal");
            renewals.retain(|line| line.says(&[("outcome", outcome), ("lease", lease)]));
            renewals.pop()
        });
        let renewal = renewal.await?;
        assert_eq!((renewal.level, renewal.within.len()), (Level::DEBUG, 0));
    }
    Ok(())
}

#[tokio::test]
async fn a_renewal_without_an_answer_has_failed() -> Result {
    let logs = capture();
    let etcd = Etcd::start().await?;
    let proxy = Proxy::start(etcd.address()).await?;
    let session = Session::connect([proxy.endpoint()], options("a")).await?;
    let mut candidate = session.election("jobs")?.campaign().await?;
    let leadership = timeout(LONG, candidate.elected()).await??;
    proxy.hold_responses();
    let failed = eventually(LONG, "a renewal failed", async || {
        let mut renewals = logs.ended("renewal").into_iter();
        renewals.find(|line| line.says(&[("outcome", "failed")]))
    });
    assert_eq!(failed.await?.field("identity"), "a");
    proxy.heal();
    drop(leadership);
    Ok(())
}

/// The span of a term ends with the work, if that ends later than the term.
#[tokio::test]
async fn a_terms_span_lasts_until_its_work_has_ended() -> Result {
    let logs = capture();
    let etcd = Etcd::start().await?;
    let options = options("a").grace(Duration::from_secs(1));
    let session = Session::connect([etcd.endpoint()], options).await?;
    let shutdown = CancellationToken::new();
    let work = async |leadership: eldest::Leadership| {
        shutdown.cancel();
        leadership.lost().cancelled().await;
        eventually(LONG, "the end is logged", async || {
            (!logs.of(super::ELECTION, "term ended", &[]).is_empty()).then_some(())
        })
        .await?;
        assert_eq!(logs.ended("term").len(), 0, "its work goes on");
        Ok::<_, BoxError>(())
    };
    let election = session.election("jobs")?;
    timeout(LONG, election.run(shutdown.clone(), work)).await??;
    let term = ended(&logs, "term", "a").await?;
    assert_eq!(term.field("reason"), "shutdown");
    Ok(())
}

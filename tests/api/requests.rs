//! Counts the requests that calls cost, by etcd's own metrics, and measures a hand-over.

use std::time::{Duration, Instant};

use crate::common::{Result, SOON, WHILE, elected, nothing_under, short, soon, stays};
use eldest::{Candidate, Election, Member, Session, SessionOptions, Status, WatchScope};
use eldest_testing::{Etcd, eventually};

/// The numbers of requests that etcd has handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Requests {
    range: u64,
    txn: u64,
    grant: u64,
    /// Puts, deletes, lease requests and all others with a single answer.
    other: u64,
    /// Messages on the keepalive streams.
    renewals: u64,
}

impl Requests {
    async fn count(etcd: &Etcd) -> Self {
        let handled = async |method: &str| {
            let service = r#"grpc_type="unary",grpc_code="OK""#;
            let query = if method.is_empty() {
                format!("grpc_server_handled_total{{{service}}}")
            } else {
                format!("grpc_server_handled_total{{{service},grpc_method=\"{method}\"}}")
            };
            etcd.metric(&query).await as u64
        };
        let (range, txn, grant) = (
            handled("Range").await,
            handled("Txn").await,
            handled("LeaseGrant").await,
        );
        let renewals = r#"grpc_server_msg_received_total{grpc_method="LeaseKeepAlive"}"#;
        Self {
            range,
            txn,
            grant,
            other: handled("").await - range - txn - grant,
            renewals: etcd.metric(renewals).await as u64,
        }
    }

    async fn since(etcd: &Etcd, before: Self) -> Self {
        let now = Self::count(etcd).await;
        Self {
            range: now.range - before.range,
            txn: now.txn - before.txn,
            grant: now.grant - before.grant,
            // The counts are read one after the other, so a read in between would look like another request.
            other: now.other.saturating_sub(before.other),
            renewals: now.renewals - before.renewals,
        }
    }
}

const NONE: Requests = Requests {
    range: 0,
    txn: 0,
    grant: 0,
    other: 0,
    renewals: 0,
};

/// Options under which no renewal is due for 100 s.
fn quiet(identity: &str) -> SessionOptions {
    SessionOptions::new(identity).ttl(Duration::from_secs(300))
}

async fn quiet_session(etcd: &Etcd, identity: &str) -> Result<Session> {
    Ok(Session::connect([etcd.endpoint()], quiet(identity)).await?)
}

async fn watchers(etcd: &Etcd, count: u64) -> Result {
    Ok(eventually(SOON, format!("{count} watchers"), async || {
        let standing = etcd.metric("etcd_debugging_mvcc_watcher_total").await as u64;
        (standing == count).then_some(())
    })
    .await?)
}

/// Joins with the first candidate of a session. Waits until etcd has `watching` watches, one of them the session's for
/// orders, which it reads once.
async fn first_joins(etcd: &Etcd, election: &Election, watching: u64) -> Result<Candidate> {
    let before = Requests::count(etcd).await;
    let candidate = soon("campaign", election.campaign()).await?;
    watchers(etcd, watching).await?;
    eventually(SOON, "the orders are read", async || {
        (Requests::since(etcd, before).await.range > 0).then_some(())
    })
    .await?;
    Ok(candidate)
}

/// Waits until the candidate has the status waiting.
async fn waits(candidate: &Candidate, ahead: usize) -> Result {
    let wanted = Status::waiting(ahead);
    soon("status", candidate.subscribe().wait_for(|s| *s == wanted)).await?;
    Ok(())
}

/// Waits until the requests have arrived. No others follow.
async fn costs(etcd: &Etcd, before: Requests, cost: Requests) -> Result {
    costs_one_of(etcd, before, &[cost]).await
}

/// Checks as [`costs`] does, if the requests depend on the order of answers.
async fn costs_one_of(etcd: &Etcd, before: Requests, costs: &[Requests]) -> Result {
    let mut sent = NONE;
    let met = eventually(SOON, "the requests", async || {
        sent = Requests::since(etcd, before).await;
        costs.contains(&sent).then_some(())
    });
    let met = met.await;
    assert!(met.is_ok(), "{sent:?} is none of {costs:?}");
    // Counts never fall, so one check at the end sees all requests.
    tokio::time::sleep(WHILE).await;
    let sent = Requests::since(etcd, before).await;
    assert!(costs.contains(&sent), "{sent:?} is none of {costs:?}");
    Ok(())
}

#[tokio::test]
async fn joining_costs_one_transaction_beyond_the_grant_of_the_lease() -> Result {
    let etcd = Etcd::start().await?;
    let session = quiet_session(&etcd, "a").await?;
    let before = Requests::count(&etcd).await;
    let mut candidates = Vec::new();
    for number in 0..10 {
        let election = session.election(format!("e{number}"))?;
        let mut candidate = soon("campaign", election.campaign()).await?;
        let leadership = elected(&mut candidate).await?;
        candidates.push((candidate, leadership));
        let sent = Requests::since(&etcd, before).await;
        assert_eq!((sent.txn, sent.grant), (number + 1, 1));
        watchers(&etcd, number + 2).await?;
    }
    // The session reads the orders to step down once, when it watches them.
    let cost = Requests {
        range: 1,
        txn: 10,
        grant: 1,
        ..NONE
    };
    costs(&etcd, before, cost).await
}

#[tokio::test]
async fn promotion_after_a_resignation_costs_no_request() -> Result {
    let etcd = Etcd::start().await?;
    let mut nodes = Vec::new();
    for (index, identity) in ["a", "b", "c"].into_iter().enumerate() {
        let session = quiet_session(&etcd, identity).await?;
        let election = session.election("e")?.watch_scope(WatchScope::Everyone);
        let candidate = first_joins(&etcd, &election, (index as u64 + 1) * 2).await?;
        nodes.push((session, candidate));
    }
    for (index, (_, candidate)) in nodes.iter_mut().enumerate() {
        let leadership = elected(candidate).await?;
        let before = Requests::count(&etcd).await;
        soon("resign", leadership.resign()).await?;
        // The delete is the leader's; the next one in the queue sends no request.
        costs(&etcd, before, Requests { txn: 1, ..NONE }).await?;
        assert!(index < 3);
    }
    Ok(())
}

#[tokio::test]
async fn promotion_after_an_expiry_costs_no_request() -> Result {
    let etcd = Etcd::start().await?;
    let endpoint = etcd.endpoint();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let leading = runtime.spawn(async move {
        let session = Session::connect([endpoint], short("a")).await?;
        let mut candidate = session.election("e")?.campaign().await?;
        let leadership = candidate.elected().await?;
        Ok::<_, eldest::Error>((candidate, leadership))
    });
    let crashes = soon("leading", leading).await??;
    let session = quiet_session(&etcd, "b").await?;
    let mut b = soon("campaign", session.election("e")?.campaign()).await?;
    waits(&b, 1).await?;
    runtime.shutdown_background();
    // The leader's last requests may still arrive.
    let mut before = Requests::count(&etcd).await;
    stays(WHILE, "the leader is gone", async || {
        before = Requests::count(&etcd).await;
        true
    })
    .await?;
    let leadership = elected(&mut b).await?;
    assert!(leadership.is_valid());
    costs(&etcd, before, NONE).await?;
    drop(crashes);
    Ok(())
}

#[tokio::test]
async fn follower_of_its_predecessor_reads_the_queue_before_its_turn() -> Result {
    let etcd = Etcd::start().await?;
    let mut nodes = Vec::new();
    let mut standing = 0;
    for (ahead, identity) in ["a", "b", "c", "d"].into_iter().enumerate() {
        let session = quiet_session(&etcd, identity).await?;
        let election = session.election("e")?.watch_scope(WatchScope::Predecessor);
        // A candidate watches the orders, its own key, its predecessor's and the key before that.
        standing += ahead.min(2) as u64 + 2;
        let candidate = first_joins(&etcd, &election, standing).await?;
        nodes.push((session, candidate));
    }
    let [(_, a), (_, b), (_, c), (_, d)] = &mut nodes[..] else {
        panic!("four nodes");
    };
    let first = elected(a).await?;
    waits(d, 3).await?;

    // C's predecessor was not the last of the older ones: one read, and C waits behind A alone. D, two places behind,
    // reads too, because its turn may be near.
    let before = Requests::count(&etcd).await;
    soon("leave", b.leave()).await?;
    waits(c, 1).await?;
    costs(
        &etcd,
        before,
        Requests {
            txn: 1,
            range: 2,
            ..NONE
        },
    )
    .await?;

    // C's predecessor was the last of the older ones: no read. D saw the event too, and knows that only C is left.
    let before = Requests::count(&etcd).await;
    soon("resign", first.resign()).await?;
    let third = elected(c).await?;
    costs(&etcd, before, Requests { txn: 1, ..NONE }).await?;

    // D knew three older ones, but that is outdated.
    let before = Requests::count(&etcd).await;
    soon("resign", third.resign()).await?;
    let fourth = elected(d).await?;
    assert!(fourth.fencing_token() > third.fencing_token());
    costs(&etcd, before, Requests { txn: 1, ..NONE }).await
}

#[tokio::test]
async fn renewing_costs_the_same_with_one_election_and_with_fifty() -> Result {
    let etcd = Etcd::start().await?;
    let session = Session::connect([etcd.endpoint()], short("a")).await?;
    let mut held = Vec::new();
    for elections in [1, 50] {
        while held.len() < elections {
            let election = session.election(format!("e{}", held.len()))?;
            let mut candidate = soon("campaign", election.campaign()).await?;
            let leadership = elected(&mut candidate).await?;
            held.push((candidate, leadership));
        }
        // The orders have a watch as well.
        watchers(&etcd, elections as u64 + 1).await?;
        // Each term costs one more put; each renewal sends a few of them.
        eventually(SOON, "each term is announced", async || {
            let overview = session.overview("").await.ok()?;
            let leaders = overview
                .queues()
                .iter()
                .map(|queue| queue.roster().leader());
            let announced = leaders.filter(|leader| leader.and_then(Member::leads_since).is_some());
            (announced.count() == elections).then_some(())
        })
        .await?;
        // The message that opens the stream is not verified.
        eventually(SOON, "the stream is open", async || {
            (Requests::count(&etcd).await.renewals >= 2).then_some(())
        })
        .await?;
        let before = Requests::count(&etcd).await;
        let sent = eventually(SOON, "two renewals", async || {
            let sent = Requests::since(&etcd, before).await;
            (sent.renewals >= 2).then_some(sent)
        })
        .await?;
        // Each renewal is verified by one read; the counts are read one after the other.
        assert!(
            sent.range.abs_diff(sent.renewals) <= 1,
            "{sent:?} with {elections}"
        );
        assert_eq!((sent.txn, sent.grant), (0, 0), "{sent:?} with {elections}");
        assert!(held.iter().all(|(_, leadership)| leadership.is_valid()));
    }
    Ok(())
}

#[tokio::test]
async fn a_hand_over_is_fast_even_to_a_new_successor() -> Result {
    // A watch that begins in the past waits for etcd's loop of 100 ms.
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let mut writer = etcd.client().await;
    let writing = tokio::spawn(async move {
        let mut pace = tokio::time::interval(Duration::from_millis(3));
        loop {
            pace.tick().await;
            if writer.put("noise", "x", None).await.is_err() {
                return;
            }
        }
    });
    let mut leader = quiet_session(&etcd, "first").await?;
    let mut candidate = soon("campaign", leader.election("e")?.campaign()).await?;
    let mut leadership = elected(&mut candidate).await?;
    let mut took = Vec::new();
    for turn in 0..11 {
        let next = quiet_session(&etcd, &format!("node {turn}")).await?;
        let mut successor = soon("campaign", next.election("e")?.campaign()).await?;
        let begun = Instant::now();
        let (resigned, won) = tokio::join!(leadership.resign(), elected(&mut successor));
        resigned?;
        let won = won?;
        took.push(begun.elapsed());
        leadership = won;
        candidate = successor;
        leader = next;
    }
    writing.abort();
    took.sort();
    let median = took[took.len() / 2];
    assert!(median < Duration::from_millis(60), "{took:?}");
    drop((leadership, candidate, leader));
    nothing_under(&mut client, "eldest/").await
}

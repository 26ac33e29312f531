//! Tests candidates that prepare for their terms, and leaders that wait for a warm successor.

use std::sync::Arc;
use std::time::Duration;

use eldest::{
    BoxError, CancellationToken, Candidate, Election, ErrorKind, Evacuate, Following, LostReason,
    Member, Session, StepDown, Term,
};
use eldest_testing::{MemoryEtcd, eventually};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::common::{
    Result, Running, SOON, Store, WHILE, elected, identities, in_memory, join_election, keys,
    options, queue, session, soon, stays, until_lost,
};

/// The limit of the leaders in this file; far below the TTL of [`options`].
const LIMIT: Duration = Duration::from_secs(30);
/// The time that a hand-over takes at most.
const HAND_OVER: Duration = Duration::from_secs(6);

/// A node whose preparation ends when the test says so.
struct Node {
    session: Session,
    election: Election,
    running: Running,
    /// The steps of the node: `prepares`, `stops`, `leads`.
    steps: mpsc::UnboundedReceiver<&'static str>,
    is_prepared: Arc<Notify>,
}

impl Node {
    async fn start(etcd: &impl Store, identity: &str) -> Result<Self> {
        let at = eldest::Announcement::default().with_data_center(identity);
        let session = etcd.session(options(identity).announcement(at)).await?;
        let election = session.election("e")?.warm_within(LIMIT);
        let (say, steps) = mpsc::unbounded_channel();
        let (is_prepared, says) = (Arc::new(Notify::new()), say.clone());
        let prepared = Arc::clone(&is_prepared);
        let runner = election.runner().prepare(move |following: Following| {
            let (say, prepared) = (says.clone(), Arc::clone(&prepared));
            async move {
                say.send("prepares")?;
                let stopped = following.stopped();
                if stopped
                    .run_until_cancelled(prepared.notified())
                    .await
                    .is_none()
                {
                    // The leader's work does not begin before the preparation has ended.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    say.send("stops")?;
                }
                Ok::<_, BoxError>(())
            }
        });
        let running = Running::with(runner, move |leadership| {
            let _ = say.send("leads");
            until_lost(leadership)
        });
        Ok(Self {
            session,
            election,
            running,
            steps,
            is_prepared,
        })
    }

    /// Waits for the next step.
    async fn does(&mut self, step: &str) {
        assert_eq!(soon(step, self.steps.recv()).await, Some(step));
    }
}

/// Starts a node that leads and one that waits behind it and prepares.
async fn leader_and_next(etcd: &impl Store) -> Result<(Node, Term, Node)> {
    let mut a = Node::start(etcd, "a").await?;
    let term = a.running.term().await;
    let mut b = Node::start(etcd, "b").await?;
    b.does("prepares").await;
    Ok((a, term, b))
}

/// Joins the election as a candidate that prepares without a runner.
async fn candidate(etcd: &impl Store, identity: &str) -> Result<(Election, Candidate)> {
    let election = session(etcd, identity).await?.election("e")?;
    let election = election.warm_within(LIMIT);
    let candidate = soon("campaign", election.campaign()).await?;
    Ok((election, candidate))
}

async fn warmths(election: &Election) -> Result<Vec<Option<bool>>> {
    let roster = election.roster().await?;
    Ok(roster.members().iter().map(Member::warmth).collect())
}

async fn shows(election: &Election, wanted: &[Option<bool>]) -> Result {
    Ok(eventually(SOON, format!("{wanted:?}"), async || {
        (warmths(election).await.ok()? == wanted).then_some(())
    })
    .await?)
}

/// Orders a hand-over of the leader a, and waits for its end.
async fn order(way: LostReason, a: &Node, ops: &Session) -> eldest::Result<()> {
    match way {
        LostReason::SteppedDown => a.election.step_down().await,
        LostReason::Ordered => {
            let order = StepDown::new().within(LIMIT * 2);
            let ordered = ops.election("e")?.order_step_down(order).await;
            ordered.map(drop)
        }
        _ => ops.evacuate(Evacuate::new("a")).await.map(drop),
    }
}

const WAYS: [LostReason; 3] = [
    LostReason::SteppedDown,
    LostReason::Ordered,
    LostReason::Evacuated,
];

/// Checks that the leader leads on until the next in line is warm, whatever the others are.
async fn hand_over_waits(etcd: &MemoryEtcd, way: LostReason) -> Result {
    let (a, term, mut b) = leader_and_next(etcd).await?;
    let (third, _third) = candidate(etcd, "c").await?;
    soon("warm", third.set_warm(true)).await?;
    shows(&third, &[None, Some(false), Some(true)]).await?;
    let ops = session(etcd, "ops").await?;
    let ordered = order(way, &a, &ops);
    let waits = async {
        stays(WHILE, "it leads on", async || term.lost_reason().is_none()).await?;
        b.is_prepared.notify_one();
        b.does("leads").await;
        Result::Ok(())
    };
    let (ordered, waited) = tokio::join!(ordered, waits);
    ordered?;
    waited?;
    assert_eq!(term.lost_reason(), Some(way));
    queue(&third, &["b", "c", "a"]).await?;
    // Its key is a new one.
    shows(&third, &[None, Some(true), Some(false)]).await?;
    for node in [a, b] {
        node.running.stop().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn ordered_leader_leads_on_until_the_next_in_line_is_warm() -> Result {
    for way in WAYS {
        hand_over_waits(&in_memory(), way).await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn leader_hands_over_to_a_cold_successor_at_the_limit() -> Result {
    for way in WAYS {
        let etcd = in_memory();
        let (a, term, mut b) = leader_and_next(&etcd).await?;
        let ops = session(&etcd, "ops").await?;
        let begun = Instant::now();
        let (ordered, ()) = tokio::join!(order(way, &a, &ops), async {
            tokio::time::timeout(LIMIT + HAND_OVER, term.lost().cancelled())
                .await
                .expect("the limit has passed");
        });
        ordered?;
        assert!(begun.elapsed() >= LIMIT, "{way:?}: {:?}", begun.elapsed());
        b.does("stops").await;
        b.does("leads").await;
        for node in [a, b] {
            node.running.stop().await?;
        }
    }
    Ok(())
}

/// Checks that the leader awaits the candidate behind a successor that has left, until the limit of the first one.
async fn successor_leaves(way: LostReason, next_is_warm: bool) -> Result {
    let etcd = in_memory();
    let (a, term, b) = leader_and_next(&etcd).await?;
    let (behind, mut c) = candidate(&etcd, "c").await?;
    let ops = session(&etcd, "ops").await?;
    let begun = Instant::now();
    let (ordered, led) = tokio::join!(order(way, &a, &ops), async {
        stays(LIMIT / 2, "it leads on", async || term.is_valid()).await?;
        b.running.stop().await?;
        stays(WHILE, "it awaits c", async || term.is_valid()).await?;
        if next_is_warm {
            soon("warm", behind.set_warm(true)).await?;
        }
        elected(&mut c).await
    });
    ordered?;
    assert!(led?.is_valid() && term.lost_reason() == Some(way));
    let limit = if next_is_warm { LIMIT / 2 } else { LIMIT };
    let range = limit..limit + HAND_OVER + WHILE;
    assert!(range.contains(&begun.elapsed()), "{:?}", begun.elapsed());
    a.running.stop().await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn leader_awaits_the_next_candidate_when_its_cold_successor_leaves() -> Result {
    for way in WAYS {
        successor_leaves(way, true).await?;
        successor_leaves(way, false).await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn lost_term_and_lone_leader_do_not_wait() -> Result {
    let etcd = in_memory();
    let mut a = Node::start(&etcd, "a").await?;
    let alone = a.running.term().await;
    let begun = Instant::now();
    a.election.step_down().await?;
    let term = a.running.term().await;
    assert!(term.fencing_token() > alone.fencing_token());
    let mut b = Node::start(&etcd, "b").await?;
    b.does("prepares").await;
    let (stepped, deleted) = tokio::join!(a.election.step_down(), async {
        stays(WHILE, "it leads on", async || term.is_valid()).await?;
        etcd.client().await.delete(term.key(), None).await?;
        Result::Ok(())
    });
    stepped?;
    deleted?;
    assert_eq!(term.lost_reason(), Some(LostReason::KeyDeleted));
    b.does("stops").await;
    b.does("leads").await;
    assert!(begun.elapsed() < LIMIT);
    // A caller that gives up withdraws.
    let term = b.running.term().await;
    let gives_up = tokio::time::timeout(WHILE, b.election.step_down());
    assert!(gives_up.await.is_err(), "a is not warm");
    stays(LIMIT, "it leads", async || term.is_valid()).await?;
    b.running.stop().await?;
    a.running.stop().await
}

#[tokio::test(start_paused = true)]
async fn node_prepares_while_it_is_next_in_line_and_stops_before_it_leads() -> Result {
    let etcd = in_memory();
    let mut a = Node::start(&etcd, "a").await?;
    a.running.term().await;
    let (_c, election, mut c) = join_election(&etcd, "c").await?;
    let mut b = Node::start(&etcd, "b").await?;
    queue(&election, &["a", "c", "b"]).await?;
    stays(WHILE, "c is older", async || b.steps.is_empty()).await?;
    soon("leave", c.leave()).await?;
    b.does("prepares").await;
    b.is_prepared.notify_one();
    shows(&election, &[None, Some(true)]).await?;
    // Its next key is behind another one, so it is not warm.
    let (_d, _, d) = join_election(&etcd, "d").await?;
    let own = keys(&mut etcd.client().await, "eldest/e/").await;
    let own = own.iter().find(|key| key.is_of("b")).ok_or("b")?;
    etcd.client()
        .await
        .delete(own.path.as_bytes(), None)
        .await?;
    queue(&election, &["a", "d", "b"]).await?;
    shows(&election, &[None, None, Some(false)]).await?;
    drop(d);
    b.does("prepares").await;
    // The preparation is not done when the node is elected.
    a.running.stop().await?;
    b.does("stops").await;
    b.does("leads").await;
    let roster = election.roster().await?;
    assert_eq!(identities(&roster), ["b"]);
    assert_eq!(warmths(&election).await?, [None]);
    b.running.stop().await?;
    b.session.close().await?;
    Ok(())
}

/// The next key of a node is next in line at once, while the preparation for the one before still stops.
#[tokio::test(start_paused = true)]
async fn node_whose_key_is_replaced_is_cold_until_it_has_prepared_again() -> Result {
    let etcd = in_memory();
    let (a, _, mut b) = leader_and_next(&etcd).await?;
    let election = session(&etcd, "ops").await?.election("e")?;
    for is_warm in [false, true] {
        if is_warm {
            b.is_prepared.notify_one();
            shows(&election, &[None, Some(true)]).await?;
        }
        let own = keys(&mut etcd.client().await, "eldest/e/").await;
        let own = own.iter().find(|key| key.is_of("b")).ok_or("b")?;
        etcd.client()
            .await
            .delete(own.path.as_bytes(), None)
            .await?;
        if !is_warm {
            b.does("stops").await;
        }
        b.does("prepares").await;
        shows(&election, &[None, Some(false)]).await?;
        let is_cold = async || {
            warmths(&election)
                .await
                .is_ok_and(|of| of[1] == Some(false))
        };
        stays(WHILE, "nobody has prepared it", is_cold).await?;
    }
    b.is_prepared.notify_one();
    shows(&election, &[None, Some(true)]).await?;
    a.running.stop().await?;
    b.does("leads").await;
    b.running.stop().await?;
    b.session.close().await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_preparation_that_panics_before_its_first_await_waits_for_the_followers_work() -> Result {
    let etcd = in_memory();
    let (_a, election, mut a) = join_election(&etcd, "a").await?;
    let _leader = elected(&mut a).await?;
    let b = session(&etcd, "b").await?.election("e")?;
    let (say, mut steps) = mpsc::unbounded_channel();
    let ends = move |following: Following| {
        let say = say.clone();
        async move {
            following.stopped().cancelled().await;
            tokio::task::yield_now().await;
            say.send("ended")?;
            Ok::<_, BoxError>(())
        }
    };
    let panics = |_: Following| -> std::future::Ready<Result> { panic!("broken") };
    let runner = b.runner().follow(ends).prepare(panics);
    let run = tokio::spawn(runner.run(CancellationToken::new(), until_lost));
    let ended = soon("it ends", run).await;
    assert!(ended.expect_err("it panicked").is_panic());
    assert_eq!(steps.try_recv(), Ok("ended"));
    queue(&election, &["a"]).await
}

/// Checks that the follower's work ends before the run does if the preparation fails, or the other way round.
async fn other_work_ends(etcd: &MemoryEtcd, is_preparation: bool, panics: bool) -> Result {
    let b = session(etcd, "b").await?.election("e")?;
    let (say, mut steps) = mpsc::unbounded_channel();
    let begins = Arc::new(Notify::new());
    let begun = Arc::clone(&begins);
    let fails = move |_: Following| {
        let begun = Arc::clone(&begun);
        async move {
            begun.notified().await;
            assert!(!panics, "broken");
            Err::<(), BoxError>("broken".into())
        }
    };
    let ends = move |following: Following| {
        let say = say.clone();
        begins.notify_one();
        async move {
            following.stopped().cancelled().await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            say.send("ended")?;
            Ok::<_, BoxError>(())
        }
    };
    let runner = if is_preparation {
        b.runner().follow(ends).prepare(fails)
    } else {
        b.runner().follow(fails).prepare(ends)
    };
    let run = tokio::spawn(runner.run(CancellationToken::new(), until_lost));
    match soon("it ends", run).await {
        Ok(ended) => {
            let error = ended.expect_err("it failed");
            assert_eq!(error.kind(), ErrorKind::Work, "{error}");
            assert!(error.report().to_string().contains("broken"), "{error}");
        }
        Err(error) => assert!(panics && error.is_panic(), "{error}"),
    }
    assert_eq!(steps.try_recv(), Ok("ended"), "{is_preparation} {panics}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn failed_preparation_and_failed_follower_work_each_await_the_other() -> Result {
    let etcd = in_memory();
    let (_a, election, mut a) = join_election(&etcd, "a").await?;
    let _leader = elected(&mut a).await?;
    for (is_preparation, panics) in [(true, false), (false, false), (true, true), (false, true)] {
        other_work_ends(&etcd, is_preparation, panics).await?;
        queue(&election, &["a"]).await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn warmth_is_announced_without_a_runner_for_the_present_key_alone() -> Result {
    let etcd = in_memory();
    let (a, mut leads) = candidate(&etcd, "a").await?;
    let leadership = elected(&mut leads).await?;
    let (b, mut waits) = candidate(&etcd, "b").await?;
    assert_eq!(warmths(&a).await?, [None, Some(false)]);
    for is_warm in [true, false, true] {
        soon("announced", b.set_warm(is_warm)).await?;
        assert_eq!(warmths(&a).await?, [None, Some(is_warm)]);
    }
    soon("proclaim", waits.proclaim(eldest::Announcement::new("b2"))).await?;
    assert_eq!(warmths(&a).await?, [None, Some(true)], "it stays so");
    let refused = |outcome: eldest::Result<()>, kind| {
        assert_eq!(outcome.expect_err("refused").kind(), kind);
    };
    refused(soon("leads", a.set_warm(true)).await, ErrorKind::Ended);
    let plain = etcd.session(options("c")).await?.election("e")?;
    refused(plain.set_warm(true).await, ErrorKind::InvalidInput);
    let none = plain.warm_within(LIMIT);
    refused(soon("none", none.set_warm(true)).await, ErrorKind::Ended);
    // Stepping down with `Leadership` says that the work has ended, so it does not wait.
    soon("not warm", b.set_warm(false)).await?;
    let begun = Instant::now();
    leadership.step_down().await?;
    let next = elected(&mut waits).await?;
    assert!(begun.elapsed() < HAND_OVER);
    shows(&b, &[None, Some(false)]).await?;
    drop(next);
    Ok(())
}

async fn refuses(etcd: &MemoryEtcd, option: impl Fn(Election) -> Election, rule: &str) -> Result {
    let election = option(session(etcd, "n").await?.election("e")?);
    let error = election.campaign().await.map(drop).expect_err(rule);
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.to_string().contains(rule), "{error}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn warm_within_refuses_plain_strings_and_limits_out_of_bounds() -> Result {
    let etcd = in_memory();
    let hour = Duration::from_secs(60 * 60);
    for limit in [Duration::ZERO, hour] {
        refuses(&etcd, |e| e.warm_within(limit), "warm_within is").await?;
    }
    let order = StepDown::new().within(hour + Duration::from_millis(1));
    let ops = session(&etcd, "ops").await?.election("e")?;
    let error = ops.order_step_down(order).await.expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    let longest = hour.saturating_sub(Duration::from_millis(1));
    let plain = |e: Election| e.warm_within(longest).announcement("n");
    refuses(&etcd, plain, "do not set `warm_within`").await?;
    let long = eldest::Announcement::new("a").with_metadata("m", "x".repeat(32 * 1024 - 70));
    let long = |e: Election| e.warm_within(longest).announcement(long.clone());
    refuses(&etcd, long, "in an election with `warm_within`").await?;
    let (election, candidate) = candidate(&etcd, "a").await?;
    let error = candidate.proclaim("a").await.expect_err("a plain string");
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert_eq!(identities(&election.roster().await?), ["a"]);
    Ok(())
}

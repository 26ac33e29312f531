//! The walk of docs/compose.md through three data centres, with either generation of Compose: its commands are run as
//! written there, its lines are the expected output, and the front is called throughout.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use eldest_testing::eventually;
use futures::FutureExt;

use crate::composed::{GUARDED, Line, NODE_PORT, NODES, WORKER_PORT, compose, since_boot};
use crate::front::{Asked, Callers, between_checks, now};
use crate::lab::Result;
use crate::members::Key;
use crate::steps::Step;
use crate::walker::{PATIENCE, UP, Walk, in_time, only, silent};

/// The TTL in docker-compose.yml.
const TTL: Duration = Duration::from_secs(5);
/// The TTL of the nodes with a guard.
const GUARDED_TTL: Duration = Duration::from_secs(60);
/// The time that a program has to finish: the grace period of `eldest run`, and its lead at that TTL.
const WIND_UP: Duration = Duration::from_millis(1250);
/// etcd checks for expired leases twice a second.
const EXPIRY: Duration = Duration::from_millis(500);
/// The time that a takeover may take beyond that: etcd's revocation, its notification, and a program's start.
const SLACK: Duration = Duration::from_secs(2);

const LOGS: &str = "docker-compose logs --no-color --no-log-prefix node1 node2 node3 | sort";
const STEP_DOWN: &str = "curl -s -X POST -H 'Authorization: Bearer demo' http://$(docker-compose port node1 8470)/v1/elections/demo/step_down";
const REMOVE: &str = "docker-compose --profile agent down --volumes";
/// The number of requests that wait for a frozen node.
const WAITING: usize = 20;

/// The number of attempts. A busy machine can be too slow for the walk, but hardly three times in a row.
const WALKS: usize = 3;

/// Takes steps of the walk, and repeats them if the machine was too slow. The last output says why they failed.
async fn walk(program: &str, kind: &str, take: impl AsyncFn(&mut Walk) -> Result) -> Result {
    let mut again = 1..WALKS;
    loop {
        let mut walk = Walk::new(program, kind).await?;
        let taken = AssertUnwindSafe(take(&mut walk)).catch_unwind();
        let error = match taken.await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            // The message was printed.
            Err(_) => "a panic, printed above".into(),
        };
        let excuse = walk.excuse(&error).await;
        println!("{}", walk.demo.logs());
        match excuse {
            Ok(Some(why)) if again.next().is_some() => println!("once more: {error} ({why})"),
            Ok(Some(why)) => {
                return Err(format!("{error}; {WALKS} walks, each too slow: {why}").into());
            }
            Ok(None) => return Err(error),
            Err(wrong) => return Err(format!("{wrong} (after {error})").into()),
        }
    }
}

/// Takes the first steps: everything starts, one node leads, and the front reaches it. Returns the leader's line.
async fn come_up(walk: &mut Walk) -> Result<Line> {
    let news = walk.step(UP).await?;
    let first = walk.part(NODES[0]).to_owned();
    let led = only(&news, &first, "I work with")?.clone();
    walk.step(LOGS).await?;
    assert!(walk.output.contains(&led.text), "{}", walk.output);
    walk.step("docker-compose exec -T node2 eldest status demo")
        .await?;
    walk.step("curl -s http://$(docker-compose port front 80)")
        .await?;
    walk.callers = Some(Callers::start(walk.demo.port("front", 80)?));
    walk.reach(&first).await?;
    Ok(led)
}

/// Removes the copy, and checks that nothing is left.
fn remove(walk: &mut Walk) -> Result {
    walk.pulse = None;
    walk.demo.run(REMOVE)?;
    assert!(walk.demo.find()?.is_empty(), "containers are left");
    Ok(())
}

async fn take(walk: &mut Walk, kind: &str) -> Result {
    let led = come_up(walk).await?;
    let names = NODES.map(|part| walk.part(part).to_owned());
    let [first, next, last] = &names;
    let stood = walk.wait_for_queue(&NODES, led.token()).await?;
    resigns(walk, kind, &stood, [first, next]).await?;
    dies_and_comes_back(walk, kind, [next, last]).await?;
    let leads = is_frozen(walk, kind, [first, last]).await?;

    // One member less changes nothing, for longer than a TTL, and the leader works on.
    walk.demo.lead_by_the_one_that_stays().await?;
    walk.step("docker-compose stop etcd1").await?;
    let stayed = walk.callers().stay(TTL + Duration::from_secs(1)).await?;
    silent("one etcd less", &walk.news().await?)?;
    assert!(stayed, "the front was answered under another token");
    walk.wait_for_queue(&NODES, leads.token()).await?;

    loses_the_quorum(walk, [first, next]).await?;
    has_a_quorum_again(walk, next).await?;
    walk.judge().await?;
    walk.callers = None;
    a_guarded_leader_dies(walk).await?;

    let step = walk.steps.next().unwrap_or_default();
    assert_eq!(step.command, REMOVE);
    remove(walk)?;
    let rest: Vec<Step> = walk.steps.by_ref().collect();
    assert!(rest.is_empty(), "the page goes on: {rest:?}");
    Ok(())
}

/// Returns how long the front may take to notice that no node leads: until its next check.
fn notice_time() -> Duration {
    between_checks() + SLACK
}

/// Makes the leader resign: the hand-over takes the time that its worker needs to finish, never a TTL.
async fn resigns(walk: &mut Walk, kind: &str, stood: &[Key], [first, next]: [&str; 2]) -> Result {
    let from = walk.callers().count();
    let news = walk.step(STEP_DOWN).await?;
    let leads = only(&news, next, "I work with")?.clone();
    walk.reach(next).await?;
    walk.answered(&format!("{kind}: hand-over"), from, WIND_UP + notice_time())?;
    let stand = walk
        .wait_for_queue(&["node2", "node3", "node1"], leads.token())
        .await?;
    // No takeover waited for a lease's end.
    let lease = |keys: &[Key]| {
        let own = keys.iter().find(|key| key.node == first);
        own.map(|key| key.lease)
    };
    if lease(&stand) != lease(stood) {
        return Err(format!("{first} resigned, and has another lease").into());
    }
    Ok(())
}

/// Kills the leader: the next eldest leads in time. The killed node returns, and does not preempt.
async fn dies_and_comes_back(walk: &mut Walk, kind: &str, [next, last]: [&str; 2]) -> Result {
    let from = walk.callers().count();
    let news = walk.step("docker-compose kill node2").await?;
    let died = walk.demo.ended("node2")?;
    let leads = only(&news, last, "I work with")?.clone();
    let took = leads.at.duration_since(died).unwrap_or_default();
    let lead = format!("{last}'s lead after {next}'s death");
    in_time(&lead, took, TTL + EXPIRY + SLACK)?;
    walk.reach(last).await?;
    let crash = format!("{kind}: crash (TTL {TTL:?})");
    walk.answered(&crash, from, TTL + EXPIRY + notice_time())?;
    walk.wait_for_queue(&["node3", "node1"], leads.token())
        .await?;

    walk.step("docker-compose start node2").await?;
    walk.wait_for_queue(&["node3", "node1", "node2"], leads.token())
        .await?;
    silent(&format!("{next} came back"), &walk.news().await?)
}

/// Freezes the leader beyond its deadline. It must answer the requests that arrive meanwhile when it wakes.
async fn is_frozen(walk: &mut Walk, kind: &str, [first, last]: [&str; 2]) -> Result<Line> {
    let from = walk.callers().count();
    walk.frozen = Some(last.to_owned());
    let doors = [
        (walk.demo.port(last, WORKER_PORT)?, "/"),
        (walk.demo.port(last, NODE_PORT)?, "/leader"),
    ];
    let news = walk.step("docker-compose pause node3").await?;
    let leads = only(&news, first, "I work with")?.clone();
    walk.reach(first).await?;
    let frozen = format!("{kind}: frozen (TTL {TTL:?})");
    walk.answered(&frozen, from, TTL + EXPIRY + notice_time())?;
    let mut asked = Vec::new();
    for (door, path) in doors {
        for _ in 0..WAITING {
            asked.push(Asked::send(door, path).await?);
        }
    }
    walk.step("docker-compose unpause node3").await?;
    for asked in asked {
        let answer = asked.answer().await?;
        assert!(!answer.starts_with("HTTP/1.1 200"), "{last}: {answer}");
    }
    walk.wait_for_queue(&NODES, leads.token()).await?;
    walk.reach(first).await?;
    walk.frozen = None;
    Ok(leads)
}

/// Stops two members: no node leads before a lease can expire.
async fn loses_the_quorum(walk: &mut Walk, [first, next]: [&str; 2]) -> Result {
    walk.without_quorum = Some(now());
    let news = walk.step("docker-compose stop etcd2").await?;
    let cut = walk.demo.ended("etcd2")?;
    walk.without_quorum = Some(since_boot(cut));
    let over = only(&news, first, "I was asked to end")?;
    let took = over.at.duration_since(cut).unwrap_or_default();
    let end = format!("{first}'s worker's end without a quorum");
    in_time(&end, took, TTL)?;
    walk.step("curl -s http://$(docker-compose port node3 8470)/leader")
        .await?;
    for node in [first, next] {
        let door = walk.demo.port(node, NODE_PORT)?;
        let what = format!("{node} says that its lease is lost");
        eventually(PATIENCE, what, async || {
            let asked = Asked::send(door, "/leader").await.ok()?;
            let answer = asked.answer().await.ok()?;
            let is_lost =
                answer.starts_with("HTTP/1.1 503") && answer.contains("\"session\":\"lost\"");
            is_lost.then_some(())
        })
        .await?;
    }
    // However slow any part is, a lease that was renewed before lasts for a TTL.
    let permitted = walk.callers().permitted_until();
    assert!(
        permitted <= since_boot(cut) + TTL,
        "{first} might act until {permitted:?}, etcd went at {:?}",
        since_boot(cut)
    );
    Ok(())
}

/// Starts both members again: the leader had given its place up, and the waiting nodes had kept theirs.
async fn has_a_quorum_again(walk: &mut Walk, next: &str) -> Result {
    let news = walk.step("docker-compose start etcd1 etcd2").await?;
    let leads = only(&news, next, "I work with")?;
    walk.wait_for_queue(&["node2", "node3", "node1"], leads.token())
        .await?;
    let news = walk.news().await?.into_iter();
    let others = news.filter(|line| line.token().is_some() && line.token() != leads.token());
    silent("others led too", &others.collect::<Vec<_>>())?;
    walk.reach(next).await
}

/// Starts two more nodes under a long TTL. When the leader's container is killed, no node waits for the end of its
/// lease.
async fn a_guarded_leader_dies(walk: &mut Walk) -> Result {
    const ELECTION: &str = "guarded";
    walk.step("docker-compose --profile agent up -d").await?;
    walk.demo.find()?;
    let what = "the agent guards both nodes, which stand";
    let queue = eventually(PATIENCE, what, async || {
        let queue = walk.demo.queue_of(ELECTION).await.ok()?;
        let status = "docker-compose --profile agent exec -T agent eldest agent status";
        let printed = walk.demo.run(status).ok()?;
        let all_guarded = GUARDED.iter().all(|node| printed.contains(node));
        (all_guarded && queue.len() == GUARDED.len()).then_some(queue)
    });
    let nodes = queue.await?.into_iter().map(|key| key.node);
    walk.demo.parts.extend(GUARDED.into_iter().zip(nodes));
    walk.step("docker-compose exec -T node1 eldest status guarded")
        .await?;
    let begun = now();
    walk.step("docker-compose --profile agent kill guarded1")
        .await?;
    let next = walk.part("guarded2").to_owned();
    eventually(PATIENCE, "the next node is the eldest", async || {
        let queue = walk.demo.queue_of(ELECTION).await.ok()?;
        matches!(&queue[..], [key] if key.node == next).then_some(())
    })
    .await?;
    let took = now().saturating_sub(begun);
    println!("a guarded leader's key was gone {took:?} after the command that killed it");
    in_time("the end of a guarded leader's key", took, GUARDED_TTL / 4)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_walk_goes_as_documented_on_compose_1() -> Result {
    walk(&compose('1')?, "v1", async |walk| take(walk, "v1").await).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_walk_goes_as_documented_on_compose_2() -> Result {
    walk(&compose('2')?, "v2", async |walk| take(walk, "v2").await).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_comes_up_and_its_front_reaches_the_leader() -> Result {
    let steps = async |walk: &mut Walk| {
        come_up(walk).await?;
        walk.callers = None;
        remove(walk)
    };
    walk(&compose('1')?, "up", steps).await
}

//! Plays the demo step by step, and checks the outcome of each step.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use eldest_testing::history::{Outcome, What};
use etcd_client::GetOptions;

use crate::events::Said;
use crate::model::{Condition, brief};
use crate::node::{RESIGN, WRITE_LATE};
use crate::table::Row;
use crate::world::World;

/// The nodes, in the order in which they join.
const NODES: [&str; 3] = ["alice", "bob", "carol"];
/// The limit for a hand-over, which takes milliseconds; the rest is for a busy machine.
const HAND_OVER: Duration = Duration::from_millis(500);
/// The limit after the end of a lease: etcd searches for expired leases every 500 ms; the rest is for the way to the
/// successor.
const EXPIRY: Duration = Duration::from_millis(600);
/// How long to wait for events without a bound to show.
const PATIENCE: Duration = Duration::from_secs(8);
/// The time for the user to read the picture.
const LOOK: Duration = Duration::from_millis(1200);

/// A step: its short name, its title, its purpose and its expected outcome.
struct Step {
    short: &'static str,
    title: &'static str,
    about: String,
    expected: String,
}

/// Plays all steps, until one fails. Adds the outcome of each to `rows`.
pub(crate) async fn play(world: &mut World, rows: &mut Vec<Row>) {
    for (index, step) in steps(world.ttl).into_iter().enumerate() {
        world.view.step(step.short, step.title, step.about);
        let outcome = match index {
            0 => join(world).await,
            1 => hand_over(world).await,
            2 => killed(world).await,
            3 => no_preemption(world).await,
            4 => frozen(world).await,
            _ => leave(world).await,
        };
        let outcome = outcome.map_err(|error| format!("{error:#}"));
        let message = outcome.as_ref().unwrap_or_else(|error| error);
        world.view.step_done(outcome.is_ok(), message);
        let failed = outcome.is_err();
        rows.push(Row {
            step: step.short.to_owned(),
            expected: step.expected,
            outcome,
        });
        if failed {
            return;
        }
        world.watch_for(LOOK).await;
    }
}

fn steps(ttl: Duration) -> [Step; 6] {
    let lease = ttl.as_secs_f64();
    let bound = (ttl + EXPIRY).as_secs_f64();
    let hand_over = brief(HAND_OVER);
    let [first, second, third] = NODES;
    let step = |short, title, about: &str, expected: String| Step {
        short,
        title,
        about: about.to_owned(),
        expected,
    };
    [
        step(
            "1 join",
            "1. Three nodes join, one after another",
            "Who has been there longest leads; the others wait in line.",
            format!("{first} leads, the others wait"),
        ),
        step(
            "2 resign",
            "2. The leader resigns",
            "It hands over: the next eldest leads at once, nobody waits for a lease to run out.",
            format!("{second} leads within {hand_over}"),
        ),
        step(
            "3 kill",
            "3. The leader is killed (SIGKILL)",
            &format!(
                "Nobody can tell dead from slow: its lease ({lease} s) runs out first, then the next leads."
            ),
            format!("{third}: {bound} s, not too early"),
        ),
        step(
            "4 restart",
            "4. The killed node starts again",
            "It goes to the end of the line. The leader goes on leading.",
            format!("{third} goes on, {second} is last"),
        ),
        step(
            "5 freeze",
            "5. The leader is frozen (SIGSTOP) beyond its lease, then woken (SIGCONT)",
            "The next takes over. Awake, the old leader must notice, and its late write be refused.",
            format!("{first}: {bound} s; write refused"),
        ),
        step(
            "6 leave",
            "6. The nodes leave, the leader last",
            "Each gives its key and its lease back.",
            "no key is left".to_owned(),
        ),
    ]
}

async fn join(world: &mut World) -> Result<String> {
    for name in NODES {
        start(world, name).await?;
        let wanted = format!("{name} stands in line");
        world
            .until(PATIENCE, &wanted, |model| {
                model.order().contains(&name).then_some(())
            })
            .await?;
    }
    let (_, leader, token) = world
        .until(PATIENCE, "somebody leads", |model| {
            let (at, who, token) = model.elected(0)?;
            Some((at, who.to_owned(), token))
        })
        .await?;
    in_line(world, NODES).await?;
    ensure!(leader == NODES[0], "{leader} leads, not {}", NODES[0]);
    written(world, 0, NODES[0]).await?;
    Ok(format!("{leader} leads with token {token}"))
}

async fn hand_over(world: &mut World) -> Result<String> {
    let [old, next, third] = NODES;
    let mark = world.mark();
    world.fleet.send_command(old, RESIGN).await?;
    let (led, _) = successor(world, mark, next, PATIENCE).await?;
    let resigned = world.model.find(mark, old, |event| {
        matches!(event.said, Said::Resigns { .. }).then_some(event.at)
    });
    let took = led.saturating_sub(resigned.context("nobody resigned")?);
    ensure!(took < HAND_OVER, "{next} led only after {}", brief(took));
    // The node that resigned is a candidate again, at the back of the queue.
    in_line(world, [next, third, old]).await?;
    written(world, mark, next).await?;
    Ok(format!("{next} after {}", brief(took)))
}

async fn killed(world: &mut World) -> Result<String> {
    let [_, old, next] = NODES;
    let mark = world.mark();
    let at = world.now();
    let pid = world.model.nodes.get(old).map(|node| node.pid);
    world.fleet.kill(old).await?;
    world.record(old, What::Killed);
    world.model.set(old, Condition::Killed);
    world.model.cause = Some((at, format!("{old} was killed")));
    world.say(format!("{old} is killed, without a chance to say goodbye"));
    // All its earlier reports must have arrived, because its last deadline is needed.
    world
        .until(PATIENCE, "the killed node's output ends", |model| {
            pid.filter(|pid| model.ended.contains(pid))
        })
        .await?;
    let took = takeover(world, mark, at, old, next).await?;
    written(world, mark, next).await?;
    Ok(format!("{next} after {took}, not too early"))
}

async fn no_preemption(world: &mut World) -> Result<String> {
    let [first, back, leader] = NODES;
    let mark = world.mark();
    start(world, back).await?;
    in_line(world, [leader, first, back]).await?;
    // A newcomer that preempted the leader would have done so by then.
    world.watch_for(world.ttl).await;
    if let Some((_, who, _)) = world.model.elected(mark) {
        bail!("{who} was elected though nothing had happened to {leader}");
    }
    let leads = world.model.nodes.get(leader).and_then(|node| node.term);
    ensure!(leads.is_some(), "{leader} does not lead any more");
    in_line(world, [leader, first, back]).await?;
    Ok(format!("{leader} goes on, {back} is last"))
}

async fn frozen(world: &mut World) -> Result<String> {
    let [next, third, old] = NODES;
    let mark = world.mark();
    let at = world.now();
    world.fleet.freeze(old).await?;
    world.record(old, What::Paused);
    world.model.set(old, Condition::Frozen);
    world.model.cause = Some((at, format!("{old} was frozen")));
    world.say(format!(
        "{old} is frozen; it will not notice that time goes by"
    ));
    let took = takeover(world, mark, at, old, next).await?;
    written(world, mark, next).await?;
    world.watch_for(LOOK).await;
    // The node reads this order when it continues: check, then write whatever the check says.
    let woken = world.mark();
    world.fleet.send_command(old, WRITE_LATE).await?;
    world.model.set(old, Condition::Running);
    world.say(format!(
        "{old} is woken, and still takes itself for the leader"
    ));
    world.record(old, What::Resumed);
    let resumed = world.now();
    world.fleet.thaw(old)?;
    let valid = world
        .until(PATIENCE, "the woken node checks its term", |model| {
            model.find(woken, old, |event| match event.said {
                // This skips an earlier answer that the node was about to report when it was frozen.
                Said::Checked { valid, .. } if event.at >= resumed => Some(valid),
                _ => None,
            })
        })
        .await?;
    ensure!(!valid, "is_valid() was true after {old} woke up");
    let outcome = world
        .until(PATIENCE, "the woken node's late write", |model| {
            model.find(woken, old, |event| match event.said {
                Said::Wrote {
                    outcome,
                    late: true,
                    ..
                } => Some(outcome),
                _ => None,
            })
        })
        .await?;
    ensure!(
        outcome == Outcome::Refused,
        "the late write was not refused: {outcome:?}"
    );
    let not_sent = world.model.find(woken, old, |event| {
        matches!(event.said, Said::NotSent { .. }).then_some(())
    });
    ensure!(not_sent.is_some(), "the library sent a late write");
    let value = value(world).await?;
    ensure!(value > 0, "the late write was applied");
    in_line(world, [next, third, old]).await?;
    Ok(format!("{next} after {took}; write refused"))
}

async fn leave(world: &mut World) -> Result<String> {
    let order: Vec<String> = world.model.order().iter().map(|&n| n.to_owned()).collect();
    for name in order.iter().rev() {
        let pid = world.model.nodes.get(name).map(|node| node.pid);
        world.model.set(name, Condition::Leaving);
        world.record(name, What::Left);
        world.fleet.dismiss(name).await?;
        world
            .until(PATIENCE, "the node's output ends", |model| {
                pid.filter(|pid| model.ended.contains(pid))
            })
            .await?;
        world.say(format!("{name} has left"));
    }
    let prefix = format!("{}/{}/", world.setup.namespace, crate::args::ELECTION);
    let options = GetOptions::new().with_prefix().with_count_only();
    let left = world.client.get(prefix, Some(options)).await?.count();
    ensure!(left == 0, "{left} keys are left");
    let value = value(world).await?;
    world.record("etcd", What::FinalCounter { value });
    Ok("no key is left".to_owned())
}

async fn start(world: &mut World, name: &str) -> Result<()> {
    let pid = world.fleet.start(name)?;
    world.model.started(name, pid);
    world.say(format!("starts {name}, process {pid}"));
    // No event is expected yet, but a process that cannot start shows here.
    world.watch_for(Duration::ZERO).await;
    Ok(())
}

/// Waits until etcd has exactly these candidates, eldest first.
async fn in_line(world: &mut World, wanted: [&str; 3]) -> Result<()> {
    let what = format!("the line is {}", wanted.join(", "));
    let found = world.until(PATIENCE, &what, |model| {
        (model.order() == wanted).then_some(())
    });
    if let Err(error) = found.await {
        bail!("{error}; it is {}", world.model.order().join(", "));
    }
    Ok(())
}

/// Waits for the next election, which `next` must win; returns the time and the token.
async fn successor(
    world: &mut World,
    mark: usize,
    next: &str,
    patience: Duration,
) -> Result<(Duration, i64)> {
    let what = format!("{next} leads");
    let (led, who, token) = world
        .until(patience, &what, |model| {
            let (at, who, token) = model.elected(mark)?;
            Some((at, who.to_owned(), token))
        })
        .await?;
    ensure!(who == next, "{who} leads, not {next}");
    Ok((led, token))
}

/// Waits for the takeover from `old`, which ended without a word at `at`: its successor must lead in time, and not
/// before the deadline of `old`. Returns the duration.
async fn takeover(
    world: &mut World,
    mark: usize,
    at: Duration,
    old: &str,
    next: &str,
) -> Result<String> {
    let bound = world.ttl + EXPIRY;
    let (led, _) = successor(world, mark, next, bound + PATIENCE).await?;
    let took = led.saturating_sub(at);
    ensure!(took <= bound, "{next} led only after {}", brief(took));
    let deadlines = world
        .model
        .events
        .iter()
        .filter_map(|event| match event.said {
            Said::Checked {
                valid: true, until, ..
            } if event.node == old => Some(until),
            _ => None,
        });
    let deadline = deadlines.max().context("the old leader never checked")?;
    ensure!(
        led >= deadline,
        "{next} led {} before the deadline of {old}",
        brief(deadline.saturating_sub(led))
    );
    let after = brief(led.saturating_sub(deadline));
    world.say(format!(
        "{old} would have stopped by itself {after} before {next} began: never two leaders"
    ));
    Ok(brief(took))
}

/// Waits until a node's fenced write was admitted.
async fn written(world: &mut World, mark: usize, node: &str) -> Result<()> {
    let what = format!("a write of {node} is accepted");
    let admitted = world.until(PATIENCE, &what, |model| {
        model.find(mark, node, |event| match event.said {
            Said::Wrote {
                outcome: Outcome::Admitted { .. },
                ..
            } => Some(()),
            _ => None,
        })
    });
    admitted.await
}

/// Returns the counter that the leaders raise.
async fn value(world: &mut World) -> Result<u64> {
    let answer = world.client.get(world.setup.written_key(), None).await?;
    let kv = answer.kvs().first().context("nothing was ever written")?;
    Ok(kv.value_str()?.parse()?)
}

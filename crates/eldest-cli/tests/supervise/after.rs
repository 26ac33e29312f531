//! Tests the command of `--after`: it follows each program of a leader before another node's begins, whichever process is
//! killed or stopped.

use std::time::Duration;

use eldest_fixtures::text::has;
use eldest_fixtures::wait::until;
use etcd_client::{Event, EventType, WatchOptions};
use rustix::process::Signal;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::processes::{is_alive, now, signal};
use crate::shared::run;
use crate::stage::{ELECTION, FOR_EVER, Node, Result, SOON, Stage, TAKEOVER, TTL, millis};

/// Lasts for longer than any key's deletion takes, so that a key that is released too early is noticed.
const DOWN: &str = "echo down-begin >> DIARY; sleep 0.2; \
    echo down-$ELDEST_ID $ELDEST_END_REASON overlap=$ELDEST_MAY_OVERLAP $ELDEST_FENCING_TOKEN >> DIARY";
/// A lease that leaves the command of `DOWN` enough time on a busy machine.
pub(crate) const LONGER: Duration = Duration::from_secs(4);
const STUBBORN: &str = "trap '' TERM; while :; do sleep 0.05; done";

/// Starts a node with the command, around a script that says first that it is up.
fn node(stage: &Stage, name: &str, options: &[&str], script: &str) -> Result<Node> {
    let down = stage.diary().filled(DOWN);
    let run = ["run", ELECTION, "--after", &down];
    let script = format!("echo up-$ELDEST_ID $ELDEST_FENCING_TOKEN >> DIARY; {script}");
    stage.scripted(LONGER, name, &[&run, options].concat(), &script)
}

pub(crate) const ENOUGH: &[&str] = &["--after-limit", "1s", "--grace", "200ms"];

async fn leads(stage: &Stage, name: &str) -> Result<String> {
    let diary = stage.diary();
    let up = format!("up-{name} ");
    diary.says(&up).await?;
    let token = diary.lines().into_iter().rev();
    let token = { token }.find_map(|line| line.strip_prefix(&up).map(str::to_owned));
    Ok(token.ok_or("its token")?)
}

/// Returns what the diary says when etcd reports the deletion of the next key below that prefix.
async fn diary_at_deletion(stage: &Stage, prefix: &str) -> Result<JoinHandle<String>> {
    let mut client = stage.client().await;
    let options = WatchOptions::new().with_prefix();
    let mut watch = client.watch(prefix, Some(options)).await?;
    let diary = stage.diary();
    Ok(tokio::spawn(async move {
        let deleted = |event: &Event| event.event_type() == EventType::Delete;
        while let Ok(Some(answer)) = watch.message().await {
            if answer.events().iter().any(deleted) {
                break;
            }
        }
        diary.text()
    }))
}

#[tokio::test]
async fn both_keys_are_released_only_when_the_command_has_ended() -> Result {
    let stage = Stage::new().await?;
    let mut a = node(&stage, "a", ENOUGH, FOR_EVER)?;
    let token = leads(&stage, "a").await?;
    let key = diary_at_deletion(&stage, &format!("eldest/{ELECTION}/")).await?;
    let lock = diary_at_deletion(&stage, &format!("eldest/~run/{ELECTION}/")).await?;
    a.stop().await?;
    let down = format!("down-a stopped overlap=0 {token}\n");
    for said in [timeout(SOON, key).await??, timeout(SOON, lock).await??] {
        assert!(said.contains(&down), "a key was released at {said:?}");
    }
    Ok(())
}

#[tokio::test]
async fn command_of_a_leader_that_steps_down_precedes_the_next_program() -> Result {
    let stage = Stage::new().await?;
    let follow = ["--follow-cmd", "exit 0"];
    let mut a = node(&stage, "a", ENOUGH, FOR_EVER)?;
    let first = leads(&stage, "a").await?;
    let mut b = node(&stage, "b", &[ENOUGH, &follow].concat(), FOR_EVER)?;
    stage.has_candidate("b").await?;
    let order = ["step-down", ELECTION, "--node", "a"];
    stage.runs(TTL, &order).await?.with(0);
    let second = leads(&stage, "b").await?;
    stage.has_candidate("a").await?;
    // This node waits again: nothing of its former term is left to take down.
    a.stop().await?;
    b.stop().await?;
    let expected = [
        format!("up-a {first}"),
        "down-begin".to_owned(),
        format!("down-a ordered overlap=0 {first}"),
        format!("up-b {second}"),
        "down-begin".to_owned(),
        format!("down-b stopped overlap=0 {second}"),
    ];
    assert_eq!(stage.diary().lines(), expected);
    Ok(())
}

#[tokio::test]
async fn candidate_that_never_led_runs_no_command() -> Result {
    let stage = Stage::new().await?;
    let mut a = stage.script("a", &[], FOR_EVER)?;
    stage.has_candidate("a").await?;
    let mut b = node(&stage, "b", ENOUGH, FOR_EVER)?;
    stage.has_candidate("b").await?;
    let keepers = b.keepers();
    assert_eq!(keepers.len(), 1, "it waits for the next term");
    assert!(b.stop().await?.success());
    until(SOON, "the keeper has ended", async || {
        !is_alive(keepers[0].pid)
    })
    .await?;
    assert_eq!(stage.diary().lines(), [""; 0]);
    a.stop().await?;
    Ok(())
}

#[tokio::test]
async fn the_command_of_a_killed_supervisor_or_keeper_is_run_by_the_other_one() -> Result {
    for killed in ["supervisor", "keeper"] {
        let stage = Stage::new().await?;
        let mut a = node(&stage, "a", ENOUGH, FOR_EVER)?;
        let token = leads(&stage, "a").await?;
        let mut b = node(&stage, "b", ENOUGH, FOR_EVER)?;
        stage.has_candidate("b").await?;
        let (keeper, _) = a.runs().await?;
        let deleted = diary_at_deletion(&stage, &format!("eldest/{ELECTION}/")).await?;
        if killed == "supervisor" {
            a.kill().await?;
        } else {
            signal(keeper, Signal::KILL);
        }
        // The lease has not ended, or the key would have been deleted before.
        let said = timeout(TAKEOVER, deleted).await??;
        let down = format!("down-a killed overlap=0 {token}\n");
        has(&said, &[&down]);
        leads(&stage, "b").await?;
        b.stop().await?;
        a.stop().await?;
    }
    Ok(())
}

/// No process of the program is left then, so its end is known.
#[tokio::test]
async fn program_s_exit_code_outlives_a_keeper_that_dies_during_the_command() -> Result {
    let stage = Stage::new().await?;
    let diary = stage.diary();
    let note = "echo $ELDEST_END_REASON >> DIARY; [ $(wc -l < DIARY) -gt 1 ] || { kill -9 $PPID; sleep 1000; }";
    let note = diary.filled(note);
    let run = ["run", ELECTION, "--after", &note];
    let args = [&run, ENOUGH, &["--", "sh", "-c", "exit 3"]].concat();
    stage.runs(LONGER, &args).await?.with(3);
    assert_eq!(diary.lines(), ["program_ended", "program_ended"]);
    Ok(())
}

/// The time is counted from a moment after the last renewal. A supervisor kills the program of a stopped keeper half a lead late,
/// so a busy machine may leave the command less than its limit.
#[tokio::test]
async fn command_ends_before_the_lease_whatever_stops() -> Result {
    for (stopped, overlap) in [("etcd", "0"), ("supervisor", "0"), ("keeper and etcd", "")] {
        let stage = Stage::new().await?;
        let mut a = node(&stage, "a", ENOUGH, STUBBORN)?;
        leads(&stage, "a").await?;
        let (keeper, _) = a.runs().await?;
        if stopped.contains("keeper") {
            signal(keeper, Signal::STOP);
        }
        let paused = now();
        if stopped.contains("etcd") {
            stage.etcd.pause();
        } else {
            a.signal(Signal::STOP);
        }
        let down = format!("down-a lease_expiring overlap={overlap}");
        stage.diary().says(&down).await?;
        let took = now().saturating_sub(paused);
        assert!(
            took < LONGER,
            "{stopped}: it ended {took:?} after the last renewal"
        );
        stage.etcd.resume();
        a.stop().await?;
    }
    Ok(())
}

/// The command of a program whose end is noticed late has its whole limit, although the work of the term is dropped.
#[tokio::test]
async fn command_after_a_freeze_is_warned_that_a_successor_may_lead() -> Result {
    let stage = Stage::new().await?;
    let mut a = node(&stage, "a", ENOUGH, STUBBORN)?;
    leads(&stage, "a").await?;
    let (keeper, program) = a.runs().await?;
    let all = [a.pid(), keeper, program];
    for pid in all {
        signal(pid, Signal::STOP);
    }
    stage.is_free(&format!("eldest/{ELECTION}/")).await?;
    for pid in all {
        signal(pid, Signal::CONT);
    }
    stage.diary().says("overlap=1").await?;
    a.stop().await?;
    Ok(())
}

#[tokio::test]
async fn command_that_hangs_is_killed_at_its_limit_with_all_that_it_started() -> Result {
    let stage = Stage::new().await?;
    let pids = stage.path("pids");
    let hang = format!(
        "echo $$ >> {0}; setsid sh -c 'echo $$ >> {0}; exec sleep 1000' & wait",
        pids.display()
    );
    let run = ["run", ELECTION, "--after", &hang, "--no-cgroup"];
    let begun = now();
    let mut a = stage.scripted(LONGER, "a", &[&run, ENOUGH].concat(), "exit 3")?;
    assert_eq!(a.end().await?.code(), Some(3), "the program's code");
    assert!(now() > begun + millis(1000));
    let log = a.log();
    has(
        &log,
        &["the command of --after failed", "killed at its limit"],
    );
    let pids = std::fs::read_to_string(&pids)?;
    let pids: Vec<i32> = pids.lines().filter_map(|pid| pid.parse().ok()).collect();
    assert_eq!(pids.len(), 2, "{pids:?}");
    assert!(!pids.iter().any(|pid| is_alive(*pid)), "{pids:?}");
    Ok(())
}

/// The supervisor does not wait that long for a keeper that has only to sweep. At this TTL, it reads its clock every
/// three seconds only.
#[tokio::test]
async fn command_has_its_whole_limit_and_runs_once() -> Result {
    let stage = Stage::new().await?;
    let diary = stage.diary();
    let after = diary.filled("echo begin >> DIARY; sleep 1; echo end >> DIARY; exit 9");
    let run = ["run", ELECTION, "--after", &after, "--after-limit", "2s"];
    // The program ends late in the pause after the supervisor read its clock.
    let program = ["--grace", "1s", "--", "sh", "-c", "sleep 2.5; exit 3"];
    let args = [&run[..], &program].concat();
    let ended = stage.runs(Duration::from_secs(120), &args).await?;
    let log = ended.with(3);
    has(&log, &["the command of --after failed", "exit code 9"]);
    assert_eq!(diary.lines(), ["begin", "end"]);
    assert!(stage.keys("eldest/").await?.is_empty());
    Ok(())
}

/// An `eldest` that the program runs would otherwise run the command too, and require the version in another election.
#[tokio::test]
async fn variables_of_the_command_and_the_version_are_not_passed_to_the_program() -> Result {
    let stage = Stage::new().await?;
    let notes = |word: &str| {
        format!("echo {word}=$ELDEST_AFTER$ELDEST_AFTER_LIMIT$ELDEST_APP_VERSION. >> DIARY")
    };
    let diary = stage.diary();
    let [after, program] = ["after", "program"].map(|word| diary.shell(&notes(word)));
    for command in [&["run", ELECTION][..], &["lock", "res"]] {
        // A limit that a busy machine keeps.
        let mut eldest = stage.eldest(Duration::from_secs(60), command);
        eldest.env("ELDEST_AFTER", &after[2]);
        eldest.env("ELDEST_AFTER_LIMIT", "10s");
        if command[0] == "run" {
            eldest.env("ELDEST_APP_VERSION", "2.0");
        }
        eldest.arg("--").args(&program);
        run(eldest).await?.with(0);
    }
    let both = ["program=.", "after=."];
    assert_eq!(diary.lines(), [both, both].concat());
    Ok(())
}

#[tokio::test]
async fn each_partition_s_program_is_followed_by_the_command() -> Result {
    let stage = Stage::new().await?;
    let diary = stage.diary();
    let note = "echo $ELDEST_PARTITION/$ELDEST_PARTITION_COUNT $ELDEST_END_REASON >> DIARY";
    let after = diary.filled(note);
    let run = [
        "run",
        "--partitions",
        "shards",
        "--count",
        "2",
        "--after",
        &after,
    ];
    let up = format!("echo up >> DIARY; {FOR_EVER}");
    let mut a = stage.scripted(LONGER, "a", &run, &up)?;
    until(TAKEOVER, "both programs run", async || {
        diary.lines().len() == 2
    })
    .await?;
    assert!(a.stop().await?.success());
    let mut notes = diary.lines().split_off(2);
    notes.sort();
    assert_eq!(notes, ["0/2 stopped", "1/2 stopped"]);
    Ok(())
}

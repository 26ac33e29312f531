//! Tests that a program ends with its permission to run, whichever process is killed or stopped, and however the
//! program hides.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use eldest_fixtures::wait::until;
use eldest_testing::eventually;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, getsid, prlimit};

use crate::processes::{Seen, children, is_alive, now, signal};
use crate::stage::{ELECTION, Node, Result, SOON, Stage, TTL, millis};
use crate::worker::Line;

/// All manners that make a worker hard to end.
pub(crate) const HARD: &str = "stubborn,forks,setsid,detached";
/// A lease of this length lasts for at least 6 s from any point in time, while the grace period is 2 s.
const LONG: Duration = Duration::from_secs(10);
/// Longer than the grace period, shorter than any lease lasts.
const BEFORE_THE_LEASE_ENDS: Duration = Duration::from_secs(5);
/// Disables the cgroup: the guarantees tested here must hold without it.
const PLAIN: &[&str] = &["--no-cgroup"];

async fn first(stage: &Stage, node: &Node) -> Result<(Line, i32, i32)> {
    let worker = stage.next_worker(0).await?;
    let running = node.runs().await?;
    Ok((worker, running.0, running.1))
}

#[tokio::test]
async fn killed_supervisors_program_ends_long_before_the_lease() -> Result {
    for (manners, with_keeper) in [(HARD, false), ("stubborn", true)] {
        let stage = Stage::new().await?;
        let mut node = stage.patient_worker(LONG, "a", manners, PLAIN)?;
        let (worker, keeper, _) = first(&stage, &node).await?;
        if with_keeper {
            node.signal(Signal::STOP);
            signal(keeper, Signal::KILL);
        }
        node.kill().await?;
        stage
            .nothing_of(worker.token, BEFORE_THE_LEASE_ENDS)
            .await?;
        let mut lines = stage.judge().await?.into_iter();
        let is_asked = lines.any(|line| line.word == "term");
        assert!(is_asked || with_keeper, "the keeper asks it first");
    }
    Ok(())
}

/// Sets how many files a process may have open from now on. Files that are already open stay open.
fn allow_files(pid: i32, count: Option<u64>) -> Result {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: count.or(maximum),
        maximum,
    };
    prlimit(Pid::from_raw(pid), Resource::Nofile, limit)?;
    Ok(())
}

#[tokio::test]
async fn keeper_whose_poll_fails_still_keeps_the_deadline() -> Result {
    let stage = Stage::new().await?;
    let mut node = stage.patient_worker(LONG, "a", HARD, PLAIN)?;
    let (worker, keeper, program) = first(&stage, &node).await?;
    // poll() refuses more descriptors than the limit, and the keeper waits for several at a time.
    allow_files(keeper, Some(1))?;
    node.kill().await?;
    until(BEFORE_THE_LEASE_ENDS, "the program ends", async || {
        !is_alive(program)
    })
    .await?;
    // The keeper finds the program's children only by opening files.
    assert!(is_alive(keeper), "it does not leave them alone");
    allow_files(keeper, None)?;
    stage.nothing_of(worker.token, SOON).await?;
    stage.judge().await?;
    Ok(())
}

#[tokio::test]
async fn the_program_of_a_stopped_supervisor_is_gone_before_another_begins() -> Result {
    let stage = Stage::new().await?;
    let mut a = stage.worker("a", HARD, PLAIN)?;
    let (worker, _, _) = first(&stage, &a).await?;
    let mut b = stage.worker("b", "", PLAIN)?;
    stage.has_candidate("b").await?;
    a.signal(Signal::STOP);
    let second = stage.next_worker(worker.token).await?;
    stage.nothing_of(worker.token, Duration::ZERO).await?;
    a.signal(Signal::CONT);
    stage.has_candidate("a").await?;
    b.stop().await?;
    stage.next_worker(second.token).await?;
    a.stop().await?;
    stage.judge().await?;
    Ok(())
}

#[tokio::test]
async fn orphans_of_a_killed_keeper_are_swept_and_the_node_rejoins() -> Result {
    let stage = Stage::new().await?;
    let mut a = stage.patient_worker(LONG, "a", HARD, PLAIN)?;
    let (worker, keeper, _) = first(&stage, &a).await?;
    signal(keeper, Signal::KILL);
    stage
        .nothing_of(worker.token, BEFORE_THE_LEASE_ENDS)
        .await?;
    let second = stage.next_worker(worker.token).await?;
    assert!(second.token > worker.token);
    a.stop().await?;
    stage.judge().await?;
    Ok(())
}

#[tokio::test]
async fn stopped_keepers_program_ends_when_the_term_is_lost() -> Result {
    let stage = Stage::new().await?;
    let mut a = stage.worker("a", HARD, PLAIN)?;
    let (worker, keeper, _) = first(&stage, &a).await?;
    let mut b = stage.worker("b", "", PLAIN)?;
    stage.has_candidate("b").await?;
    signal(keeper, Signal::STOP);
    // Neither process receives a signal; the lease expires.
    let paused = now();
    stage.etcd.pause();
    stage.nothing_of(worker.token, TTL + SOON).await?;
    stage.etcd.resume();
    // The worker's own record is used, because the time until the test sees the end depends on the load of the machine.
    let beats = stage.lines().into_iter();
    let beats = beats.filter(|line| line.token == worker.token);
    let last = beats.map(|line| line.at).max().unwrap_or_default();
    assert!(
        last < paused + TTL,
        "it lived for {:?}",
        last.saturating_sub(paused)
    );
    assert!(!is_alive(keeper));
    stage.next_worker(worker.token).await?;
    b.stop().await?;
    a.stop().await?;
    stage.judge().await?;
    Ok(())
}

#[tokio::test]
async fn end_of_a_program_under_a_stopped_keeper_is_noticed_with_its_code() -> Result {
    let stage = Stage::new().await?;
    let mut a = stage.patient_worker(LONG, "a", "detached", PLAIN)?;
    let (worker, keeper, program) = first(&stage, &a).await?;
    signal(keeper, Signal::STOP);
    signal(program, Signal::KILL);
    let status = a.end().await?;
    assert_eq!(status.code(), Some(137));
    stage.nothing_of(worker.token, Duration::ZERO).await?;
    stage.judge().await?;
    Ok(())
}

/// No process can end a program while all are frozen, so the test judges what the program does afterwards.
#[tokio::test]
async fn program_frozen_with_its_supervisor_ends_at_once_on_waking() -> Result {
    const ROUNDS: usize = 3;
    let stage = Stage::new().await?;
    let mut a = stage.worker("a", "stubborn", PLAIN)?;
    let mut token = 0;
    let mut awake = Vec::new();
    for _ in 0..ROUNDS {
        let worker = stage.next_worker(token).await?;
        token = worker.token;
        let (keeper, program) = a.runs().await?;
        a.signal(Signal::STOP);
        for pid in [keeper, program] {
            signal(pid, Signal::STOP);
        }
        stage.is_free(&format!("eldest/{ELECTION}/")).await?;
        let woken = now();
        // The program is continued first, so it has the most time.
        for pid in [program, keeper, a.pid()] {
            signal(pid, Signal::CONT);
        }
        stage.nothing_of(token, SOON).await?;
        let beats = stage.lines().into_iter().filter(|line| line.token == token);
        let last = beats.map(|line| line.at).max().unwrap_or_default();
        awake.push(last.saturating_sub(woken));
    }
    awake.sort_unstable();
    println!("awake after the end of the lease for {awake:?}");
    // The quickest round counts, because the others may have waited for the machine. With a grace period all would take
    // twice as long.
    assert!(awake[0] < TTL / 10, "{awake:?}");
    stage.next_worker(token).await?;
    a.stop().await?;
    stage.judge().await?;
    Ok(())
}

async fn nothing_survives_the_end(options: &[&str]) -> Result {
    let stage = Stage::new().await?;
    let mut a = stage.patient_worker(LONG, "a", "storm,detached", options)?;
    let (worker, _, program) = first(&stage, &a).await?;
    let session = |pid| getsid(Pid::from_raw(pid)).ok();
    eventually(SOON, "a descendant has left the session", async || {
        // A process of the storm may be gone before its session is read, but it has reported it.
        let hides = |pid| session(pid).is_some_and(|other| Some(other) != session(program));
        let said = || stage.path("storm.apart").exists();
        let seen = || stage.marked().iter().any(|seen| hides(seen.pid));
        (said() || seen()).then_some(())
    })
    .await?;
    signal(program, Signal::KILL);
    let status = a.end().await?;
    assert_eq!(status.code(), Some(137));
    // The program must be gone before the key is released, and so before the supervisor's end.
    stage.nothing_of(worker.token, Duration::ZERO).await?;
    let left = stage.keys("eldest/").await?;
    assert!(
        left.is_empty(),
        "the next node would wait for the lease: {left:?}"
    );
    stage.judge().await?;
    Ok(())
}

#[tokio::test]
async fn no_child_survives_the_program_with_or_without_a_cgroup() -> Result {
    nothing_survives_the_end(PLAIN).await?;
    nothing_survives_the_end(&[]).await
}

/// Returns the folder of the cgroup of a process, if it is visible here.
pub(crate) fn cgroup(pid: i32) -> Option<PathBuf> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
    let folders = mounts.iter().map(|mount| Path::new(mount).join(group));
    { folders }.find(|folder| folder.join("cgroup.procs").exists())
}

/// Returns whether cgroups can be made here, and prints it if not.
pub(crate) fn may_make_cgroups() -> Result<bool> {
    let own = cgroup(i32::try_from(std::process::id())?);
    let name = format!("test-{}-{:016x}", std::process::id(), fastrand::u64(..));
    let probe = own.map(|own| own.join(name));
    let Some(probe) = probe.filter(|probe| std::fs::create_dir(probe).is_ok()) else {
        println!("left out: no cgroup may be made here");
        return Ok(false);
    };
    let can_kill = probe.join("cgroup.kill").exists();
    std::fs::remove_dir(&probe)?;
    if !can_kill {
        println!("left out: this kernel cannot kill a cgroup");
    }
    Ok(can_kill)
}

/// Joining a cgroup takes the kernel longer than the rest of a hand-over.
#[tokio::test]
async fn each_program_has_a_cgroup_and_waits_for_its_turn_there() -> Result {
    if !may_make_cgroups()? {
        return Ok(());
    }
    let stage = Stage::new().await?;
    let mut a = stage.patient_worker(LONG, "a", "", &[])?;
    let (_, keeper, program) = first(&stage, &a).await?;
    let of_a = cgroup(program).ok_or("the program's cgroup")?;
    assert!(
        of_a.ends_with(format!("eldest-{keeper}")),
        "{}",
        of_a.display()
    );
    let mut b = stage.patient_worker(LONG, "b", "", &[])?;
    stage.has_candidate("b").await?;
    let waiting = async || {
        let keeper = b.keepers().into_iter().next()?;
        let mut children = children(keeper.pid).into_iter();
        let waits = children.find(Seen::waits_for_its_turn)?;
        let folder = cgroup(waits.pid)?;
        folder
            .ends_with(format!("eldest-{}", keeper.pid))
            .then_some(folder)
    };
    let folder = eventually(SOON, "what waits has joined its cgroup", waiting).await?;
    b.stop().await?;
    // The keeper removes the cgroup, and may end after its supervisor.
    until(SOON, "the cgroup goes", async || !folder.exists()).await?;
    a.stop().await?;
    assert!(!of_a.exists(), "{} is left", of_a.display());
    stage.judge().await?;
    Ok(())
}

#[tokio::test]
async fn a_program_that_ignores_sigterm_is_killed_after_the_grace_period() -> Result {
    let stage = Stage::new().await?;
    let mut a = stage.patient_worker(LONG, "a", "stubborn", &["--no-cgroup", "--grace", "1s"])?;
    stage.next_worker(0).await?;
    let asked = now();
    let status = a.stop().await?;
    assert_eq!(status.code(), Some(137), "{status:?} {:?}", status.signal());
    let lines = stage.judge().await?;
    let last = lines.iter().map(|line| line.at).max().unwrap_or_default();
    assert!(last > asked + millis(900), "it had its grace period");
    Ok(())
}

/// The place is kept while the program winds up, for longer than an unrenewed lease lasts.
#[tokio::test]
async fn no_node_takes_over_while_a_stopping_node_winds_up() -> Result {
    let stage = Stage::new().await?;
    let mut a = stage.worker("a", "stubborn", &["--no-cgroup", "--stop-timeout", "60s"])?;
    let (worker, _, program) = first(&stage, &a).await?;
    let mut b = stage.worker("b", "", PLAIN)?;
    stage.has_candidate("b").await?;
    a.signal(Signal::TERM);
    eventually(SOON, "it received the signal", async || {
        let mut lines = stage.lines().into_iter();
        lines.find(|line| line.word == "term")
    })
    .await?;
    let asked = now();
    until(SOON, "longer than a lease lasts", async || {
        now() > asked + TTL + millis(1000)
    })
    .await?;
    assert!(
        stage.after(worker.token, "start").is_none(),
        "it winds up still"
    );
    assert!(is_alive(program));
    // A second signal shortens the wait.
    a.signal(Signal::TERM);
    a.end().await?;
    stage.next_worker(worker.token).await?;
    b.stop().await?;
    stage.judge().await?;
    Ok(())
}

/// The key of the election is deleted at once, so only the lock of the program makes others wait.
#[tokio::test]
async fn no_program_begins_beside_one_whose_key_was_deleted() -> Result {
    for what in ["key", "lease"] {
        let stage = Stage::new().await?;
        let mut a = stage.worker(
            "a",
            "stubborn,detached",
            &["--no-cgroup", "--grace", "500ms"],
        )?;
        let (worker, _, _) = first(&stage, &a).await?;
        let mut b = stage.worker("b", "", PLAIN)?;
        stage.has_candidate("b").await?;
        let keys = stage.keys(&format!("eldest/{ELECTION}/")).await?;
        let (key, lease) = keys[0].clone();
        let mut client = stage.client().await;
        if what == "key" {
            client.delete(key, None).await?;
        } else {
            client.lease_revoke(lease).await?;
        }
        let next = stage.next_worker(worker.token).await?;
        stage.has_candidate("a").await?;
        b.stop().await?;
        stage.next_worker(next.token).await?;
        a.stop().await?;
        stage.judge().await?;
    }
    Ok(())
}

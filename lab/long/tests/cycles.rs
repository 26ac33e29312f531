//! Tests many cycles of joining, leading, and resigning or dropping, on a good network and on one that flaps: nothing
//! is left, and the memory in use does not grow. This test is a separate process, because it counts the resources of
//! its process.
#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods)] // tests run in real time

mod resources;

use std::time::{Duration, Instant};

use eldest::{BoxError, ErrorKind, Session, SessionOptions};
use eldest_testing::history::{Recorder, Rules, What, check};
use eldest_testing::{Etcd, Proxy, eventually};
use peak_alloc::PeakAlloc;
use resources::{idle, in_use, settled};
use tokio::time::timeout;

type Result<T = ()> = std::result::Result<T, BoxError>;

/// Counts the bytes in use.
#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);
/// A long TTL, so that a lease that is gone was revoked and has not expired.
const TTL: Duration = Duration::from_secs(60);
/// A short TTL if answers are lost: a lost answer to a grant leaves a lease without keys. The session may not revoke
/// it, because the id may belong to another session, so it must expire.
const FLAPPING_TTL: Duration = Duration::from_secs(5);
const REQUEST: Duration = Duration::from_millis(300);
/// The number of cycles of one session.
const SESSION: usize = 25;
/// How much the bytes in use may vary without a leak: shared tables keep their capacity. A leak of a map's entry or a
/// waker in each cycle takes more after five hundred cycles.
const SLACK: usize = 16 * 1024;
/// The most rounds of cycles until one leaves nothing: a growing buffer allocates once, a leak in every round.
const ROUNDS: usize = 3;

/// Joins, leads, and ends the candidacy in one of several ways.
async fn cycle(session: &Session, way: usize) -> Result {
    let election = session.election(format!("e{}", way % 4))?;
    let begun = async || match election.campaign().await {
        Ok(candidate) => Some(Ok(candidate)),
        // The former candidate has not left yet, or the network hides that it has.
        Err(error)
            if [ErrorKind::AlreadyCampaigning, ErrorKind::Unavailable].contains(&error.kind()) =>
        {
            None
        }
        Err(error) => Some(Err(error)),
    };
    let mut candidate = eventually(LONG, "it may stand", begun).await??;
    let leadership = timeout(LONG, candidate.elected()).await??;
    match way % 3 {
        // If it is not confirmed in time, the deletion continues in the background.
        0 => drop(leadership.resign().await),
        1 => drop((leadership, candidate)),
        _ => {
            drop(candidate);
            drop(leadership);
        }
    }
    Ok(())
}

/// Causes one of several network faults; earlier requests may have been applied nevertheless.
async fn disturb(proxy: &Proxy, way: usize) -> Result {
    if way.is_multiple_of(2) {
        proxy.drop_connections();
        return Ok(());
    }
    proxy.hold_responses();
    let answered = async || (proxy.held_responses() > 0).then_some(());
    let waited = eventually(LONG, "etcd has answered", answered).await;
    proxy.drop_connections();
    proxy.heal();
    Ok(waited?)
}

/// Returns one of two names of the proxy.
fn endpoint(proxy: &Proxy, which: usize) -> String {
    match which % 2 {
        0 => proxy.endpoint().replace("127.0.0.1", "localhost"),
        _ => proxy.endpoint(),
    }
}

/// Runs `count` cycles in sessions of [`SESSION`] each, whose list of endpoints is replaced at times. Returns how many
/// faults hit them.
async fn cycles(proxy: &Proxy, count: usize, flapping: bool) -> Result<usize> {
    let mut faults = 0;
    let ttl = ttl_where(flapping);
    for first in (0..count).step_by(SESSION) {
        // An attempt to connect continues for several of these, even after it has succeeded.
        let options = SessionOptions::new("n").ttl(ttl).request_timeout(REQUEST);
        let session = Session::connect([proxy.endpoint()], options).await?;
        for way in first..count.min(first + SESSION) {
            if way % 5 == 0 {
                // If it is not confirmed in time, the former list may stay in use.
                let moved = session.set_endpoints([endpoint(proxy, way / 5)]).await;
                assert!(flapping || moved.is_ok(), "{moved:?}");
            }
            if flapping && !way.is_multiple_of(3) {
                let (done, disturbed) = tokio::join!(cycle(&session, way), disturb(proxy, way));
                done.map_err(|error| format!("cycle {way}: {error}"))?;
                disturbed?;
                faults += 1;
            } else {
                cycle(&session, way).await?;
            }
        }
        timeout(LONG, session.close()).await??;
    }
    Ok(faults)
}

fn ttl_where(flapping: bool) -> Duration {
    if flapping { FLAPPING_TTL } else { TTL }
}

/// Returns the bytes in use once they are at most `allowed`, or after a while: a task that still runs may hold answers
/// of etcd to a dropped connection.
async fn bytes_in_use(allowed: usize) -> usize {
    let fits = async || (HEAP.current_usage() <= allowed).then_some(());
    let patience = Duration::from_secs(20);
    drop(eventually(patience, "the memory is given back", fits).await);
    HEAP.current_usage()
}

/// Returns the line of this process's status with its resident memory.
fn resident() -> Result<String> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS"));
    Ok(line.unwrap_or_default().to_owned())
}

async fn nothing_is_left_after(count: usize, flapping: bool) -> Result {
    let etcd = Etcd::start().await?;
    let proxy = Proxy::start(etcd.address()).await?;
    // One client for all counts, so that no count includes another's connection.
    let mut client = etcd.client().await;
    client.status().await?;
    let own = in_use(&etcd, &client).await?;
    // The warm-up makes the allocations that a process needs only once, and the capacity of its tables.
    let warm = 4 * SESSION;
    cycles(&proxy, warm, flapping).await?;
    let recorder = Recorder::boottime();
    let baseline = settled(&etcd, &client, idle(&own)).await?;
    recorder.record("", "", What::Baseline(baseline));
    let mut end = baseline;
    let mut fits = false;
    for _ in 0..ROUNDS {
        let (before, begin) = (HEAP.current_usage(), Instant::now());
        let faults = cycles(&proxy, count, flapping).await?;
        let took = begin.elapsed();
        end = settled(&etcd, &client, baseline).await?;
        let after = bytes_in_use(before + SLACK).await;
        println!(
            "{count} cycles, {faults} faults, {:.1} s, {:.0} a second; bytes in use {before} before, {after} after; {}; \
             held {baseline:?} before, {end:?} after",
            took.as_secs_f64(),
            count as f64 / took.as_secs_f64(),
            resident()?,
        );
        assert_eq!(faults > 0, flapping);
        fits = after <= before + SLACK;
        if fits {
            break;
        }
    }
    recorder.record("", "", What::Final(end));
    check(&recorder.history()?, &Rules::new(ttl_where(flapping))).assert_ok();
    assert_eq!((end.leases, end.keys, end.watchers), (0, 0, 0), "{end:?}");
    assert!(fits, "each of {ROUNDS} rounds of cycles left bytes in use");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_cycles_leave_nothing_behind_and_use_no_more_memory() -> Result {
    nothing_is_left_after(500, false).await?;
    nothing_is_left_after(200, true).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes; `cargo xtask verify leaks` runs it"]
async fn ten_thousand_cycles_leave_nothing_behind_and_use_no_more_memory() -> Result {
    nothing_is_left_after(10_000, false).await?;
    nothing_is_left_after(10_000, true).await
}

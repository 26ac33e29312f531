//! Tests a burst of changes in a large observed election: renewals stay in time and memory stays small. This test is a
//! separate process, because it counts the bytes in use of its process.
#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods)] // tests run in real time

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use eldest::{BoxError, Leadership, Observer, Roster, Session, SessionOptions, SessionState};
use eldest_testing::{Etcd, eventually};
use etcd_client::{Client, ResponseHeader, Txn, TxnOp};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use peak_alloc::PeakAlloc;
use tokio::sync::oneshot;

type Result<T = ()> = std::result::Result<T, BoxError>;

/// Counts the bytes in use.
#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(30);
const TTL: Duration = Duration::from_secs(6);
/// The number of members of the observed election; `ELDEST_BURST_MEMBERS` sets another number.
const MEMBERS: usize = 2000;
/// The number of writes in flight at once.
const AT_ONCE: usize = 64;
/// The memory limit, for an election of 10,000 members.
const MEMORY: usize = 64 << 20;
const VALUE: &str = r#"{"identity":"node-a","address":"10.0.0.1:8080","since_unix_ms":1763800000000,"data_center":"dc1"}"#;

fn members() -> usize {
    let given = std::env::var("ELDEST_BURST_MEMBERS").ok();
    given.and_then(|n| n.parse().ok()).unwrap_or(MEMBERS)
}

fn key(number: usize) -> String {
    format!("eldest/big/{number:016x}")
}

async fn fill(client: &mut Client, members: usize) -> Result {
    for first in (0..members).step_by(100) {
        let numbers = first..members.min(first + 100);
        let puts: Vec<_> = numbers
            .map(|number| TxnOp::put(key(number), VALUE, None))
            .collect();
        client.txn(Txn::new().and_then(puts)).await?;
    }
    Ok(())
}

/// Makes every member leave and return once, each by its own change; returns the revision after the last one.
async fn churn(client: &Client, members: usize) -> Result<i64> {
    let one = |number| {
        let mut client = client.clone();
        async move {
            client.delete(key(number), None).await?;
            let put = client.put(key(number), VALUE, None).await?;
            Result::Ok(put.header().map_or(0, ResponseHeader::revision))
        }
    };
    let mut under_way = FuturesUnordered::new();
    let mut last = 0;
    for number in 0..members {
        under_way.push(one(number));
        if under_way.len() == AT_ONCE {
            last = last.max(under_way.next().await.ok_or("none")??);
        }
    }
    while let Some(revision) = under_way.next().await {
        last = last.max(revision?);
    }
    Ok(last)
}

/// Runs [`churn`] on a separate thread, as another process would.
fn elsewhere(etcd: &Etcd, members: usize) -> oneshot::Receiver<i64> {
    let endpoint = etcd.endpoint();
    let (newest, received) = oneshot::channel();
    thread::spawn(move || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let client = Client::connect([endpoint], None).await.expect("connects");
            let revision = churn(&client, members).await.expect("writes");
            newest.send(revision).expect("the test goes on");
        });
    });
    received
}

/// Measures the least and the most time left of the lease, from a thread that waits for no task.
fn measure(session: &Session, stop: &Arc<AtomicBool>) -> thread::JoinHandle<(Duration, Duration)> {
    let (state, stop) = (session.state(), Arc::clone(stop));
    thread::spawn(move || {
        let (mut least, mut most) = (Duration::MAX, Duration::ZERO);
        while !stop.load(Ordering::Relaxed) {
            let left = match &*state.borrow() {
                SessionState::Live(view) => view.time_left(),
                _ => Duration::ZERO,
            };
            (least, most) = (least.min(left), most.max(left));
            thread::sleep(Duration::from_micros(500));
        }
        (least, most)
    })
}

async fn next(observer: &mut Observer) -> Result<Roster> {
    let item = tokio::time::timeout(LONG, observer.next()).await?;
    Ok(item.ok_or("the stream ended")??)
}

async fn renewed(leadership: &Leadership) -> Result {
    let until = leadership.valid_until().since_boot();
    Ok(eventually(LONG, "a renewal counts", async || {
        (leadership.valid_until().since_boot() > until).then_some(())
    })
    .await?)
}

// One thread for everything, so that any long step delays the renewals.
#[tokio::test]
async fn burst_in_an_observed_election_delays_no_renewal_and_takes_little_memory() -> Result {
    let etcd = Etcd::start().await?;
    let members = members();
    fill(&mut etcd.client().await, members).await?;
    let options = SessionOptions::new("me").ttl(TTL);
    let session = Session::connect([etcd.endpoint()], options).await?;
    let mut candidate = session.election("small")?.campaign().await?;
    let leadership = candidate.elected().await?;
    renewed(&leadership).await?;

    HEAP.reset_peak_usage();
    let before = HEAP.current_usage();
    let big = session.election("big")?;
    let (mut keen, mut idle) = (big.observe().await?, big.observe().await?);
    let mut revision = next(&mut keen).await?.revision();
    let stop = Arc::new(AtomicBool::new(false));
    let measured = measure(&session, &stop);
    let started = Instant::now();
    let mut written = elsewhere(&etcd, members);
    let (mut seen, mut newest) = (0, None);
    while newest.is_none_or(|newest| revision < newest) {
        tokio::select! {
            last = &mut written, if newest.is_none() => newest = Some(last?),
            roster = next(&mut keen) => {
                let roster = roster?;
                assert!(roster.revision() > revision, "revisions rise");
                assert!(roster.blocker().is_some(), "these keys have no lease");
                revision = roster.revision();
                seen += 1;
            }
        }
    }
    let took = started.elapsed();
    let peak = HEAP.peak_usage().saturating_sub(before);
    // An idle observer finds the newest state.
    let roster = loop {
        let roster = next(&mut idle).await?;
        if roster.revision() == revision {
            break roster;
        }
    };
    assert_eq!(roster.members().len(), members);
    // One or two renewals after the burst.
    renewed(&leadership).await?;
    stop.store(true, Ordering::Relaxed);
    let (least, most) = measured.join().map_err(|_| "the measure panicked")?;
    println!(
        "{members} members, {} changes in {took:?}: {seen} seen; the lease had {least:?} to {most:?} left; peak {} KiB",
        2 * members,
        peak / 1024
    );
    assert!(leadership.is_valid());
    // A renewal begins when a third of the TTL has passed.
    let usual = most.saturating_sub(TTL / 3);
    assert!(least + TTL / 10 >= usual, "{least:?} of {usual:?}");
    assert!(peak < MEMORY * members / 10_000, "{peak} bytes");
    leadership.resign().await?;
    session.close().await?;
    Ok(())
}

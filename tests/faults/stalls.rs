//! A leader that stalls: its runtime is blocked, and etcd is healthy.

use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use eldest::{CancellationToken, LostReason, Session};
use eldest_testing::history::What;
use eldest_testing::{Etcd, eventually};

use crate::stage::{ELECTION, Led, Result, SOON, Stage, deadline, grace, options, seconds};

/// The leader's work blocks the only thread of its runtime: nobody can renew, release or ask, but the watchdog's thread
/// tells the leader long before its lease would.
#[tokio::test]
async fn a_leader_whose_runtime_is_blocked_stalls_before_its_lease_ends() -> Result {
    // Complaint: a stalled leader believed in itself for as long as its lease was renewed.
    const TTL: Duration = seconds(10);
    const STALL: Duration = seconds(1);
    let etcd = Etcd::start().await?;
    let stage = Stage::new(&[etcd.endpoint()], TTL).await?;
    stage.expect("a");
    let shutdown = CancellationToken::new();
    let (unblock, blocked) = mpsc::channel::<()>();
    let led: Arc<Mutex<Vec<Arc<Led>>>> = Arc::default();
    let thread = {
        let (endpoint, shutdown, led) = (etcd.endpoint(), shutdown.clone(), Arc::clone(&led));
        let sampler = Arc::clone(&stage.sampler);
        std::thread::spawn(move || -> Result {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().build()?.block_on(async {
                let session = Session::connect([endpoint], options("a", TTL)).await?;
                let runner = session.election(ELECTION)?.runner().stall_timeout(STALL);
                let work = |leadership: eldest::Leadership| {
                    let term = sampler.add("a", &leadership);
                    led.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(term);
                    // Returns at once, for ever, once the other side is gone.
                    let _ = blocked.recv();
                    async move {
                        let lost = leadership.lost();
                        while !lost.is_cancelled() {
                            leadership.heartbeat();
                            tokio::time::sleep(STALL / 50).await;
                        }
                        Ok(())
                    }
                };
                runner.run(shutdown, work).await?;
                Ok(session.close().await?)
            })
        })
    };
    let terms = || led.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let first = eventually(SOON, "a leads", async || terms().first().cloned()).await?;
    stage.fault("a", "runtime blocked");
    let broken = stage.now();
    let b = stage.node("b", &[etcd.endpoint()]).await?;

    let lost = first.is_lost(STALL + SOON).await?;
    assert_eq!(first.reason(), Some(LostReason::Stalled));
    let end = first.term.valid_until().since_boot();
    assert!(
        end <= lost + grace(TTL),
        "told at {lost:?}, valid until {end:?}"
    );
    assert!(
        end < deadline(broken, TTL),
        "earlier than its lease would have ended it"
    );
    // Nobody can delete its key; it goes with the lease.
    let second = b.elected(TTL + SOON).await?;
    assert!(second.elected_at > end && first.last_valid() < end);

    drop(unblock);
    stage.healed("a", "runtime blocked");
    stage.queue(&["b", "a"], SOON).await?;
    assert_eq!(first.reason(), Some(LostReason::Stalled), "it stays so");
    b.stop().await?;
    eventually(SOON, "a leads again", async || {
        let terms = terms();
        (terms.len() == 2 && terms[1].term.is_valid()).then_some(())
    })
    .await?;
    stage.recorder.record("a", ELECTION, What::Left);
    shutdown.cancel();
    eventually(SOON, "a shuts down", async || {
        thread.is_finished().then_some(())
    })
    .await?;
    thread.join().expect("no panic")?;
    stage.judge(3, 1).await?;
    Ok(())
}

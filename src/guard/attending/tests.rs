//! Tests a session's last steps on a machine with a clock of its own, and without etcd.

use std::sync::atomic::{AtomicU64, Ordering};

use futures::FutureExt;

use super::*;
use crate::capture::Logs;
use crate::etcd::Pool;
use crate::guard::limits::Limits;
use crate::runtime::{Scripted, SharedEnv};
use eldest_core::time::Time;

/// How long the guard of the test tries.
const PATIENCE: Duration = Duration::from_secs(900);

/// A machine without a network, on which each wait takes only the time of its clock.
fn machine() -> SharedEnv {
    let clock = Arc::new(AtomicU64::new(0));
    let (now, sleep) = (Arc::clone(&clock), clock);
    let sleep = move |duration: Duration| {
        let clock = Arc::clone(&sleep);
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        async move {
            clock.fetch_add(nanos, Ordering::Relaxed);
        }
        .boxed()
    };
    Arc::new(Scripted {
        now: Box::new(move || Time::from_nanos(now.load(Ordering::Relaxed))),
        sleep: Box::new(sleep),
        ..Scripted::still()
    })
}

fn proof(lease: i64) -> Proof {
    Proof {
        key: format!("eldest/~guard/{lease:032x}"),
        create_revision: 1,
        lease,
    }
}

#[tokio::test]
async fn without_etcd_the_guard_abandons_keys_of_a_dead_process_in_time() {
    let (logs, _guard) = Logs::capture();
    let env = machine();
    let endpoints = ["http://127.0.0.1:1".to_owned()];
    let access = etcd_client::ConnectOptions::new();
    let second = Duration::from_secs(1);
    let pool = Pool::new(Arc::clone(&env), &endpoints, access, second).unwrap();
    let limits = Limits::alone();
    let share = limits.take(0, CONNECTION).unwrap();
    let agent = Agent::start(&env, pool, limits, None);
    let session = Session {
        agent: Arc::clone(&agent),
        number: 0,
        identity: "dead".to_owned(),
        namespace: "eldest/".to_owned(),
        linger: Duration::ZERO,
        lives: Lives::of(Arc::new(
            Pidfd::new(eldest_process::pidfd::own().unwrap()).unwrap(),
        )),
        proofs: [7, 6].map(proof).into(),
        proving: None,
        patience: PATIENCE,
        own: CONNECTION,
        share,
    };
    let begun = env.now();
    session.finish().await;
    let took = env.now().since(begun);
    assert!(
        took >= PATIENCE && took < PATIENCE + 10 * second,
        "{took:?}"
    );
    let leases_of = |message| {
        let lines = logs.of("eldest::guard", message, &[("identity", "dead")]);
        let leases = lines.iter().map(|line| line.field("lease").to_owned());
        leases.collect::<Vec<_>>()
    };
    for message in [
        "the keys of a dead process could not be deleted; the guard tries again",
        "the keys of a dead process could not be deleted; the guard gives up",
    ] {
        assert_eq!(leases_of(message), ["7", "6"], "{message}");
    }
}

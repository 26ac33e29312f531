//! Tests a session's last steps on a machine with a clock of its own, and without etcd.

use super::*;
use crate::Machine;
use crate::capture::Logs;
use crate::limits::Limits;
use crate::staged::{Deaf, Scripted};

/// How long the guard of the test tries.
const PATIENCE: Duration = Duration::from_secs(900);

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
    let machine: Arc<dyn Machine> = Arc::new(Scripted::default());
    let second = Duration::from_secs(1);
    let limits = Limits::alone();
    let share = limits.take(0, CONNECTION).unwrap();
    let agent = Agent::start(&machine, Arc::new(Deaf), limits, None);
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
    let begun = machine.now();
    session.finish().await;
    let took = machine.now().since(begun);
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

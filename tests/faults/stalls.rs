//! Tests a leader whose runtime is blocked while etcd is healthy.

use std::time::Duration;

use eldest::LostReason;
use eldest_testing::Etcd;

use crate::blocked::Blocked;
use crate::stage::{Result, SOON, Stage, deadline, grace, seconds};

/// The leader's work blocks the only thread of its runtime, so the session cannot renew, release or read. The
/// watchdog's thread ends the term long before its lease would.
#[tokio::test]
async fn a_leader_whose_runtime_is_blocked_stalls_before_its_lease_ends() -> Result {
    // Complaint: a stalled leader considered itself the leader for as long as its lease was renewed.
    const TTL: Duration = seconds(10);
    const STALL: Duration = seconds(1);
    let etcd = Etcd::start().await?;
    let stage = Stage::new(&[etcd.endpoint()], TTL).await?;
    let (a, first) = Blocked::start(&stage, etcd.endpoint(), Some(STALL)).await?;
    let broken = stage.now();
    let b = stage.node("b", &[etcd.endpoint()]).await?;

    let lost = first.is_lost(STALL + SOON).await?;
    assert_eq!(first.reason(), Some(LostReason::Stalled));
    let end = first.term.valid_until().since_boot();
    assert!(
        end <= lost + grace(TTL),
        "notified at {lost:?}, valid until {end:?}"
    );
    assert!(
        end < deadline(broken, TTL),
        "earlier than its lease would have ended it"
    );
    // The session cannot delete its key; it expires with the lease.
    let second = b.elected(TTL + SOON).await?;
    assert!(second.elected_at > end && first.last_valid() < end);

    a.unblock(b).await?;
    assert_eq!(first.reason(), Some(LostReason::Stalled), "it stays so");
    stage.judge(3, 1).await?;
    Ok(())
}

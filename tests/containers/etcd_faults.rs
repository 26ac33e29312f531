//! Tests that etcd's own leader, to which the leading node is connected, loses the other members.

use std::time::Duration;

use crate::lab::{Lab, Leads, Result, SOON, seconds};

/// The default TTL, which is long enough to find another leader of etcd in time.
const TTL: Duration = seconds(10);
/// The time without a leader of etcd that a term outlasts with this TTL (see `SessionOptions::ttl`), including the
/// requests that fail meanwhile.
const OUTLASTED: Duration = seconds(3);

/// Waits until etcd has another leader than `old`, which broke between `whole` and `broken`. If that was quick, checks
/// that no term was lost; otherwise, that the term ended for a fitting reason. Returns the term of the node that leads
/// then, renewed by the new leader.
async fn goes_on(
    lab: &Lab,
    before: &Leads,
    old: usize,
    (whole, broken): (Duration, Duration),
) -> Result<Leads> {
    let took = lab.another_leads_etcd(old, whole).await?;
    // A renewal that was sent before the fault counts for a TTL at most, so a node that leads later was renewed since.
    let led = lab
        .until(
            SOON,
            "somebody's lease was renewed by etcd's new leader",
            |lab| {
                let believers = lab.believers()?;
                let [one] = &believers[..] else {
                    return Ok(None);
                };
                Ok((lab.last_valid(one)? > broken + TTL).then(|| one.clone()))
            },
        )
        .await?;
    if took <= OUTLASTED {
        assert_eq!(
            &led, before,
            "a term was lost though etcd was led again after {took:?}"
        );
        assert_eq!(lab.elections()?, 1);
    } else if led != *before {
        let (_, reason) = lab.lost(before, SOON).await?;
        assert_eq!(reason, "lease_expiring", "after {took:?}");
    }
    Ok(led)
}

/// The old leader of etcd continues to confirm renewals that the other members never see.
#[tokio::test(flavor = "multi_thread")]
async fn isolated_leader_of_etcd_is_not_trusted_by_its_clients() -> Result {
    let lab = Lab::start(TTL).await?;
    let before = lab.one_leads(SOON).await?;
    let alone = lab.etcd_leader_to_break().await?;
    let cut = lab.members[alone].control.cut(lab.peers.name());
    let name = "etcd's leader cut off from its peers";
    let broken = lab.breaks(name, cut).await?;
    goes_on(&lab, &before, alone, broken).await?;
    // The member still answers its clients: it was reachable all the time.
    assert!(lab.members[alone].id().await? != 0);
    lab.members[alone].control.heal().await?;
    lab.healed(name);
    lab.await_all_candidates().await?;
    lab.judge(3, 1).await?;
    Ok(())
}

/// A fault of the eye's member would hide the truth.
#[tokio::test(flavor = "multi_thread")]
async fn broken_member_is_never_the_eye() -> Result {
    let lab = Lab::start(TTL).await?;
    let led = lab.etcd_leader_to_break().await?;
    let eye = lab.members[lab.eye].id().await?;
    let mut client = lab.members[led].client().await?;
    client.move_leader(eye).await?;
    assert_eq!(lab.etcd_leader().await?, lab.eye);
    let breaks = lab.etcd_leader_to_break().await?;
    assert_eq!(breaks, lab.etcd_leader().await?);
    assert!(breaks != lab.eye && breaks == lab.first);
    // A change of etcd's leader costs no term either.
    lab.judge(3, 0).await?;
    Ok(())
}

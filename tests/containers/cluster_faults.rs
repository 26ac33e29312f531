//! Tests faults of the whole etcd: no quorum, all members restarted, a member replaced.

use std::time::Duration;

use eldest_testing::eventually;

use crate::lab::{Key, Lab, Leads, Result, SOON, seconds};

/// A short TTL, so that the quorum is missing for longer.
const TTL: Duration = seconds(5);
/// The longest takeover: TTL, election timeout and slack, and the same again for a busy machine.
const TAKEOVER: Duration = seconds(20);

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_no_node_leads_and_afterwards_exactly_one() -> Result {
    let lab = Lab::start(TTL).await?;
    let old = lab.one_leads(SOON).await?;
    let stood = lab.keys().await?;
    // The eye's member stays.
    let others: Vec<usize> = leader_last(&lab).await?.split_off(1);
    let broken = kill(&lab, &others, "no quorum").await?;
    let (lost, reason) = lab.lost(&old, TTL * 2).await?;
    assert_eq!(reason, "lease_expiring");
    lab.nobody_leads(TTL * 2).await?;
    assert!(lost < broken + TTL && lab.last_valid(&old)? < broken + TTL);
    for member in others {
        lab.members[member].control.start().await?;
    }
    lab.etcd_leader().await?;
    lab.healed("no quorum");
    after_the_outage(lab, &old, &stood).await
}

/// Returns the members: the eye's, another, and etcd's leader, to which the leading node is connected.
async fn leader_last(lab: &Lab) -> Result<Vec<usize>> {
    let leader = lab.etcd_leader_to_break().await?;
    let mut members: Vec<usize> = (0..lab.members.len()).collect();
    members.sort_by_key(|member| (*member == leader, *member != lab.eye));
    Ok(members)
}

/// Kills the members in this order, and returns when all were certainly dead. A member that does not lead etcd costs no
/// renewal: however long the others take, the first certainly dies while a node leads.
async fn kill(lab: &Lab, members: &[usize], name: &str) -> Result<Duration> {
    for (index, member) in members.iter().enumerate() {
        let kill = lab.members[*member].control.kill();
        if index == 0 {
            lab.breaks(name, kill).await?;
        } else {
            kill.await?;
        }
    }
    Ok(lab.now())
}

/// Checks that the old leader gave its key up. Waiting candidates keep theirs, if etcd reached them before their leases
/// expired; then the eldest of them leads.
async fn after_the_outage(lab: Lab, old: &Leads, stood: &[Key]) -> Result {
    let led = lab.one_leads(TAKEOVER).await?;
    assert!(led.token > old.token);
    lab.await_all_candidates().await?;
    let keys = lab.keys().await?;
    let kept = |node: &str| {
        stood
            .iter()
            .any(|key| key.node == node && keys.contains(key))
    };
    assert!(!kept("a"), "the term ended, but its key stands");
    if kept("b") {
        assert_eq!(led.node, "b");
    }
    lab.judge(4, 1).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_of_the_whole_cluster_exactly_one_leads() -> Result {
    let lab = Lab::start(TTL).await?;
    let old = lab.one_leads(SOON).await?;
    let stood = lab.keys().await?;
    let members = leader_last(&lab).await?;
    let broken = kill(&lab, &members, "all members killed").await?;
    lab.lost(&old, TTL * 2).await?;
    lab.nobody_leads(TTL * 2).await?;
    assert!(lab.last_valid(&old)? < broken + TTL);
    for member in &lab.members {
        member.control.start().await?;
    }
    lab.etcd_leader().await?;
    lab.healed("all members killed");
    after_the_outage(lab, &old, &stood).await
}

/// The member that leads etcd and serves the leading node is replaced by an empty one between two renewals; then it is
/// the only member that the nodes can reach.
#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_member_costs_no_term_and_serves_like_the_old_one() -> Result {
    let mut lab = Lab::start(seconds(10)).await?;
    let before = lab.one_leads(SOON).await?;
    let goes = lab.etcd_leader_to_break().await?;
    lab.fault("a member replaced");
    lab.replace(goes).await?;
    lab.fault("a member replaced"); // the old one is certainly gone
    lab.healed("a member replaced");
    let others = (0..lab.members.len()).filter(|index| *index != goes);
    for member in others.clone() {
        lab.members[member].control.cut(lab.clients.name()).await?;
    }
    let alone = lab.now();
    lab.until(
        seconds(10) * 2 + SOON,
        "the term goes on through the new member",
        |lab| Ok((lab.last_valid(&before)? > alone + seconds(10)).then_some(())),
    )
    .await?;
    for member in others {
        lab.members[member].control.heal().await?;
    }
    // Their ports are published through that network.
    eventually(SOON, "etcd answers the eye again", async || {
        lab.keys().await.ok()
    })
    .await?;
    assert_eq!(lab.one_leads(SOON).await?, before);
    assert_eq!(lab.elections()?, 1);
    lab.judge(3, 1).await?;
    Ok(())
}

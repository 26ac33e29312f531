//! Tests that a replaced member of etcd serves like the old one.

use eldest_testing::eventually;

use crate::lab::{Lab, Result, SOON, seconds};

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

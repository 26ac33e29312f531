//! Tests `eldest step-down`.

use eldest::LostReason;
use eldest_fixtures::wait::until;
use eldest_testing::Etcd;
use etcd_client::PutOptions;
use rustix::process::Signal;

use crate::common::{
    NOT_DONE, Node, Result, SOON, USAGE, at, fails, join, keys, node, object, queue, queued,
};

#[tokio::test]
async fn leader_steps_down_after_its_work_and_the_next_one_leads() -> Result {
    let etcd = Etcd::start().await?;
    let (a, b) = (node(&etcd, "a").await?, node(&etcd, "b").await?);
    let (mut first, _second) = (join(&a, "jobs").await?, join(&b, "jobs").await?);
    let leadership = first.elected().await?;
    let (ended, ()) = tokio::join!(object(&etcd, "step-down jobs --node a"), async {
        leadership.lost().cancelled().await;
        assert!(leadership.is_valid(), "its work may wind up");
        drop(leadership);
    });
    let written = ended?;
    assert_eq!(written["election"], "jobs");
    assert_eq!(written["stepped_down"]["identity"], "a");
    assert_eq!(written["leader"]["identity"], "b");
    assert_eq!(queue(&b).await?[0], "b");

    // The order lasts as long as the command waits.
    let withdrawn = "b did not step down within 1s, and the order was withdrawn";
    fails(&etcd, "step-down jobs --wait 1s", NOT_DONE, &[withdrawn]).await?;
    let all = keys(&mut etcd.client().await).await?;
    assert!(all.iter().all(|key| !key.contains("~evacuated")), "{all:?}");
    queued(&b, &["b", "a"]).await
}

#[tokio::test]
async fn order_is_withdrawn_when_the_command_is_stopped() -> Result {
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    // A leader that knows no orders.
    let lease = client.lease_grant(60, None).await?.id();
    let under = PutOptions::new().with_lease(lease);
    client.put("eldest/jobs/foreign", "go", Some(under)).await?;
    let b = node(&etcd, "b").await?;
    let _second = join(&b, "jobs").await?;
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let command = at(&etcd, &["step-down", "jobs", "--wait", "1h"]);
        let mut command = Node::start("step-down", command)?;
        until(SOON, "the order is there", async || {
            let all = keys(&mut client).await.unwrap_or_default();
            all.iter().any(|key| key.contains("~step_down"))
        })
        .await?;
        command.signal(signal);
        let ended = command.end().await?;
        let log = command.log();
        assert_eq!(ended.code(), Some(NOT_DONE), "{log}");
        let withdrawn = "go had not stepped down yet, and the order was withdrawn";
        assert!(log.contains(withdrawn), "{log}");
        let all = keys(&mut client).await?;
        assert!(all.iter().all(|key| !key.contains("~evacuated")), "{all:?}");
    }
    Ok(())
}

#[tokio::test]
async fn other_leader_keeps_leading_and_the_message_names_it() -> Result {
    let etcd = Etcd::start().await?;
    let (a, b) = (node(&etcd, "a").await?, node(&etcd, "b").await?);
    let mut first = join(&a, "jobs").await?;
    let leadership = first.elected().await?;
    let alone = "there is no other candidate";
    fails(&etcd, "step-down jobs", NOT_DONE, &[alone]).await?;
    let _second = join(&b, "jobs").await?;
    let waits = "b waits in \"jobs\" at rank 2; a leads";
    for (option, code, part) in [
        ("--node b", NOT_DONE, waits),
        ("--node c", NOT_DONE, "there are a, b; a leads"),
        ("--wait 500ms", USAGE, "from 1s to 3600s"),
    ] {
        fails(&etcd, &format!("step-down jobs {option}"), code, &[part]).await?;
    }
    assert!(leadership.is_valid());
    assert_eq!(leadership.lost_reason(), None::<LostReason>);
    assert_eq!(queue(&b).await?, ["a", "b"]);
    Ok(())
}

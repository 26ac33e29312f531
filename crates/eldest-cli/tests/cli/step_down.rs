//! Tests `eldest step-down`.

use eldest::LostReason;
use eldest_testing::Etcd;

use crate::common::{NOT_DONE, Result, USAGE, at, join, keys, node, queue, queued, ran, run};

#[tokio::test]
async fn leader_steps_down_after_its_work_and_the_next_one_leads() -> Result {
    let etcd = Etcd::start().await?;
    let (a, b) = (node(&etcd, "a").await?, node(&etcd, "b").await?);
    let (mut first, _second) = (join(&a, "jobs").await?, join(&b, "jobs").await?);
    let leadership = first.elected().await?;
    let order = ["step-down", "jobs", "--node", "a", "--output", "json"];
    let (ended, ()) = tokio::join!(run(at(&etcd, &order)), async {
        leadership.lost().cancelled().await;
        assert!(leadership.is_valid(), "its work may wind up");
        drop(leadership);
    });
    let written = ended?.done().json();
    assert_eq!(written["election"], "jobs");
    assert_eq!(written["stepped_down"]["identity"], "a");
    assert_eq!(written["leader"]["identity"], "b");
    assert_eq!(queue(&b).await?[0], "b");

    // The order lasts as long as the command waits.
    let ended = ran(&etcd, "step-down jobs --wait 1s").await?;
    let withdrawn = "b did not step down within 1s, and the order was withdrawn";
    ended.failed(NOT_DONE, &[withdrawn]);
    let all = keys(&mut etcd.client().await).await?;
    assert!(all.iter().all(|key| !key.contains("~evacuated")), "{all:?}");
    queued(&b, &["b", "a"]).await
}

#[tokio::test]
async fn other_leader_keeps_leading_and_the_message_names_it() -> Result {
    let etcd = Etcd::start().await?;
    let (a, b) = (node(&etcd, "a").await?, node(&etcd, "b").await?);
    let mut first = join(&a, "jobs").await?;
    let leadership = first.elected().await?;
    let refused = async |line: &str, code: i32, part: &str| {
        ran(&etcd, line).await?.failed(code, &[part]);
        Result::Ok(())
    };
    let alone = "there is no other candidate";
    refused("step-down jobs", NOT_DONE, alone).await?;
    let _second = join(&b, "jobs").await?;
    for (options, code, part) in [
        (
            "--node b",
            NOT_DONE,
            "b waits in \"jobs\" at rank 2; a leads",
        ),
        ("--node c", NOT_DONE, "there are a, b; a leads"),
        ("--wait 500ms", USAGE, "from 1s to 3600s"),
    ] {
        refused(&format!("step-down jobs {options}"), code, part).await?;
    }
    assert!(leadership.is_valid());
    assert_eq!(leadership.lost_reason(), None::<LostReason>);
    assert_eq!(queue(&b).await?, ["a", "b"]);
    Ok(())
}

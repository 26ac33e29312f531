//! Tests `eldest step-down`.

use eldest::{LostReason, Session};
use eldest_testing::{Etcd, eventually};

use crate::common::{NOT_DONE, Result, SOON, USAGE, at, join, keys, node, run};

async fn leader(session: &Session) -> Result<Option<String>> {
    let leader = session.election("jobs")?.leader().await?;
    Ok(leader.map(|leader| leader.identity().to_owned()))
}

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
    let roster = b.election("jobs")?.roster().await?;
    assert_eq!(roster.leader().map(eldest::Member::identity), Some("b"));

    // The order lasts as long as the command waits.
    let ended = run(at(&etcd, &["step-down", "jobs", "--wait", "1s"])).await?;
    ended.failed(
        NOT_DONE,
        &["b did not step down within 1s, and the order was withdrawn"],
    );
    let all = keys(&mut etcd.client().await).await?;
    assert!(all.iter().all(|key| !key.contains("~evacuated")), "{all:?}");
    eventually(SOON, "a stands behind b again", async || {
        let roster = b.election("jobs").ok()?.roster().await.ok()?;
        let identities = roster.members().iter().map(eldest::Member::identity);
        identities.eq(["b", "a"]).then_some(())
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn other_leader_keeps_leading_and_the_message_names_it() -> Result {
    let etcd = Etcd::start().await?;
    let (a, b) = (node(&etcd, "a").await?, node(&etcd, "b").await?);
    let mut first = join(&a, "jobs").await?;
    let leadership = first.elected().await?;
    let refused = async |args: &[&str], code: i32, part: &str| {
        let args = [&["step-down", "jobs"], args].concat();
        run(at(&etcd, &args)).await?.failed(code, &[part]);
        Result::Ok(())
    };
    refused(&[], NOT_DONE, "there is no other candidate").await?;
    let _second = join(&b, "jobs").await?;
    refused(
        &["--node", "b"],
        NOT_DONE,
        "b waits in \"jobs\" at rank 2; a leads",
    )
    .await?;
    refused(&["--node", "c"], NOT_DONE, "there are a, b; a leads").await?;
    refused(&["--wait", "500ms"], USAGE, "from 1s to 3600s").await?;
    assert!(leadership.is_valid());
    assert_eq!(leadership.lost_reason(), None::<LostReason>);
    assert_eq!(leader(&b).await?.as_deref(), Some("a"));
    Ok(())
}

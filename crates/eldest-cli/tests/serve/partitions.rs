//! Tests that a node shows the owners of partitions which its command line names.

use eldest::{Announcement, Session, SessionOptions};
use eldest_testing::eventually;

use crate::caller::get;
use crate::stage::{Node, Result, SOON, Stage};

#[tokio::test]
async fn node_returns_the_owner_of_a_key_in_each_named_set() -> Result {
    let stage = Stage::new().await?;
    let me = Announcement::new("worker").with_address("10.0.0.1:80");
    let options = SessionOptions::new("worker").announcement(me);
    let session = Session::connect([stage.etcd.endpoint()], options).await?;
    let partitions = session.partitions("billing", 4)?;
    let _member = partitions.join().await?;
    let more = ["--partitions", "billing=4,mail/eu=8", "--observe"];
    let node = stage.node("60s", "a", &more).await?;
    let found = eventually(SOON, "the owner is found", async || {
        let answer = get(node.at, "/v1/partitions/billing/owner?key=user-4711").await;
        let answer = answer.ok()?;
        (answer.status == 200).then(|| answer.json())
    })
    .await?;
    assert_eq!(found["partition"], partitions.partition_for("user-4711"));
    assert_eq!(found["owner"]["address"], "10.0.0.1:80");
    let all = get(node.at, "/v1/partitions").await?.json();
    assert_eq!(all["partitions"][1]["name"], "mail/eu");
    assert_eq!(all["partitions"][1]["partition_count"], 8);
    Ok(())
}

/// Starts a node that owns partitions for its program.
async fn owner(stage: &Stage, name: &str, options: &[&str]) -> Result<Node> {
    let mut command = stage.command("60s", &["serve", "--id", name]);
    command.args(["--listen", "127.0.0.1:0", "--grace", "400ms"]);
    command.args(options);
    stage.listening(name, command).await
}

#[tokio::test]
async fn node_owns_partitions_for_its_program_until_it_is_stopped() -> Result {
    let stage = Stage::new().await?;
    let started = async |name: &str| owner(&stage, name, &["--own", "billing=4,mail/eu=8"]).await;
    let (a, b) = (started("a").await?, started("b").await?);
    let own = async |node: &Node, name: &str, number: usize| {
        let path = format!("/v1/partitions/{name}/own");
        eventually(SOON, format!("{number} of {name} are owned"), async || {
            let answer = get(node.at, &path).await.ok()?.json();
            (answer["partitions"].as_array()?.len() == number).then_some(())
        })
        .await
    };
    for node in [&a, &b] {
        own(node, "billing", 2).await?;
        own(node, "mail/eu", 4).await?;
    }
    a.stop().await?;
    own(&b, "billing", 4).await?;
    own(&b, "mail/eu", 8).await?;
    Ok(())
}

#[tokio::test]
async fn a_share_kept_for_less_than_the_ttl_is_refused_before_the_node_listens() -> Result {
    let stage = Stage::new().await?;
    let own = ["serve", "--listen", "127.0.0.1:0", "--own", "billing=4"];
    let mut command = stage.command("60s", &[&own[..], &["--keep-share-for", "1s"]].concat());
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("keep_share_for is 1s"), "{said}");
    assert!(output.stdout.is_empty(), "{output:?}");
    Ok(())
}

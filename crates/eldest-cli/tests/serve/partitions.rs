//! Tests that nodes own and show the partitions that their command lines name.

use eldest_fixtures::http::get;
use eldest_testing::eventually;

use crate::shared::{Node, Result, SOON, Stage, run};

const SETS: &str = "billing=4,mail/eu=8";

/// Starts a node that owns partitions for its program.
async fn owner(stage: &Stage, name: &str) -> Result<Node> {
    let mut command = stage.command("60s", &["serve", "--id", name, "--own", SETS]);
    command.args(["--listen", "127.0.0.1:0", "--grace", "400ms"]);
    command.args(["--announce", "address=10.0.0.1:80"]);
    Node::listening(name, command).await
}

/// Waits until the node owns so many partitions of each set.
async fn owns(node: &Node, of_billing: usize, of_mail: usize) -> Result {
    for (name, number) in [("billing", of_billing), ("mail/eu", of_mail)] {
        let path = format!("/v1/partitions/{name}/own");
        eventually(SOON, format!("{number} of {name} are owned"), async || {
            let answer = get(node.at, &path).await.ok()?.json();
            (answer["partitions"].as_array()?.len() == number).then_some(())
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn nodes_own_and_show_partitions_of_each_named_set_until_they_are_stopped() -> Result {
    let stage = Stage::new().await?;
    let (a, b) = (owner(&stage, "a").await?, owner(&stage, "b").await?);
    owns(&a, 2, 4).await?;
    owns(&b, 2, 4).await?;
    a.close().await?;
    owns(&b, 4, 8).await?;
    let more = ["--partitions", SETS, "--observe"];
    let observer = stage.node("60s", "c", &more).await?;
    let found = eventually(SOON, "the owner is found", async || {
        let path = "/v1/partitions/billing/owner?key=user-4711";
        let answer = get(observer.at, path).await.ok()?;
        (answer.status == 200).then(|| answer.json())
    })
    .await?;
    assert_eq!(found["owner"]["address"], "10.0.0.1:80");
    let all = get(observer.at, "/v1/partitions").await?.json();
    assert_eq!(all["partitions"][1]["name"], "mail/eu");
    assert_eq!(all["partitions"][1]["partition_count"], 8);
    Ok(())
}

#[tokio::test]
async fn a_share_kept_for_less_than_the_ttl_is_refused_before_the_node_listens() -> Result {
    let stage = Stage::new().await?;
    let own = ["serve", "--listen", "127.0.0.1:0", "--own", "billing=4"];
    let mut command = stage.command("60s", &own);
    command.args(["--keep-share-for", "1s"]);
    let ended = run(command).await?;
    assert!(ended.stderr.contains("keep_share_for is 1s"), "{ended:?}");
    assert_eq!(ended.stdout, "");
    Ok(())
}

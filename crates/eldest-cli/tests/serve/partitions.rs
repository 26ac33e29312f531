//! Tests that a node shows the owners of partitions which its command line names.

use eldest::{Announcement, Session, SessionOptions};
use eldest_testing::eventually;

use crate::caller::get;
use crate::stage::{Node, Result, SOON, Stage, eldest};

#[tokio::test]
async fn node_returns_the_owner_of_a_key_in_each_named_set() -> Result {
    let stage = Stage::new().await?;
    let me = Announcement::new("worker").with_address("10.0.0.1:80");
    let options = SessionOptions::new("worker").announcement(me);
    let session = Session::connect([stage.etcd.endpoint()], options).await?;
    let partitions = session.partitions("billing", 4)?;
    let mut member = partitions.join().await?;
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
    member.leave().await?;
    session.close().await?;
    Ok(())
}

#[test]
fn partitions_without_a_count_are_refused() -> Result {
    for given in ["billing", "billing=many", "billing=-1"] {
        let args = ["serve", "e", "--partitions", given];
        let output = eldest(&args).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("NAME=COUNT, for example"), "{said}");
    }
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
    b.stop().await?;
    Ok(())
}

#[tokio::test]
async fn node_that_restarts_in_time_finds_its_share_again() -> Result {
    let stage = Stage::new().await?;
    let started = async |name: &str| {
        owner(
            &stage,
            name,
            &["--own", "billing=4", "--keep-share-for", "1h"],
        )
        .await
    };
    let owned = async |node: &Node| -> Option<Vec<u64>> {
        let answer = get(node.at, "/v1/partitions/billing/own").await;
        let answer = answer.ok()?.json();
        let all = answer["partitions"].as_array()?.iter();
        all.map(|one| one["partition"].as_u64()).collect()
    };
    let half = async |node: &Node| {
        eventually(SOON, "half of the partitions are owned", async || {
            owned(node).await.filter(|all| all.len() == 2)
        })
        .await
    };
    let (a, b) = (started("a").await?, started("b").await?);
    let (of_a, of_b) = (half(&a).await?, half(&b).await?);
    a.stop().await?;
    // The share is kept from the moment that the member has left, so no later change of the set moves it.
    eventually(SOON, "the share is kept", async || {
        let mut command = stage.command("60s", &["partitions", "billing", "--output", "json"]);
        let output = command.output().ok()?;
        let shown: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
        let absent = shown["absent"].as_array()?;
        (absent.len() == 1).then_some(())
    })
    .await?;
    assert_eq!(owned(&b).await, Some(of_b.clone()));
    let a = started("a").await?;
    assert_eq!((half(&a).await?, owned(&b).await), (of_a, Some(of_b)));
    a.stop().await?;
    b.stop().await?;
    Ok(())
}

#[test]
fn sets_of_partitions_that_are_named_twice_or_only_observed_are_refused() -> Result {
    for (args, why) in [
        (&["--own", "a=1,a=2"][..], "--own names \"a\" twice"),
        (
            &["e", "--partitions", "a=1,a=1"],
            "--partitions names \"a\" twice",
        ),
        (&["e", "--own", "a=1", "--observe"], "cannot be used with"),
        (&["--partitions", "a=1"], "ELECTION"),
    ] {
        let output = eldest(&[&["serve"], args].concat()).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(why), "{said}");
    }
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

//! Tests `eldest run` whose next node prepares while the present leader leads.

use eldest_fixtures::wait::until;

use crate::stage::{ELECTION, FOR_EVER, Result, SOON, Stage, TTL};

#[tokio::test]
async fn ordered_hand_over_waits_until_the_next_nodes_command_succeeds() -> Result {
    let stage = Stage::new().await?;
    let diary = stage.diary();
    let script = |name: &str| format!("echo lead-{name} >> DIARY; {FOR_EVER}");
    let ready = stage.path("ready");
    let prepare = format!(
        "echo prepare >> DIARY; while ! test -e {}; do sleep 0.02; done; echo warm >> DIARY",
        ready.display()
    );
    let prepare = diary.filled(&prepare);
    let options = |command| ["--warm-within", "50m", "--prepare", command];
    let mut leader = stage.script("a", &options("true"), &script("a"))?;
    diary.says("lead-a").await?;
    let mut next = stage.script("b", &options(&prepare), &script("b"))?;
    diary.says("prepare").await?;

    let order = ["step-down", ELECTION, "--wait", "1s"];
    let said = stage.runs(TTL, &order).await?.with(5);
    assert!(said.contains("its successor is not warm"), "{said}");
    assert!(!diary.text().contains("lead-b"), "{}", diary.text());
    std::fs::write(&ready, "")?;
    diary.says("warm").await?;
    stage.runs(TTL, &["step-down", ELECTION]).await?.with(0);
    diary.says("lead-b").await?;
    assert_eq!(diary.lines(), ["lead-a", "prepare", "warm", "lead-b"]);
    next.stop().await?;
    leader.stop().await?;
    Ok(())
}

#[tokio::test]
async fn command_that_fails_leaves_its_node_in_its_place() -> Result {
    let stage = Stage::new().await?;
    let diary = stage.diary();
    let options = |command| ["--warm-within", "50m", "--prepare", command];
    let mut leader = stage.script("a", &options("true"), FOR_EVER)?;
    stage.has_candidate("a").await?;
    let prepare = diary.filled("echo prepare >> DIARY; exit 3");
    let mut next = stage.script(
        "b",
        &options(&prepare),
        &format!("echo lead-b >> DIARY; {FOR_EVER}"),
    )?;
    diary.says("prepare").await?;
    until(SOON, "the command has failed", async || {
        next.log().contains("this node is not warm")
    })
    .await?;
    let order = ["step-down", ELECTION, "--wait", "1s"];
    let said = stage.runs(TTL, &order).await?.with(5);
    assert!(said.contains("its successor is not warm"), "{said}");
    leader.stop().await?;
    diary.says("lead-b").await?;
    assert_eq!(diary.lines(), ["prepare", "lead-b"]);
    next.stop().await?;
    Ok(())
}

/// The node begins to prepare, and is elected while the keeper of the command starts.
#[tokio::test]
async fn node_that_is_elected_at_once_leads_without_waiting_for_its_preparation() -> Result {
    let stage = Stage::new().await?;
    for name in ["a", "b", "c", "d"] {
        let options = ["--warm-within", "50m", "--prepare", "sleep 1000"];
        let mut node = stage.script(name, &options, "true")?;
        assert!(node.end().await?.success(), "{}", node.log());
        let log = node.log();
        assert!(!log.contains("the keeper did not end"), "{log}");
        assert!(!log.contains("work failed"), "{log}");
    }
    Ok(())
}

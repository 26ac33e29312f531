//! Tests the options of `eldest run`: restarts, followers, health checks, and values that are refused.

use eldest_fixtures::wait::until;

use crate::stage::{ELECTION, FOR_EVER, Result, SOON, Stage, TAKEOVER};

#[tokio::test]
async fn with_restart_an_ended_program_rejoins_at_the_back_of_the_queue() -> Result {
    let stage = Stage::new().await?;
    let diary = stage.diary();
    let script = format!(
        "echo token=$ELDEST_FENCING_TOKEN >> DIARY; [ $(wc -l < DIARY) -lt 3 ] || {FOR_EVER}"
    );
    let mut node = stage.script("a", &["--restart"], &script)?;
    let tokens = || -> Vec<i64> {
        let text = diary.text();
        let token = |line: &str| line.strip_prefix("token=")?.parse().ok();
        text.lines().filter_map(token).collect()
    };
    until(TAKEOVER, "three terms", async || tokens().len() == 3).await?;
    assert!(tokens().is_sorted_by(|a, b| a < b), "{:?}", tokens());
    node.stop().await?;
    Ok(())
}

#[tokio::test]
async fn the_follower_s_program_ends_before_the_leader_s_begins() -> Result {
    let stage = Stage::new().await?;
    let diary = stage.diary();
    let mut leader = stage.script("a", &[], FOR_EVER)?;
    stage.has_candidate("a").await?;
    let follow = "trap 'echo follow-end >> DIARY; exit 0' TERM; echo follow-begin-$ELDEST_FENCING_TOKEN. >> DIARY; \
        while :; do sleep 0.02; done";
    let follow = diary.filled(follow);
    let script = format!("echo lead-begin >> DIARY; {FOR_EVER}");
    let mut follower = stage.script("b", &["--follow-cmd", &follow], &script)?;
    diary.says("follow-begin-.").await?;
    stage.has_candidate("b").await?;
    leader.stop().await?;
    diary.says("lead-begin").await?;
    assert_eq!(
        diary.lines(),
        ["follow-begin-.", "follow-end", "lead-begin"]
    );
    follower.stop().await?;
    Ok(())
}

const HEALTH: [&str; 4] = ["--health-every", "100ms", "--health-limit", "1s"];

#[tokio::test]
async fn node_whose_health_command_fails_neither_joins_nor_keeps_leading() -> Result {
    let stage = Stage::new().await?;
    let diary = stage.diary();
    let well = stage.path("well");
    let check = format!("test -e {}", well.display());
    let options = [&["--health-cmd", &check], &HEALTH[..]].concat();
    let mut node = stage.script(
        "a",
        &options,
        &format!("echo begin-$ELDEST_FENCING_TOKEN. >> DIARY; {FOR_EVER}"),
    )?;
    until(SOON, "it says why", async || {
        node.log().contains("unhealthy")
    })
    .await?;
    assert!(stage.keys(&format!("eldest/{ELECTION}/")).await?.is_empty());
    std::fs::write(&well, "")?;
    diary.says("begin-").await?;
    std::fs::remove_file(&well)?;
    stage.is_free(&format!("eldest/{ELECTION}/")).await?;
    // A program that ends slowly outlives its place in the queue, but not this key, without which no other program
    // begins.
    stage.is_free(&format!("eldest/~run/{ELECTION}/")).await?;
    assert!(node.running().is_none());
    node.stop().await?;
    Ok(())
}

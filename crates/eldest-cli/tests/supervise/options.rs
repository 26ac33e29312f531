//! Tests the options of `eldest run`: restarts, followers, health checks, and values that are refused.

use eldest_testing::eventually;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::diary::{Diary, FOR_EVER, output, text};
use crate::stage::{ELECTION, Result, SOON, Stage, TAKEOVER, TTL};

#[tokio::test]
async fn with_restart_an_ended_program_rejoins_at_the_back_of_the_queue() -> Result {
    let stage = Stage::new().await?;
    let diary = Diary::of(&stage);
    let script = format!(
        "echo token=$ELDEST_FENCING_TOKEN >> DIARY; [ $(wc -l < DIARY) -lt 3 ] || {FOR_EVER}"
    );
    let mut node = stage.script("a", &["--restart"], &script)?;
    let tokens = || -> Vec<i64> {
        let text = diary.text();
        let token = |line: &str| line.strip_prefix("token=")?.parse().ok();
        text.lines().filter_map(token).collect()
    };
    eventually(TAKEOVER, "three terms", async || {
        (tokens().len() == 3).then_some(())
    })
    .await?;
    assert!(tokens().is_sorted_by(|a, b| a < b), "{:?}", tokens());
    node.stop().await?;
    Ok(())
}

#[tokio::test]
async fn the_follower_s_program_ends_before_the_leader_s_begins() -> Result {
    let stage = Stage::new().await?;
    let diary = Diary::of(&stage);
    let mut leader = stage.script("a", &[], FOR_EVER)?;
    stage.has_candidate("a").await?;
    let follow = "trap 'echo follow-end >> DIARY; exit 0' TERM; echo follow-begin-$ELDEST_FENCING_TOKEN. >> DIARY; \
        while :; do sleep 0.02; done";
    let follow = diary.shell(follow)[2].clone();
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
async fn a_health_command_learns_no_secret() -> Result {
    let stage = Stage::new().await?;
    let notes = stage.folder().join("notes");
    let check = format!("echo token=$ELDEST_HTTP_TOKEN. >> {}", notes.display());
    let mut command = stage.eldest(TTL);
    command.env("ELDEST_HTTP_TOKEN", "canary");
    command.args(["run", ELECTION, "--health-cmd", &check, "--", "cat"]);
    command.arg(&notes);
    let output = output(command).await?;
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(said.starts_with("token=.\n"), "{said}");
    Ok(())
}

#[tokio::test]
async fn node_whose_health_command_fails_neither_joins_nor_keeps_leading() -> Result {
    let stage = Stage::new().await?;
    let diary = Diary::of(&stage);
    let well = stage.folder().join("well");
    let check = format!("test -e {}", well.display());
    let options = [&["--health-cmd", &check], &HEALTH[..]].concat();
    let mut node = stage.script(
        "a",
        &options,
        &format!("echo begin-$ELDEST_FENCING_TOKEN. >> DIARY; {FOR_EVER}"),
    )?;
    eventually(SOON, "it says why", async || {
        node.log().contains("unhealthy").then_some(())
    })
    .await?;
    assert!(stage.keys(&format!("eldest/{ELECTION}/")).await?.is_empty());
    std::fs::write(&well, "")?;
    diary.says("begin-").await?;
    std::fs::remove_file(&well)?;
    let gone = async |prefix: String| {
        eventually(TAKEOVER, format!("{prefix} is empty"), async || {
            let keys = stage.keys(&prefix).await.ok()?;
            keys.is_empty().then_some(())
        })
        .await
    };
    gone(format!("eldest/{ELECTION}/")).await?;
    // A program that ends slowly outlives its place in the queue, but not this key, without which no other program
    // begins.
    gone(format!("eldest/~run/{ELECTION}/")).await?;
    assert!(node.running().is_none());
    node.stop().await?;
    Ok(())
}

#[tokio::test]
async fn node_whose_health_url_fails_neither_joins_nor_keeps_leading() -> Result {
    let stage = Stage::new().await?;
    let diary = Diary::of(&stage);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/live", listener.local_addr()?);
    let (status, answer) = watch::channel("503 Service Unavailable");
    let server = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 1024];
            let read = stream.read(&mut request).await.unwrap_or_default();
            assert!(text(&request[..read]).starts_with("GET /live HTTP/1.1\r\n"));
            let answer = format!("HTTP/1.1 {}\r\ncontent-length: 0\r\n\r\n", *answer.borrow());
            drop(stream.write_all(answer.as_bytes()).await);
        }
    });
    let options = [&["--health-url", &url], &HEALTH[..]].concat();
    let mut node = stage.script("a", &options, &format!("echo begin >> DIARY; {FOR_EVER}"))?;
    eventually(SOON, "it says why", async || {
        node.log().contains("503").then_some(())
    })
    .await?;
    assert_eq!(stage.keys(&format!("eldest/{ELECTION}/")).await?, []);
    status.send_replace("204 No Content");
    diary.says("begin").await?;
    status.send_replace("500 Internal Server Error");
    eventually(TAKEOVER, "it gives way", async || {
        stage
            .keys(&format!("eldest/{ELECTION}/"))
            .await
            .ok()?
            .is_empty()
            .then_some(())
    })
    .await?;
    node.stop().await?;
    server.abort();
    Ok(())
}

#[tokio::test]
async fn locks_that_keep_programs_apart_are_outside_of_all_elections() -> Result {
    let stage = Stage::new().await?;
    let diary = Diary::of(&stage);
    let mut node = stage.script("a", &[], &format!("echo begin >> DIARY; {FOR_EVER}"))?;
    diary.says("begin").await?;
    assert_eq!(
        stage.keys(&format!("eldest/~run/{ELECTION}/")).await?.len(),
        1
    );
    let mut command = stage.eldest(TTL);
    command.args(["--output", "json", "status"]);
    let said = text(&output(command).await?.stdout);
    assert!(said.contains(ELECTION) && !said.contains("~run"), "{said}");
    node.stop().await?;
    Ok(())
}

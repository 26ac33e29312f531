//! Tests `eldest run` whose node serves only once its program is ready.

use std::path::PathBuf;

use eldest_testing::eventually;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::stage::{ELECTION, Result, SOON, Stage, TAKEOVER};

/// Returns the term in which the only node says that it serves, as its key has it.
async fn said(stage: &Stage) -> Option<i64> {
    let prefix = format!("eldest/{ELECTION}/");
    let (key, _) = stage.keys(&prefix).await.ok()?.into_iter().next()?;
    let answer = stage.client().await.get(key, None).await.ok()?;
    let value: serde_json::Value = serde_json::from_slice(answer.kvs().first()?.value()).ok()?;
    value["serves"].as_i64()
}

/// Answers each request with success once that file exists, and returns the URL.
async fn answering(well: PathBuf) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/ready", listener.local_addr()?);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let status = if well.exists() { "200 OK" } else { "503 Wait" };
            let _ = stream.read(&mut [0; 1024]).await;
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    Ok(url)
}

#[tokio::test]
async fn node_serves_once_a_command_succeeds_a_url_answers_or_the_program_notifies() -> Result {
    for option in ["--serving-command", "--serving-url", "--notify"] {
        let stage = Stage::new().await?;
        let well = stage.path("well");
        let value = match option {
            "--serving-command" => Some(format!("test -e {}", well.display())),
            "--serving-url" => Some(answering(well.clone()).await?),
            _ => None,
        };
        let mut options = vec!["--serving-within", "1m", option];
        options.extend(value.as_deref());
        let manners = if value.is_none() { "notifies" } else { "" };
        let mut node = stage.worker("a", manners, &options)?;
        let worker = stage.next_worker(0).await?;
        assert_eq!(said(&stage).await, Some(0), "{option}: it is not ready");
        std::fs::write(&well, "")?;
        eventually(SOON, format!("it serves by {option}"), async || {
            (said(&stage).await? == worker.token).then_some(())
        })
        .await?;
        node.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn program_that_is_not_ready_in_time_is_ended_and_starts_again() -> Result {
    let stage = Stage::new().await?;
    let options = ["--serving-within", "1s", "--serving-command", "false"];
    let mut node = stage.worker("a", "", &options)?;
    let first = stage.next_worker(0).await?;
    let second = stage.next_worker(first.token).await?;
    assert!(node.log().contains("not_serving"), "{}", node.log());
    stage.nothing_of(first.token, TAKEOVER).await?;
    assert!(second.at > first.at);
    node.stop().await?;
    stage.judge().await.map(drop)
}

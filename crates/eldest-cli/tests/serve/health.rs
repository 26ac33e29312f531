//! Tests `eldest serve` beside a program whose health it watches.

use std::time::Duration;

use eldest_fixtures::http::{answers, get, post};
use eldest_fixtures::tls::Authority;
use eldest_testing::eventually;

use crate::shared::{Node, Result, SOON, Stage};

/// Starts `eldest serve` at a free port; it need not become ready.
async fn beside(stage: &Stage, name: &str, more: &[&str]) -> Result<Node> {
    let mut command = stage.serve("60s", name);
    command.args(["--grace", "400ms"]).args(more);
    Node::announced(name, "http", command).await
}

/// Waits until the node answers that it is not ready, for that reason.
async fn is_unready(node: &Node, reason: &str) -> Result {
    Ok(eventually(SOON, format!("not ready: {reason}"), async || {
        let answer = get(node.at, "/ready").await.ok()?;
        (answer.status == 503 && answer.body.contains(reason)).then_some(())
    })
    .await?)
}

#[tokio::test]
async fn hung_program_loses_the_lead_until_it_is_healthy_again() -> Result {
    let stage = Stage::new().await?;
    let well = stage.path("well");
    let check = format!("test -e {}", well.display());
    let often = ["--health-every", "100ms", "--health-limit", "3s"];
    let more = [
        &["--health-cmd", &check, "--stall-timeout", "3s"],
        &often[..],
    ]
    .concat();
    let a = beside(&stage, "a", &more).await?;
    is_unready(&a, "no heartbeat within 3s").await?;
    let at = a.at;
    let beating = tokio::spawn(async move {
        loop {
            let _ = post(at, "/v1/elections/team/e/heartbeat").await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    // All conditions must hold, not just one.
    is_unready(&a, "the command failed").await?;
    std::fs::write(&well, "")?;
    answers(a.at, "/leader", 200).await?;
    let b = stage.node("60s", "b", &[]).await?;
    beating.abort();
    answers(b.at, "/leader", 200).await?;
    is_unready(&a, "no heartbeat within 3s").await?;
    assert!(a.log().contains("unhealthy"), "{}", a.log());
    Ok(())
}

#[tokio::test]
async fn a_program_is_asked_by_https_and_trusted_by_its_authority_alone() -> Result {
    let stage = Stage::new().await?;
    let authority = Authority::new()?;
    let signed = authority.sign("127.0.0.1")?;
    let file = |name: &str| stage.file(name);
    std::fs::write(file("node.pem"), signed.certificate)?;
    std::fs::write(file("node.key"), signed.key)?;
    std::fs::write(file("ca.pem"), authority.pem())?;
    std::fs::write(file("stranger.pem"), Authority::new()?.pem())?;
    // A node answers over TLS, in place of a program.
    let program = ["serve", "other", "--observe", "--listen", "127.0.0.1:0"];
    let mut command = stage.command("60s", &program);
    command.args([
        "--http-cert",
        &file("node.pem"),
        "--http-key",
        &file("node.key"),
    ]);
    let program = Node::announced("program", "https", command).await?;
    let url = format!("https://{}/live", program.at);
    let asks = |ca: String| {
        let often = ["--health-every", "100ms", "--health-limit", "3s"];
        let more = [&["--health-url", &url, "--health-ca", &ca], &often[..]].concat();
        more.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let trusts = async |name: &str, ca: &str| {
        let more = asks(file(ca));
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        beside(&stage, name, &more).await
    };
    let doubting = trusts("doubting", "stranger.pem").await?;
    is_unready(&doubting, "certificate").await?;
    let a = trusts("a", "ca.pem").await?;
    answers(a.at, "/leader", 200).await?;
    program.close().await?;
    answers(a.at, "/leader", 503).await?;
    is_unready(&a, "not healthy").await?;
    Ok(())
}

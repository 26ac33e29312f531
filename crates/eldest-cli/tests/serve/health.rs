//! Tests `eldest serve` beside a program whose health it watches.

use std::time::Duration;

use eldest_fixtures::tls::Authority;
use eldest_testing::eventually;

use crate::caller::{get, post};
use crate::stage::{ELECTION, Node, Result, SOON, Stage, answers, eldest};

/// Starts `eldest serve` at a free port; it need not become ready.
async fn beside(stage: &Stage, name: &str, more: &[&str]) -> Result<Node> {
    let args = ["serve", ELECTION, "--id", name, "--listen", "127.0.0.1:0"];
    let mut command = stage.command("60s", &args);
    command.args(["--grace", "400ms"]).args(more);
    stage.announced(name, "http", command).await
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
    let well = stage.folder.path().join("well");
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
    b.stop().await?;
    a.stop().await
}

#[tokio::test]
async fn a_program_is_asked_by_https_and_trusted_by_its_authority_alone() -> Result {
    let stage = Stage::new().await?;
    let authority = Authority::new()?;
    let signed = authority.sign("127.0.0.1")?;
    let file = |name: &str| stage.folder.path().join(name).display().to_string();
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
    let program = stage.announced("program", "https", command).await?;
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
    program.stop().await?;
    answers(a.at, "/leader", 503).await?;
    is_unready(&a, "not healthy").await?;
    doubting.stop().await?;
    a.stop().await
}

#[tokio::test]
async fn program_of_a_node_that_leads_is_found_once_it_says_that_it_is_ready() -> Result {
    let stage = Stage::new().await?;
    let a = beside(&stage, "a", &["--serving-within", "60s"]).await?;
    answers(a.at, "/ready", 200).await?;
    let refused = get(a.at, "/leader").await?;
    assert_eq!(
        (refused.status, &refused.json()["serving"]),
        (503, &false.into())
    );
    let mut status = stage.command("60s", &["status", ELECTION]);
    let shown = String::from_utf8(status.output()?.stdout)?;
    assert!(shown.contains("(not serving yet)"), "{shown}");
    eventually(SOON, "it serves", async || {
        let path = format!("/v1/elections/{ELECTION}/serving");
        (post(a.at, &path).await.ok()?.status == 200).then_some(())
    })
    .await?;
    answers(a.at, "/leader", 200).await?;
    a.stop().await
}

#[test]
fn contradictory_health_options_are_refused() -> Result {
    let folder = tempfile::tempdir()?;
    let empty = folder.path().join("empty").display().to_string();
    std::fs::write(&empty, "")?;
    for (more, parts) in [
        (vec!["--health-url", "ftp://a/"], ["ftp://a/", "https://"]),
        (vec!["--health-ca", &empty], ["--health-url", "required"]),
        (
            vec!["--health-url", "http://a/", "--health-ca", &empty],
            ["--health-ca", "http://a/ is not an https URL"],
        ),
        (
            vec!["--health-url", "https://a/", "--health-ca", &empty],
            ["--health-ca", "no certificate"],
        ),
        (
            vec!["--health-url", "https://a/", "--health-ca", "/nowhere"],
            ["--health-ca /nowhere", "https://a/"],
        ),
        (
            vec!["--health-cmd", "true", "--observe"],
            ["health check", "--observe"],
        ),
        (
            vec!["--stall-timeout", "3s", "--observe"],
            ["--stall-timeout", "--observe"],
        ),
        (vec!["--stall-timeout", "3"], ["--stall-timeout", "3s"]),
    ] {
        let args = [&["serve", "e", "--listen", "127.0.0.1:0"], &more[..]].concat();
        let output = eldest(&args).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        for part in parts {
            assert!(said.contains(part), "{args:?}: {part:?} is not in {said:?}");
        }
    }
    Ok(())
}

//! Tests the clients in other languages, as published in `examples/clients`.

use std::path::Path;
use std::process::{Output, Stdio};

use eldest_fixtures::hang::freeze;
use eldest_fixtures::http::get;
use eldest_fixtures::wait::until;
use eldest_testing::eventually;
use rustix::process::Signal;
use tokio::process::{Child, Command};

use crate::shared::{Node, Result, SOON, Stage};

const CLIENTS: [&str; 2] = ["lock.py", "lock.sh"];

/// Returns a client that waits for the lock "a/b" and then runs that program in a shell.
fn client(kind: &str, node: &Node, wait: u64, program: &str) -> Command {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples/clients")
        .join(kind);
    let url = format!("http://{}", node.at);
    let mut command;
    if kind == "lock.py" {
        command = Command::new("python3");
        command
            .arg(file)
            .args(["--node", &url, "--wait", &wait.to_string(), "a/b"]);
    } else {
        command = Command::new("sh");
        command.arg(file).arg("a%2Fb");
        command
            .env("ELDEST_NODE", url)
            .env("WAIT_MS", (wait * 1000).to_string());
    }
    command
        .args(["sh", "-c", program])
        .env("ELDEST_HTTP_TOKEN", "canary");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.kill_on_drop(true);
    command
}

/// Starts a node that requires the token which the clients have.
async fn guarded(stage: &Stage, name: &str) -> Result<Node> {
    let file = stage.path("token");
    std::fs::write(&file, "canary")?;
    let token = ["--http-token-file", &*file.to_string_lossy()];
    stage.node("10s", name, &token).await
}

async fn ended(client: Child) -> Result<Output> {
    let output = tokio::time::timeout(SOON, client.wait_with_output());
    Ok(output.await.map_err(|_| "the client does not end")??)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

async fn takes_and_gives_back(kind: &str) -> Result {
    let stage = Stage::new().await?;
    let node = guarded(&stage, "a").await?;
    // The lock is held while the first client's program runs, which is until the file is gone.
    let flag = stage.path("flag");
    std::fs::write(&flag, "")?;
    let program = format!(
        "echo $ELDEST_FENCING_TOKEN; while [ -e {} ]; do sleep 0.1; done; exit 3",
        flag.display()
    );
    let first = client(kind, &node, 0, &program).spawn()?;
    let held = async || {
        get(node.at, "/v1/locks").await.ok()?.json()["locks"]
            .as_array()
            .cloned()
    };
    let one = async || held().await.filter(|held| held.len() == 1);
    eventually(SOON, "the lock is held", one).await?;
    gets_nothing(kind, &node, 75).await?;
    let second = client(
        kind,
        &node,
        15,
        "echo $ELDEST_FENCING_TOKEN $ELDEST_HTTP_TOKEN",
    )
    .spawn()?;
    std::fs::remove_file(&flag)?;
    let (first, second) = (ended(first).await?, ended(second).await?);
    assert_eq!(
        first.status.code(),
        Some(3),
        "the program's own code: {first:?}"
    );
    assert_eq!(second.status.code(), Some(0), "{second:?}");
    let [before, after] = [&first, &second].map(|output| {
        let said = said(output);
        said.split(' ')
            .next()
            .and_then(|token| token.parse::<i64>().ok())
    });
    assert!(
        before.is_some() && before < after,
        "tokens rise: {first:?} {second:?}"
    );
    let locks = held().await.ok_or("locks")?;
    assert!(locks.is_empty(), "given back: {locks:?}");
    // After its node has died, the client has lost its lock.
    let program = format!("echo > {}; exec sleep 1000", flag.display());
    let third = client(kind, &node, 0, &program).spawn()?;
    until(SOON, "the program runs", async || flag.exists()).await?;
    node.signal(Signal::KILL);
    let third = ended(third).await?;
    assert_eq!(third.status.code(), Some(74), "{third:?}");
    gets_nothing(kind, &node, 69).await
}

/// Asserts that a client that does not wait ends with that code, without running its program.
async fn gets_nothing(kind: &str, node: &Node, code: i32) -> Result {
    let refused = ended(client(kind, node, 0, "echo never").spawn()?).await?;
    let outcome = (refused.status.code(), &*said(&refused));
    assert_eq!(outcome, (Some(code), ""), "{refused:?}");
    Ok(())
}

/// The stopped node cannot notify its client. Another node's caller has the lock when the lease has expired, so the
/// client's program must be dead by then.
async fn kills_its_program_in_time(kind: &str) -> Result {
    let stage = Stage::new().await?;
    let (a, b) = (guarded(&stage, "a").await?, guarded(&stage, "b").await?);
    let beats = stage.path("beats");
    // Only whole lines are read, not one that was cut short.
    let program = format!(
        "while :; do echo at $(cut -d' ' -f1 /proc/uptime) end >> {}; sleep 0.02; done",
        beats.display()
    );
    let first = client(kind, &a, 0, &program).spawn()?;
    until(SOON, "the program runs", async || beats.exists()).await?;
    let second = client(kind, &b, 60, "cut -d' ' -f1 /proc/uptime").spawn()?;
    freeze(&a.child)?;
    let (first, second) = tokio::join!(ended(first), ended(second));
    let (first, second) = (first?, second?);
    assert_eq!(first.status.code(), Some(74), "{first:?}");
    assert_eq!(second.status.code(), Some(0), "{second:?}");
    let text = std::fs::read_to_string(&beats)?;
    let mut beats = text.lines().filter_map(|line| {
        let beat = line.strip_prefix("at ")?.strip_suffix(" end")?;
        beat.parse::<f64>().ok()
    });
    let (last, begun) = (
        beats.next_back().ok_or("a beat")?,
        said(&second).parse::<f64>()?,
    );
    println!("{kind}: {:.2} s between the two", begun - last);
    assert!(
        last < begun,
        "its program ran at {last}, another's at {begun}"
    );
    a.signal(Signal::CONT);
    Ok(())
}

#[tokio::test]
async fn each_client_kills_its_program_before_another_has_the_lock() -> Result {
    for kind in CLIENTS {
        kills_its_program_in_time(kind).await?;
    }
    Ok(())
}

#[tokio::test]
async fn each_client_holds_a_lock_while_its_program_runs() -> Result {
    for kind in CLIENTS {
        takes_and_gives_back(kind).await?;
    }
    Ok(())
}

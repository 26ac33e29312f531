//! Tests the options for access to a node, and options that are refused.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use eldest_fixtures::hang::idle;
use eldest_fixtures::http::{answers, ask, exactly, get, post};
use eldest_fixtures::text::has;
use eldest_testing::eventually;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::shared::{ELECTION, Node, Result, SOON, Stage, eldest, run, words};

const EVENTS: &str = "/v1/elections/team%2Fe/events";
const STEP_DOWN: &str = "/v1/elections/team%2Fe/step_down";

#[tokio::test]
async fn node_that_cannot_start_ends_with_the_code_of_the_reason() -> Result {
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let at = taken.local_addr()?.to_string();
    let away =
        "serve e --listen 127.0.0.1:0 --connect-timeout 300ms --endpoints http://127.0.0.1:1";
    for (line, code, parts) in [
        (format!("serve e --listen {at}"), 1, ["--listen", "in use"]),
        (
            format!("run e --serve {at} -- true"),
            1,
            ["--serve", "in use"],
        ),
        (away.to_owned(), 3, ["error: ", ""]),
    ] {
        let said = run(eldest(&words(&line))).await?.with(code);
        has(&said, &parts);
    }
    Ok(())
}

/// Returns the address of this machine that others would use, or the wildcard address. No packet is sent.
fn outer_address() -> IpAddr {
    let seen = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    });
    seen.map_or(IpAddr::from([0, 0, 0, 0]), |seen| seen.ip())
}

#[tokio::test]
async fn beyond_loopback_nothing_can_be_changed_without_a_token() -> Result {
    let stage = Stage::new().await?;
    let at = SocketAddr::new(outer_address(), 0).to_string();
    let command = || {
        let mut command = stage.command("60s", &["serve", ELECTION, "--listen", &at]);
        command.args(["--http-host", "node.example", "--http-host", "node"]);
        command.args(["--grace", "400ms"]);
        command
    };
    let node = Node::listening("b", command()).await?;
    answers(node.at, "/leader", 200).await?;
    let refused = post(node.at, STEP_DOWN).await?;
    assert_eq!(refused.problem(), "no_token_configured");
    for (host, status) in [
        ("node.example", 200),
        ("Node.Example:80", 200),
        ("node:8470", 200),
        ("evil.example", 421),
    ] {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        assert_eq!(exactly(node.at, &request).await?.status, status, "{host}");
    }
    node.close().await?;

    let file = stage.path("token");
    std::fs::write(&file, "a-token\n")?;
    let mut guarded = command();
    guarded.arg("--http-token-file").arg(&file);
    let node = Node::listening("c", guarded).await?;
    answers(node.at, "/leader", 200).await?;
    assert_eq!(post(node.at, STEP_DOWN).await?.problem(), "token_needed");
    let right = "Authorization: Bearer a-token\r\nContent-Length: 0\r\n";
    assert_eq!(ask(node.at, "POST", STEP_DOWN, right).await?.status, 200);
    assert!(!node.log().contains("a-token"));
    Ok(())
}

#[tokio::test]
async fn node_of_two_elections_announces_its_data_center_and_derives_times_from_the_round_trip()
-> Result {
    let stage = Stage::new().await?;
    let endpoints = format!("eu={}", stage.etcd.endpoint());
    let mut command = eldest(&["serve", ELECTION, "second", "--id", "a"]);
    command.args(["--listen", "127.0.0.1:0"]);
    command.args(["--endpoints", &endpoints, "--data-center", "eu"]);
    command.args(["--round-trip", "120ms", "--grace", "400ms"]);
    let node = Node::listening("a", command).await?;
    for election in ["team/e", "second"] {
        answers(node.at, &format!("/leader?election={election}"), 200).await?;
    }
    let shown = eventually(SOON, "its observer has seen it", async || {
        let shown = get(node.at, "/v1/elections/team%2Fe").await.ok()?.json();
        shown["roster"][0].is_object().then_some(shown)
    })
    .await?;
    assert_eq!(shown["own"]["identity"], "a");
    assert_eq!(shown["roster"][0]["data_center"], "eu", "{shown}");
    assert_eq!(shown["endpoints"][0]["data_center"], "eu", "{shown}");
    assert_eq!(shown["endpoints"][0]["lease"], "only", "{shown}");
    // With the default TTL of 10 s it is never more than 9.5 s.
    let valid = shown["own"]["valid_for_ms"].as_u64();
    assert!(valid > Some(9_500) && valid < Some(15_000), "{shown}");
    Ok(())
}

/// Opens a connection that follows the events of the election.
async fn events(at: SocketAddr) -> Result<TcpStream> {
    let request = format!("GET {EVENTS} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut stream = idle(at, &request).await?;
    let mut begin = [0; 12];
    stream.read_exact(&mut begin).await?;
    assert_eq!(&begin, b"HTTP/1.1 200");
    Ok(stream)
}

#[tokio::test]
async fn a_caller_has_at_most_as_many_connections_as_the_option_says() -> Result {
    let stage = Stage::new().await?;
    let limit = 2;
    let option = ["--http-caller-connections", &limit.to_string()];
    let node = stage.node("60s", "a", &option).await?;
    let mut streams = Vec::new();
    for _ in 0..limit {
        // The node may not have noticed yet that the connection of the probe before is closed.
        let stream = eventually(SOON, "a stream", async || events(node.at).await.ok());
        streams.push(stream.await?);
    }
    assert!(get(node.at, "/live").await.is_err(), "one connection more");
    streams.pop();
    answers(node.at, "/live", 200).await?;
    Ok(())
}

//! Tests the access rules, and that no request makes a server fail.

use eldest::{CancellationToken, Session};
use eldest_http::{Auth, Limits, Node, router, serve};
use eldest_testing::MemoryEtcd;
use tokio::net::TcpListener;

use crate::caller::{ask, exactly, get, post};
use crate::stage::{Result, SOON, Server, options};

const STEP_DOWN: &str = "/v1/elections/e/step_down";

fn node() -> Result<Node> {
    let session = Session::connect_lazy(["http://127.0.0.1:1"], options("a"))?;
    Ok(Node::new().works_in(&session.election("e")?))
}

#[tokio::test]
async fn request_must_call_the_node_by_one_of_its_names() -> Result {
    let auth = |auth: Auth| auth.host("Node-A.example");
    let server = Server::start(node()?, Limits::default(), auth).await?;
    let ask = async |head: &str| exactly(server.at, &format!("{head}\r\n\r\n")).await;
    let called = async |hosts: &str| {
        let head = "GET /live HTTP/1.1\r\nConnection: close";
        ask(&format!("{head}\r\n{hosts}")).await
    };
    let own =
        "localhost LOCALHOST:1 localhost. 127.0.0.1 127.9.9.9:80 [::1]:8470 node-a.example:99";
    for host in own.split(' ') {
        let answer = called(&format!("Host: {host}")).await?;
        assert_eq!(answer.status, 200, "{host}");
    }
    let others = "evil.example localhost.evil.example 10.0.0.1 [::2] node-b.example";
    for host in others.split(' ') {
        let answer = called(&format!("Host: {host}")).await?;
        answer.refused(421, "unknown_host");
    }
    let twice = "Host: localhost\r\nHost: localhost";
    for hosts in ["", "Host: a b", twice, "Host: \u{fc}"] {
        called(hosts).await?.refused(400, "bad_host");
    }
    let absolute = "GET http://evil.example/live HTTP/1.1\r\nConnection: close\r\nHost: localhost";
    assert_eq!(ask(absolute).await?.status, 421, "the target comes first");
    assert_eq!(
        ask("GET /live HTTP/1.0").await?.status,
        200,
        "a simple health check"
    );
    Ok(())
}

#[tokio::test]
async fn nothing_is_changed_without_the_token() -> Result {
    let secret = "s3cret";
    let server = Server::start(node()?, Limits::default(), |auth| auth.token(secret)).await?;
    assert_eq!(
        get(server.at, "/leader").await?.status,
        503,
        "to ask needs none"
    );
    for given in [
        "",
        "Bearer",
        "Bearer ",
        "Bearer s3cre",
        "Bearer s3cret2",
        "Basic s3cret",
        "s3cret",
    ] {
        let header = format!("Authorization: {given}\r\nContent-Length: 0\r\n");
        for method in ["POST", "PUT", "DELETE", "WHATEVER"] {
            let answer = ask(server.at, method, STEP_DOWN, &header).await?;
            answer.refused(401, "token_needed");
            assert_eq!(answer.header("www-authenticate"), Some("bearer"));
            assert!(!answer.body.contains(secret), "leaked secret");
        }
    }
    for scheme in ["Bearer", "bearer"] {
        let header = format!("Authorization: {scheme} {secret}\r\nContent-Length: 0\r\n");
        let answer = ask(server.at, "POST", STEP_DOWN, &header).await?;
        answer.refused(409, "not_leading");
    }
    assert!(
        !format!("{:?}", Auth::at(server.at).token(secret)).contains(secret),
        "leaked secret"
    );
    Ok(())
}

#[tokio::test]
async fn beyond_loopback_nothing_is_changed_unless_there_is_a_token() -> Result {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let at = listener.local_addr()?;
    let shutdown = CancellationToken::new();
    let app = router(node()?, Auth::at(([0, 0, 0, 0], at.port()).into()));
    let task = tokio::spawn(serve(listener, app, Limits::default(), shutdown.clone()));
    let answer = post(at, STEP_DOWN).await?;
    answer.refused(403, "no_token_configured");
    let by_address = "GET /leader HTTP/1.1\r\nHost: 10.0.0.1:8470\r\nConnection: close\r\n\r\n";
    assert_eq!(exactly(at, by_address).await?.status, 503, "as probes ask");
    let by_name = "GET /leader HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    assert_eq!(exactly(at, by_name).await?.status, 421);
    shutdown.cancel();
    tokio::time::timeout(SOON, task).await???;
    Ok(())
}

#[tokio::test]
async fn a_page_of_another_origin_changes_nothing() -> Result {
    let auth = |auth: Auth| auth.host("Front.example.");
    let server = Server::start(node()?, Limits::default(), auth).await?;
    // Another port of this machine may belong to any program.
    let port = server.at.port();
    let neighbour = format!("http://{}:{}", server.at.ip(), port ^ 1);
    let other_name = format!("http://localhost:{port}");
    let others = "http://evil.example null https://10.0.0.1 rubbish http://localhost \
        http://localhost:3000 https://front.example.evil";
    for origin in others.split(' ').chain([&*neighbour, &*other_name]) {
        let header = format!("Origin: {origin}\r\nContent-Length: 0\r\n");
        let answer = ask(server.at, "POST", STEP_DOWN, &header).await?;
        answer.refused(403, "foreign_origin");
    }
    // The name may be that of a proxy in front of the node.
    let own = format!("http://{}", server.at);
    for origin in [&*own, "https://front.example", "https://FRONT.example:8443"] {
        let header = format!("Origin: {origin}\r\nContent-Length: 0\r\n");
        let answer = ask(server.at, "POST", STEP_DOWN, &header).await?;
        assert_eq!(answer.problem(), "not_leading", "{origin}");
    }
    Ok(())
}

/// The kind of a node, a request to it, and its refusal.
const REFUSED: &str = "
    observer GET /nothing 404 no_such_path
    observer GET /leader/ 404 no_such_path
    observer GET /v1/elections/ 404 no_such_path
    observer OPTIONS /nothing 404 no_such_path
    observer POST /leader 405 no_such_method
    observer PUT /v1/locks 405 no_such_method
    observer GET /v1/elections/%ff 400 bad_path
    observer GET /v1/elections/other 404 no_such_election
    observer GET /v1/elections/other/events 404 no_such_election
    observer POST /v1/elections/other/step_down 404 no_such_election
    observer POST /v1/elections/team/e/heartbeat 409 not_on_behalf
    observer POST /v1/elections/team/e/serving 409 not_on_behalf
    observer POST /v1/elections/team/e/warm 409 not_on_behalf
    observer GET /v1/partitions/team/p/own 409 not_on_behalf
    observer POST /v1/partitions/team/p/heartbeat 409 not_on_behalf
    observer DELETE /v1/partitions/team/p 405 no_such_method
    observer GET /v1/partitions/team/q 404 no_such_partitions
    observer GET /v1/partitions/team/q/owner?key=a 404 no_such_partitions
    observer GET /v1/partitions/team/q/events 404 no_such_partitions
    observer GET /v1/partitions/team/p/owner 400 bad_query
    observer GET /v1/partitions/team/p/owner?kex=a 400 bad_query
    observer GET /v1/partitions/team/p/owner?key=a&key=b 400 bad_query
    beside GET /v1/elections/team/e/step_down 405 no_such_method
    beside GET /v1/elections/team/e/heartbeat 405 no_such_method
    beside GET /v1/elections/team/e/serving 405 no_such_method
    beside GET /v1/elections/team/e/warm 405 no_such_method
    beside POST /v1/elections/other/heartbeat 404 no_such_election
    beside POST /v1/elections/other/serving 404 no_such_election
    beside POST /v1/elections/team/e/heartbeat 409 no_stall_timeout
    beside POST /v1/elections/team/e/warm 409 no_warm_within
    beside GET /v1/partitions/other/own 404 no_such_partitions
    beside POST /v1/partitions/team/p/own 405 no_such_method
    beside GET /v1/partitions/team/p/own?from=8 400 bad_query
    beside GET /v1/partitions/team/p/heartbeat 405 no_such_method
    beside POST /v1/partitions/team/p/heartbeat 409 no_stall_timeout
";

#[tokio::test]
async fn each_refusal_is_problem_details_with_a_code() -> Result {
    let etcd = MemoryEtcd::start();
    let session = etcd.session(options("a")).await?;
    let (election, partitions) = (
        session.election("team/e")?,
        session.partitions("team/p", 8)?,
    );
    let never = CancellationToken::new();
    let observer = Node::new()
        .observes(&election)
        .observes_partitions(&partitions);
    let (beside, _leading) = Node::new().lead_on_behalf(&election, never.clone());
    let (beside, _owning) = beside.own_on_behalf(&partitions, never);
    let (observer, beside) = (Server::plain(observer).await?, Server::plain(beside).await?);
    for case in REFUSED.trim().lines() {
        let words: Vec<&str> = case.split_whitespace().collect();
        let at = if words[0] == "beside" {
            beside.at
        } else {
            observer.at
        };
        let answer = ask(at, words[1], words[2], "Content-Length: 0\r\n").await?;
        answer.refused(words[3].parse()?, words[4]);
        assert_eq!(
            answer.header("allow").is_some(),
            answer.status == 405,
            "{case}"
        );
    }
    let answer = get(observer.at, &format!("/{}", "x".repeat(5000))).await?;
    assert!(
        answer.body.len() < 500,
        "what was sent is not repeated in full"
    );
    Ok(())
}

/// A monitor that probes by these methods has no token; a page of another origin learns nothing that it could use.
#[tokio::test]
async fn head_and_options_need_no_token() -> Result {
    let server = Server::start(node()?, Limits::default(), |auth| auth.token("t")).await?;
    let at = server.at;
    // The tests of the contract compare the methods of every path.
    for (path, allow) in [("/leader", "get,head,options"), (STEP_DOWN, "post,options")] {
        let answer = ask(at, "OPTIONS", path, "Origin: http://evil.example\r\n").await?;
        assert_eq!((answer.status, &*answer.body), (204, ""), "{path}");
        assert_eq!(answer.header("allow"), Some(allow), "{path}");
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
    let all = exactly(
        at,
        "OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    )
    .await?;
    assert_eq!(all.status, 204);
    for (path, status) in [("/live", 200), ("/leader", 503), ("/v1/elections/e", 200)] {
        let (head, full) = (ask(at, "HEAD", path, "").await?, get(at, path).await?);
        assert_eq!((head.status, &*head.body), (status, ""), "{path}");
        assert_eq!(head.header("content-type"), full.header("content-type"));
        assert!(
            head.header("content-length")
                .is_some_and(|length| length != "0")
        );
    }
    Ok(())
}

/// The server refuses these bytes or closes, and then serves the next request. The tests of `fuzzing` send others to the router.
#[tokio::test]
async fn no_request_crashes_the_server() -> Result {
    let server = Server::plain(node()?).await?;
    let at = server.at;
    let many_headers: String =
        (0..200).fold(String::new(), |all, n| all + &format!("X-{n}: y\r\n"));
    let large = format!(
        "GET /live HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n",
        "x".repeat(100_000)
    );
    let target = format!(
        "GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "x".repeat(100_000)
    );
    let many = format!("GET /live HTTP/1.1\r\nHost: localhost\r\n{many_headers}\r\n");
    let wrong: Vec<Vec<u8>> = vec![
        b"\r\n\r\n\r\n".to_vec(),
        b"\0\0\0\0\r\n\r\n".to_vec(),
        b"GET\r\n\r\n".to_vec(),
        b"GET /live HTTP/9.9\r\n\r\n".to_vec(),
        b"GET /live\r\n\r\n".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS client\r\n\r\n".to_vec(),
        b"GET /live HTTP/1.1\r\nHost localhost\r\n\r\n".to_vec(),
        b"GET /live HTTP/1.1\r\nHost: localhost\r\n\xff\xfe: x\r\n\r\n".to_vec(),
        b"POST /v1/elections/e/step_down HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n".to_vec(),
        b"POST /v1/elections/e/step_down HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n".to_vec(),
        b"POST /v1/elections/e/step_down HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n".to_vec(),
        large.into(),
        target.into(),
        many.into(),
    ];
    for request in wrong {
        let answer = tokio::time::timeout(SOON, half_closed(at, &request)).await??;
        let refusals = ["HTTP/1.1 4", "HTTP/1.0 4", "HTTP/1.1 5"];
        let refused = refusals.iter().any(|start| answer.starts_with(start));
        let request = String::from_utf8_lossy(&request);
        assert!(answer.is_empty() || refused, "{request}: {answer}");
        assert!(!answer.contains(" 500 "), "{answer}");
    }
    assert_eq!(get(at, "/live").await?.status, 200);
    Ok(())
}

/// Sends the bytes and closes its side, so that no server waits for the rest.
async fn half_closed(at: std::net::SocketAddr, request: &[u8]) -> Result<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(at).await?;
    let _ = stream.write_all(request).await;
    let _ = stream.shutdown().await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

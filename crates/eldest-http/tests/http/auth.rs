//! Tests the access rules, and that no request makes a server fail.

use eldest::{CancellationToken, Session};
use eldest_http::{Auth, Limits, Node, router, serve};
use tokio::net::TcpListener;

use crate::caller::{ask, exactly, get, post, raw};
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
    for host in [
        "localhost",
        "LOCALHOST:1",
        "localhost.",
        "127.0.0.1",
        "127.9.9.9:80",
        "[::1]:8470",
        "node-a.example:99",
    ] {
        let answer = ask(&format!(
            "GET /live HTTP/1.1\r\nConnection: close\r\nHost: {host}"
        ))
        .await?;
        assert_eq!(answer.status, 200, "{host}");
    }
    for host in [
        "evil.example",
        "localhost.evil.example",
        "10.0.0.1",
        "[::2]",
        "node-b.example",
    ] {
        let answer = ask(&format!(
            "GET /live HTTP/1.1\r\nConnection: close\r\nHost: {host}"
        ))
        .await?;
        assert_eq!(
            (answer.status, &*answer.problem()),
            (421, "unknown_host"),
            "{host}"
        );
    }
    for hosts in [
        "",
        "Host: a b",
        "Host: localhost\r\nHost: localhost",
        "Host: \u{fc}",
    ] {
        let answer = ask(&format!(
            "GET /live HTTP/1.1\r\nConnection: close\r\n{hosts}"
        ))
        .await?;
        assert_eq!(
            (answer.status, &*answer.problem()),
            (400, "bad_host"),
            "{hosts}"
        );
    }
    let absolute = "GET http://evil.example/live HTTP/1.1\r\nConnection: close\r\nHost: localhost";
    assert_eq!(ask(absolute).await?.status, 421, "the target comes first");
    assert_eq!(
        ask("GET /live HTTP/1.0").await?.status,
        200,
        "a simple health check"
    );
    server.stop().await
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
            assert_eq!(
                (answer.status, &*answer.problem()),
                (401, "token_needed"),
                "{given}"
            );
            assert_eq!(answer.header("www-authenticate"), Some("bearer"));
            assert!(!answer.body.contains(secret), "leaked secret");
        }
    }
    for scheme in ["Bearer", "bearer"] {
        let header = format!("Authorization: {scheme} {secret}\r\nContent-Length: 0\r\n");
        let answer = ask(server.at, "POST", STEP_DOWN, &header).await?;
        assert_eq!((answer.status, &*answer.problem()), (409, "not_leading"));
    }
    assert!(
        !format!("{:?}", Auth::at(server.at).token(secret)).contains(secret),
        "leaked secret"
    );
    server.stop().await
}

#[tokio::test]
async fn beyond_loopback_nothing_is_changed_unless_there_is_a_token() -> Result {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let at = listener.local_addr()?;
    let shutdown = CancellationToken::new();
    let app = router(node()?, Auth::at(([0, 0, 0, 0], at.port()).into()));
    let task = tokio::spawn(serve(listener, app, Limits::default(), shutdown.clone()));
    let answer = post(at, STEP_DOWN).await?;
    assert_eq!(
        (answer.status, &*answer.problem()),
        (403, "no_token_configured")
    );
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
    let server = Server::plain(node()?).await?;
    // Another port of this machine may belong to any program.
    let port = server.at.port();
    let neighbour = format!("http://{}:{}", server.at.ip(), port ^ 1);
    let other_name = format!("http://localhost:{port}");
    for origin in [
        "http://evil.example",
        "null",
        "https://10.0.0.1",
        "rubbish",
        "http://localhost",
        "http://localhost:3000",
        &neighbour,
        &other_name,
    ] {
        let header = format!("Origin: {origin}\r\nContent-Length: 0\r\n");
        let answer = ask(server.at, "POST", STEP_DOWN, &header).await?;
        assert_eq!(
            (answer.status, &*answer.problem()),
            (403, "foreign_origin"),
            "{origin}"
        );
    }
    let header = format!("Origin: http://{}\r\nContent-Length: 0\r\n", server.at);
    let answer = ask(server.at, "POST", STEP_DOWN, &header).await?;
    assert_eq!(answer.problem(), "not_leading");
    server.stop().await
}

#[tokio::test]
async fn page_behind_a_configured_name_may_request_changes() -> Result {
    let auth = |auth: Auth| auth.host("Front.example.");
    let server = Server::start(node()?, Limits::default(), auth).await?;
    for (origin, code) in [
        ("https://front.example", "not_leading"),
        ("https://FRONT.example:8443", "not_leading"),
        ("https://front.example.evil", "foreign_origin"),
    ] {
        let header = format!("Origin: {origin}\r\nContent-Length: 0\r\n");
        let answer = ask(server.at, "POST", STEP_DOWN, &header).await?;
        assert_eq!(answer.problem(), code, "{origin}");
    }
    let named = "GET /live HTTP/1.1\r\nHost: front.example\r\nConnection: close\r\n\r\n";
    assert_eq!(exactly(server.at, named).await?.status, 200);
    server.stop().await
}

#[tokio::test]
async fn refusals_of_the_framework_are_problem_details_too() -> Result {
    let server = Server::plain(node()?).await?;
    let at = server.at;
    for (method, path, status, code) in [
        ("GET", "/nothing", 404, "no_such_path"),
        ("GET", "/leader/", 404, "no_such_path"),
        ("GET", "/v1/elections/", 404, "no_such_path"),
        ("POST", "/leader", 405, "no_such_method"),
        ("PUT", "/v1/locks", 405, "no_such_method"),
        ("OPTIONS", "/nothing", 404, "no_such_path"),
        ("GET", STEP_DOWN, 405, "no_such_method"),
        ("GET", "/v1/elections/%ff", 400, "bad_path"),
        ("GET", "/v1/elections/other", 404, "no_such_election"),
        (
            "POST",
            "/v1/elections/other/step_down",
            404,
            "no_such_election",
        ),
        ("GET", "/v1/elections/other/events", 404, "no_such_election"),
    ] {
        let answer = ask(at, method, path, "Content-Length: 0\r\n").await?;
        assert_eq!(
            (answer.status, &*answer.problem()),
            (status, code),
            "{method} {path}"
        );
        assert_eq!(
            answer.header("allow").is_some(),
            status == 405,
            "{method} {path}"
        );
    }
    let long = "x".repeat(5000);
    let answer = get(at, &format!("/{long}")).await?;
    assert!(
        answer.body.len() < 500,
        "what was sent is not repeated in full"
    );
    server.stop().await
}

/// A monitor that probes by these methods has no token; a page of another origin learns nothing that it could use.
#[tokio::test]
async fn head_and_options_need_no_token() -> Result {
    let server = Server::start(node()?, Limits::default(), |auth| auth.token("t")).await?;
    let at = server.at;
    for (path, allow) in [
        ("/leader", "get,head,options"),
        ("/metrics", "get,head,options"),
        ("/v1/elections/e", "get,head,options"),
        ("/v1/elections/e/events", "get,head,options"),
        (STEP_DOWN, "post,options"),
        ("/v1/locks", "get,head,options"),
        ("/v1/locks/r", "post,options"),
    ] {
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
    server.stop().await
}

/// Whatever bytes are sent, the server refuses them or closes, and then serves the next request.
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
    let mut wrong: Vec<Vec<u8>> = vec![
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
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..200 {
        let mut request = b"POST /v1/elections/e/step_down?fencing_token=1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc".to_vec();
        for _ in 0..random.usize(1..6) {
            let place = random.usize(..request.len());
            match random.u8(..3) {
                0 => request[place] = random.u8(..),
                1 => request.insert(place, random.u8(..)),
                _ => drop(request.remove(place)),
            }
        }
        request.extend(b"\r\n\r\n\r\n");
        wrong.push(request);
    }
    for request in wrong {
        let answer = tokio::time::timeout(SOON, half_closed(at, &request)).await??;
        let refusals = ["HTTP/1.1 4", "HTTP/1.0 4", "HTTP/1.1 5"];
        let refused = refusals.iter().any(|start| answer.starts_with(start));
        let request = String::from_utf8_lossy(&request);
        assert!(answer.is_empty() || refused, "{request}: {answer}");
        assert!(!answer.contains(" 500 "), "{answer}");
    }
    assert_eq!(get(at, "/live").await?.status, 200);
    server.stop().await
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

#[tokio::test]
async fn hundred_callers_at_once_are_all_answered() -> Result {
    let server = Server::plain(node()?).await?;
    let at = server.at;
    let callers = (0..100).map(|_| async move {
        let mut request = String::new();
        for _ in 0..9 {
            request += "GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n";
        }
        request += "GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        raw(at, request).await
    });
    for answers in futures::future::join_all(callers).await {
        assert_eq!(answers?.matches("HTTP/1.1 200").count(), 10);
    }
    server.stop().await
}

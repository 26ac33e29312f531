//! Feeds arbitrary bytes to the router as requests, and panics if it answers 500. Not covered by semver; the programs in
//! `lab/fuzz/` and `tests/fuzzing.rs` call it.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use eldest::internal::{System, timeout};
use eldest::{Session, SessionOptions};
use http::{Method, Request, StatusCode};
use tower_service::Service;

use crate::{Auth, Node, router};

/// Examples from which other requests are made.
pub const SEEDS: &[&[u8]] = &[
    b"GET /v1/elections/jobs HTTP\nHost: localhost\n\n",
    b"GET /leader?election=jobs HTTP\nHost: [::1]:80\n\n",
    b"POST /v1/elections/jobs/step_down?fencing_token=5 HTTP\nHost: localhost\nAuthorization: Bearer t\nOrigin: http://localhost\n\n",
    b"GET /v1/partitions/jobs/own?from=1 HTTP\nHost: localhost\n\n",
    b"POST /v1/elections/jobs/heartbeat HTTP\nHost: localhost\nAuthorization: Bearer t\n\n",
    b"POST /v1/locks/a%2Fb/c HTTP\nHost: localhost\nAuthorization: Bearer t\nContent-Type: application/json\n\n{\"owner\":\"o\",\"wait_ms\":0,\"ttl_ms\":10000,\"hold\":\"connection\"}",
    b"PUT /v1/locks/a/5ac0/renew HTTP\nHost: localhost\nAuthorization: Bearer t\n\n",
    b"GET /v1/events HTTP\nHost: localhost\nLast-Event-ID: 5\n\n",
];

/// A node in no election of its own, whose etcd is absent.
struct Stage {
    runtime: tokio::runtime::Runtime,
    env: System,
    app: Router,
}

impl Stage {
    fn new() -> Option<Self> {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().ok()?;
        let (env, app) = runtime.block_on(async {
            let options = SessionOptions::new("n").connect_timeout(Duration::from_millis(1));
            let session = Session::connect_lazy(["http://127.0.0.1:1"], options).ok()?;
            let node = Node::new().works_in(&session.election("jobs").ok()?);
            let node = node.locks(&session).metrics(String::new);
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
            let app = router(node, Auth::at(address).token("t"));
            Some((System::new().ok()?, app))
        })?;
        Some(Self { runtime, env, app })
    }
}

/// Parses `METHOD URI ...`, headers, an empty line and a body, with simple line breaks.
fn parse(bytes: &[u8]) -> Option<Request<Body>> {
    let end = bytes.windows(2).position(|two| two == b"\n\n")?;
    let (head, body) = (&bytes[..end], &bytes[end + 2..]);
    let mut lines = head.split(|byte| *byte == b'\n');
    let mut words = lines.next()?.split(|byte| *byte == b' ');
    let method = Method::from_bytes(words.next()?).ok()?;
    let mut request = Request::builder().method(method).uri(words.next()?);
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':')?;
        request = request.header(&line[..colon], line[colon + 1..].trim_ascii_start());
    }
    request.body(Body::from(body.to_vec())).ok()
}

/// Passes a client's bytes to the router as hyper would. Returns true if the request was admitted and its path exists.
pub fn request(bytes: &[u8]) -> bool {
    thread_local! {
        static STAGE: Option<Stage> = Stage::new();
    }
    let Some(request) = parse(bytes) else {
        return false;
    };
    STAGE.with(|stage| {
        let Some(stage) = stage else {
            return false;
        };
        let mut app = stage.app.clone();
        let answer = app.call(request);
        // Some handlers wait for an etcd that is absent.
        let limit = Duration::from_millis(2);
        let answer = stage.runtime.block_on(timeout(&stage.env, limit, answer));
        let Some(Ok(answer)) = answer else {
            return true;
        };
        assert_ne!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
        answer.status().is_success()
    })
}

//! Tests the answers at one moment, by a clock that the test sets.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use http::{Request, StatusCode};
use serde_json::Value;
use tower_layer::Layer;
use tower_service::Service;

use super::body;
use super::sidecar::{Keeping, Kept};
use super::{Auth, Node, OnlyWhileLeader, router};
use eldest::internal::scripted::{Clock, Scripted, ScriptedTerm};
use eldest::internal::{System, timeout};
use eldest::{CancellationToken, Election, Session, SessionOptions, Term};
use eldest_core::time::Time;

fn at(ms: u64) -> Time {
    Time::ZERO.after(Duration::from_millis(ms))
}

/// A node that was elected under a lease that is trusted for 10 s, with a grace period of 2 s.
struct Stage {
    election: Election,
    clock: Arc<Clock>,
    term: ScriptedTerm,
    keeping: Option<Keeping>,
    app: Router,
}

const TOKEN: i64 = 7;

impl Stage {
    fn new() -> Self {
        let options = SessionOptions::new("node-a").grace(Duration::from_secs(2));
        let session = Session::connect_lazy(["http://127.0.0.1:1"], options).unwrap();
        let election = session.election("e").unwrap();
        let clock = Arc::new(Clock::default());
        let env = clock.env(Scripted::still());
        let term = ScriptedTerm::new(&session, env, "e", at(10_000), TOKEN);
        term.elect(&election);
        let auth = Auth::at(([127, 0, 0, 1], 8470).into());
        let kept = Kept::new();
        let keeping = kept.begin(TOKEN, &CancellationToken::new());
        let app = router(Node::new().leads_on_behalf(&election, &kept), auth);
        Self {
            election,
            clock,
            term,
            keeping: Some(keeping),
            app,
        }
    }

    async fn get(&mut self, path: &str) -> (StatusCode, Value) {
        let request = Request::get(path).header("host", "localhost:8470");
        let request = request.body(Body::empty()).unwrap();
        let answer = self.app.call(request).await.unwrap();
        let status = answer.status();
        let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap())
    }

    async fn leads_and_follows(&mut self) -> (bool, bool) {
        let (leads, _) = self.get("/leader").await;
        let (follows, _) = self.get("/follower").await;
        (leads == StatusCode::OK, follows == StatusCode::OK)
    }
}

#[tokio::test]
async fn the_deadline_is_compared_when_the_answer_is_made() {
    let mut stage = Stage::new();
    let (status, body) = stage.get("/leader").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(body["fencing_token"], TOKEN);
    assert_eq!(
        (&body["may_act_for_ms"], &body["valid_for_ms"]),
        (&2000.into(), &10_000.into())
    );
    // No notification arrived; only the clock advanced.
    stage.clock.set(10_000);
    let (status, body) = stage.get("/leader").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(
        (&body["role"], &body["fencing_token"]),
        (&"follower".into(), &Value::Null)
    );
    assert_eq!(stage.leads_and_follows().await, (false, true));
}

#[tokio::test]
async fn caller_of_a_leading_node_has_a_grace_period_left() {
    let mut stage = Stage::new();
    stage.clock.set(8_000);
    assert_eq!(stage.leads_and_follows().await, (true, false));
    stage.clock.set(8_001);
    assert_eq!(stage.leads_and_follows().await, (false, false), "it ends");
    assert!(stage.term.renewed(at(20_000)));
    assert_eq!(stage.leads_and_follows().await, (true, false), "renewed");
    stage.term.lease_lost();
    let (_, body) = stage.get("/leader").await;
    assert_eq!(
        (&body["role"], &body["may_act_for_ms"]),
        (&"ending".into(), &Value::Null)
    );
    assert_eq!(stage.leads_and_follows().await, (false, false));
}

#[tokio::test]
async fn a_term_that_nobody_keeps_for_callers_promises_them_nothing() {
    let mut stage = Stage::new();
    stage.keeping = None;
    let (status, body) = stage.get("/leader").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(
        (&body["role"], &body["may_act_for_ms"]),
        (&"ending".into(), &Value::Null)
    );
    assert_eq!(stage.leads_and_follows().await, (false, false));
}

#[tokio::test]
async fn layer_admits_requests_with_the_term_until_it_ends() {
    for is_lost in [false, true] {
        let stage = Stage::new();
        let inner = axum::routing::get(async |axum::Extension(term): axum::Extension<Term>| {
            term.fencing_token().to_string()
        });
        let service: Router = Router::new().route("/", inner);
        let mut guarded = OnlyWhileLeader::new(&stage.election).layer(service);
        let mut ask = async || {
            let request = Request::get("/").body(Body::empty()).unwrap();
            let answer = guarded.call(request).await.unwrap();
            let status = answer.status();
            let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
            (status, String::from_utf8_lossy(&body).into_owned())
        };
        assert_eq!(ask().await, (StatusCode::OK, TOKEN.to_string()));
        if is_lost {
            stage.term.lease_lost();
            assert!(stage.election.term().is_some_and(|term| term.is_valid()));
        } else {
            stage.clock.set(10_000);
        }
        let (status, body) = ask().await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(body.contains("\"code\":\"not_leader\""), "{body}");
    }
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let no_time = Scripted {
        sleep: Box::new(|_| Box::pin(std::future::ready(()))),
        ..Scripted::still()
    };
    let never = Body::from_stream(futures::stream::pending::<Result<&[u8], std::io::Error>>());
    let request = Request::post("/").header("content-type", "application/json; charset=utf-8");
    let read = body::read::<Value>(request.body(never).unwrap(), &no_time);
    let system = System::new().unwrap();
    let read = timeout(&system, Duration::from_secs(20), read).await;
    let problem = read.expect("an answer").expect_err("there is no body");
    assert_eq!(
        (problem.status, problem.code),
        (StatusCode::REQUEST_TIMEOUT, "too_slow")
    );
}

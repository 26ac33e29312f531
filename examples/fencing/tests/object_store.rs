//! Tests fenced writes to an object store. A small HTTP server in this process replaces S3: it answers conditional
//! requests as S3 does, and has no other features of S3.
#![allow(clippy::disallowed_methods)] // tests run in real time

mod common;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::{ETAG, IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use eldest::BoxError;
use eldest_fencing_example::{Object, Refused};
use tokio::net::TcpListener;

use common::Nodes;

type Result<T = ()> = std::result::Result<T, BoxError>;

/// All versions of the one object, the newest last.
type Versions = Arc<Mutex<Vec<Bytes>>>;

/// Returns a hash of the content alone, as S3 makes it.
fn etag(content: &Bytes) -> String {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}

async fn read(State(versions): State<Versions>) -> Response {
    let versions = versions.lock().unwrap_or_else(PoisonError::into_inner);
    match versions.last() {
        Some(content) => ([(ETAG, etag(content))], content.clone()).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

async fn write(State(versions): State<Versions>, headers: HeaderMap, content: Bytes) -> Response {
    let mut versions = versions.lock().unwrap_or_else(PoisonError::into_inner);
    let current = versions.last().map(etag);
    let matches = |wanted| current.as_deref() == Some(wanted);
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    if header(IF_MATCH).is_some_and(|wanted| !matches(wanted))
        || header(IF_NONE_MATCH).is_some_and(|_| current.is_some())
    {
        return StatusCode::PRECONDITION_FAILED.into_response();
    }
    let etag = etag(&content);
    versions.push(content);
    [(ETAG, etag)].into_response()
}

async fn store() -> Result<(Object, Versions)> {
    let versions = Versions::default();
    let object = get(read).put(write).with_state(versions.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let uri = format!("http://{}/billing/state", listener.local_addr()?);
    let server = axum::serve(listener, Router::new().route("/billing/state", object));
    tokio::spawn(server.into_future());
    Ok((Object::at(uri.parse()?), versions))
}

fn is_refused<T>(answer: anyhow::Result<T>, token: i64) -> bool {
    let error = answer.err();
    error.and_then(|error| error.downcast().ok()) == Some(Refused { token })
}

#[tokio::test]
async fn an_old_leader_cannot_replace_an_object_claimed_by_its_successor() -> Result {
    let (object, _) = store().await?;
    let nodes = Nodes::start().await?;

    let leader = nodes.leader().await?;
    let old = leader.fencing_token();
    let mut first = object.claim(old).await?;
    assert_eq!(first.data(), "");
    first.write("one payment").await?;

    let successor = nodes.successor(&leader).await?;
    let new = successor.fencing_token();
    // The successor writes no new data, so only the token in the content changes.
    let mut second = object.claim(new).await?;
    assert_eq!(second.data(), "one payment");
    assert!(is_refused(first.write("a late payment").await, old));
    assert!(is_refused(object.claim(old).await, old));

    second.write("two payments").await?;
    assert_eq!(object.claim(new).await?.data(), "two payments");
    Ok(())
}

#[tokio::test]
async fn the_tokens_of_admitted_writes_never_fall() -> Result {
    const TOKENS: i64 = 8;
    let (object, versions) = store().await?;
    let mut leaders = Vec::new();
    for token in 1..=TOKENS {
        let object = object.clone();
        leaders.push(tokio::spawn(async move {
            match object.claim(token).await {
                Ok(mut claimed) => {
                    let answer = claimed.write(&format!("written by {token}")).await;
                    assert!(answer.is_ok() || is_refused(answer, token));
                }
                refused => assert!(is_refused(refused, token)),
            }
        }));
    }
    for leader in leaders {
        leader.await?;
    }
    let versions = versions.lock().unwrap_or_else(PoisonError::into_inner);
    let mut tokens = Vec::new();
    for version in &*versions {
        let content: serde_json::Value = serde_json::from_slice(version)?;
        tokens.push(content["token"].as_i64().ok_or("a token")?);
    }
    assert!(tokens.is_sorted(), "{tokens:?}");
    let wanted = format!("{{\"token\":{TOKENS},\"data\":\"written by {TOKENS}\"}}");
    assert_eq!(
        versions.last().map(|last| &last[..]),
        Some(wanted.as_bytes())
    );
    Ok(())
}

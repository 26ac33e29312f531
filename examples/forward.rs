//! A service that accepts orders on any node: the leader takes each order, and the other nodes pass theirs on to it.
//!
//! Start it three times with `LISTEN=127.0.0.1:0`, and send orders to any of them: `curl -X POST ADDRESS/orders`. Stop
//! the leader with Ctrl-C: an order that arrives meanwhile waits for the next leader. `LISTEN` is the node's address,
//! by default `127.0.0.1:8080`; the node announces it to the others. Ends by Ctrl-C or after `EXAMPLE_SECONDS`. etcd is
//! at `ETCD_ENDPOINTS`, by default `http://127.0.0.1:2379`.
#![allow(clippy::disallowed_methods)] // an application may sleep as it likes

use std::time::Duration;

use axum::{Extension, Router, extract::State, routing::post};
use eldest::{Announcement, CancellationToken, Leadership, Session, SessionOptions, Term};
use eldest_http::{ForwardToLeader, Limits};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let listen = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:8080".to_owned());
    let listener = tokio::net::TcpListener::bind(listen).await?;
    let me = listener.local_addr()?.to_string();
    let announcement = Announcement::default().with_address(&me);
    let options = SessionOptions::new(&me).announcement(announcement);
    let session = Session::connect(endpoints(), options).await?;
    let election = session.election("orders")?;

    let app = Router::new()
        .route("/orders", post(order).with_state(me.clone()))
        .layer(ForwardToLeader::new(&election).await?);
    let closing = CancellationToken::new();
    let server = eldest_http::serve(listener, app, Limits::default(), closing.clone());
    let server = tokio::spawn(server);
    println!("listening on {me}");

    let shutdown = CancellationToken::new();
    tokio::spawn(shutdown_when_asked(shutdown.clone()));
    let lead = async |leadership: Leadership| {
        println!("leading, fencing token {}", leadership.fencing_token());
        leadership.lost().cancelled().await;
        println!("no longer leading");
        Ok::<_, eldest::BoxError>(())
    };
    election.run(shutdown, lead).await?;
    // The server ends after the term, so that an order which arrives in between is passed on.
    closing.cancel();
    server.await??;
    session.close().await?;
    println!("gone");
    Ok(())
}

/// Runs on the leader alone. The term fences the writes of the order.
async fn order(State(me): State<String>, Extension(term): Extension<Term>) -> String {
    format!("taken by {me}, fencing token {}\n", term.fencing_token())
}

async fn shutdown_when_asked(shutdown: CancellationToken) {
    let seconds = std::env::var("EXAMPLE_SECONDS").ok();
    let seconds = seconds.and_then(|seconds| seconds.parse().ok());
    let limit = seconds.map_or(Duration::MAX, Duration::from_secs);
    tokio::select! {
        () = eldest::shutdown_signal() => {}
        () = tokio::time::sleep(limit) => {}
    }
    shutdown.cancel();
}

fn endpoints() -> Vec<String> {
    let endpoints = std::env::var("ETCD_ENDPOINTS").unwrap_or_default();
    match endpoints.trim() {
        "" => vec!["http://127.0.0.1:2379".to_owned()],
        given => given.split(',').map(str::to_owned).collect(),
    }
}

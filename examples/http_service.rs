//! A web service of which one instance is active. The active instance resigns before it exits, so that another takes
//! over at once.
//!
//! `GET /active`: 200 if this instance leads, else 503, for a load balancer. `GET /leader`: the identity of the leader.
//! `LISTEN` is the instance's address, by default `127.0.0.1:8080`. Ends by Ctrl-C, SIGTERM or after `EXAMPLE_SECONDS`.
//! etcd is at `ETCD_ENDPOINTS`, by default `http://127.0.0.1:2379`.
#![allow(clippy::disallowed_methods)] // an application may sleep as it likes

use std::time::Duration;

use axum::{Router, extract::State, http::StatusCode, routing::get};
use eldest::{CancellationToken, Election, Session, SessionOptions, Term};
use tokio::sync::watch;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let listen = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:8080".to_owned());
    let listener = tokio::net::TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    let session = Session::connect(endpoints(), SessionOptions::new(address.to_string())).await?;
    let election = session.election("service")?;
    let shutdown = CancellationToken::new();
    tokio::spawn(shutdown_when_asked(shutdown.clone()));

    let (term, term_seen) = watch::channel(None);
    let app = Router::new()
        .route("/active", get(active).with_state(term_seen))
        .route("/leader", get(leader).with_state(election.clone()));
    println!("listening on http://{address}");
    let serve = axum::serve(listener, app);
    let serve = serve.with_graceful_shutdown(shutdown.clone().cancelled_owned());
    let lead = election.run(shutdown, |leadership: eldest::Leadership| {
        println!("active");
        term.send_replace(Some(leadership.term()));
        async move {
            // Finish here what only the leader may do; the key is released when this function returns.
            leadership.lost().cancelled().await;
            println!("passive: {:?}", leadership.lost_reason());
            Ok::<_, eldest::BoxError>(())
        }
    });
    let (served, resigned) = tokio::join!(serve.into_future(), lead);
    served?;
    resigned?;
    session.close().await?;
    println!("resigned and gone");
    Ok(())
}

/// Compares the deadline at every request, so that a stopped process that wakes up does not claim to lead.
async fn active(State(term): State<watch::Receiver<Option<Term>>>) -> (StatusCode, &'static str) {
    match &*term.borrow() {
        Some(term) if term.is_valid() => (StatusCode::OK, "active\n"),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "passive\n"),
    }
}

/// Reads the leader from etcd.
async fn leader(State(election): State<Election>) -> (StatusCode, String) {
    match election.leader().await {
        Ok(Some(leader)) => (StatusCode::OK, format!("{}\n", leader.identity())),
        Ok(None) => (StatusCode::NOT_FOUND, "nobody\n".to_owned()),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
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

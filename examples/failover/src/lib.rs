//! A small service of which only the leading instance numbers invoices, one after the other. The example shows how to
//! test the failover of such a service; see `tests/`.
#![allow(clippy::disallowed_methods)] // an application may sleep as it likes

mod invoices;
mod witness;

use anyhow::Result;
use axum::{Router, extract::State, http::StatusCode, routing::get};
use eldest::{CancellationToken, Leadership, Session, SessionOptions, Term};
use tokio::net::TcpListener;
use tokio::sync::watch;

pub use invoices::INVOICES;
pub use witness::Witness;

/// The election of this service.
pub const ELECTION: &str = "billing";

/// Serves until `shutdown` is cancelled. `GET /leader` returns 200 on the leader, and 503 on other instances.
///
/// # Errors
///
/// etcd cannot be reached at the start, or refuses a request.
pub async fn serve(
    listener: TcpListener,
    endpoints: &[String],
    options: SessionOptions,
    witness: Witness,
    shutdown: CancellationToken,
) -> Result<()> {
    let session = Session::connect(endpoints, options).await?;
    let (term, seen) = watch::channel(None);
    let app = Router::new().route("/leader", get(leads).with_state(seen));
    let server = axum::serve(listener, app);
    let server = server.with_graceful_shutdown(shutdown.clone().cancelled_owned());
    let work = async |leadership: Leadership| {
        witness.elected(leadership.term());
        term.send_replace(Some(leadership.term()));
        invoices::number_them(&leadership, &witness).await
    };
    let election = session.election(ELECTION)?;
    let leading = election.run(shutdown, work);
    let (server, leading) = tokio::join!(server.into_future(), leading);
    server?;
    leading?;
    session.close().await?;
    Ok(())
}

/// Compares the deadline at every request, so that a stopped process that wakes up does not claim to lead.
async fn leads(State(term): State<watch::Receiver<Option<Term>>>) -> StatusCode {
    match &*term.borrow() {
        Some(term) if term.is_valid() => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

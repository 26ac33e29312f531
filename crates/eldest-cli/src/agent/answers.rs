//! Answers over HTTP for the agent: its metrics, and whether it reaches etcd.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use axum::Router;
use axum::routing::get;
use eldest::CancellationToken;
use eldest::internal::agent::Agent;
use eldest_http::{Auth, Limits, serve};
use http::{StatusCode, header};
use tokio::net::TcpListener;

use crate::answering::{Names, Server};
use crate::metrics::{self, CONTENT_TYPE, Page};
use crate::output::Format;

/// A bound port that accepts no requests yet.
pub(super) struct Http {
    listener: TcpListener,
    address: SocketAddr,
    auth: Auth,
    page: Page,
}

/// Binds the port, and starts to record metrics.
pub(super) async fn listen(at: SocketAddr, names: &Names) -> Result<Http> {
    let bound = TcpListener::bind(at).await;
    let listener = bound.with_context(|| format!("--listen {at}"))?;
    let address = listener.local_addr()?;
    Ok(Http {
        address,
        auth: names.added_to(Auth::at(address))?,
        listener,
        page: metrics::measure()?,
    })
}

impl Http {
    /// The address of the server: a link for people, the bare address for programs.
    pub(super) fn shown(&self, format: Format) -> String {
        match format {
            Format::Text => format!("http://{}/", self.address),
            Format::Json => self.address.to_string(),
        }
    }

    /// Starts to answer requests about that agent.
    pub(super) fn serve(self, agent: Arc<Agent>) -> Server {
        let shutdown = CancellationToken::new();
        let page = self.page.clone();
        let metrics = async move || ([(header::CONTENT_TYPE, CONTENT_TYPE)], page.render());
        let healthz = async move || match agent.problem() {
            None => (StatusCode::OK, "ok\n".to_owned()),
            Some(problem) => {
                let text = format!("the agent does not reach etcd: {problem}\n");
                (StatusCode::SERVICE_UNAVAILABLE, text)
            }
        };
        let app = Router::new()
            .route("/metrics", get(metrics))
            .route("/healthz", get(healthz));
        let app = self.auth.around(app);
        let served = serve(self.listener, app, Limits::default(), shutdown.clone());
        Server::start(shutdown, None, served)
    }
}

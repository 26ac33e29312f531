//! Answers the HTTP requests of probes and load balancers: `/live`, `/ready` and `/leader`.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use eldest::{CancellationToken, SessionState};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::seen::Seen;
use crate::work::Leading;

type Answer = (StatusCode, String);

/// The sources of the answers.
#[derive(Clone)]
pub(crate) struct Web {
    pub(crate) leads: watch::Receiver<Option<Leading>>,
    pub(crate) seen: watch::Receiver<Seen>,
    pub(crate) session: watch::Receiver<SessionState>,
    pub(crate) shutdown: CancellationToken,
}

impl Web {
    /// Answers until `gone` is cancelled.
    pub(crate) async fn serve(
        self,
        listener: TcpListener,
        gone: CancellationToken,
    ) -> std::io::Result<()> {
        let app = Router::new()
            .route("/live", get(async || (StatusCode::OK, "alive\n")))
            .route("/ready", get(async |State(web): State<Web>| web.ready()))
            .route("/leader", get(async |State(web): State<Web>| web.leader()))
            .with_state(self);
        axum::serve(listener, app)
            .with_graceful_shutdown(gone.cancelled_owned())
            .await
    }

    /// Answers 200 if the node is in the queue, or leads, with a lease that it trusts.
    fn ready(&self) -> Answer {
        if self.shutdown.is_cancelled() {
            return answer(false, &"I was asked to stop");
        }
        let seen = self.seen.borrow();
        let lives = match &*self.session.borrow() {
            SessionState::Live(lease) => !lease.time_left().is_zero(),
            _ => false,
        };
        answer(lives && seen.is_queued(), &*seen)
    }

    /// Answers 200 if the node leads. Each request checks this, so a node that was stopped for a while does not claim to lead.
    fn leader(&self) -> Answer {
        let leads = self.leads.borrow();
        let valid = leads
            .as_ref()
            .is_some_and(|leading| leading.term.is_valid());
        answer(valid, &*self.seen.borrow())
    }
}

fn answer(yes: bool, why: &impl ToString) -> Answer {
    let status = if yes {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, why.to_string() + "\n")
}

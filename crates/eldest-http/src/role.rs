//! Answers load balancers and orchestrators with a status, from local state and the clock at that moment.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;

use super::App;
use super::answer::json as answer;
use super::contract::{Live, OwnState, Ready, Role, RoleAnswer};
use super::node::Shown;
use super::peer::Caller;
use super::problem::Problem;
use super::query::{Asked, parameter};

/// Answers `GET /leader` and `GET /primary`: 200 while this node leads and serves, and the caller may act for a grace
/// period.
pub(super) async fn leader(
    State(app): State<Arc<App>>,
    caller: Caller,
    asked: Asked,
) -> Result<Response, Problem> {
    let name = parameter(&asked, "election")?;
    let shown = app.node.find(name.as_deref())?;
    let holder = caller.asks_for(&asked)?;
    let own = shown.own(holder.as_deref());
    Ok(role_answer(shown, own, |own| {
        own.role == Role::Leader && own.serving
    }))
}

/// Answers `GET /follower`: 200 while this node does not lead, and none of its terms is still ending.
pub(super) async fn follower(
    State(app): State<Arc<App>>,
    caller: Caller,
    asked: Asked,
) -> Result<Response, Problem> {
    let name = parameter(&asked, "election")?;
    let shown = app.node.find(name.as_deref())?;
    let own = shown.own(caller.process());
    Ok(role_answer(shown, own, |own| {
        matches!(own.role, Role::Follower | Role::Observer)
    }))
}

fn role_answer(shown: &Shown, own: OwnState, wanted: impl FnOnce(&OwnState) -> bool) -> Response {
    let body = RoleAnswer {
        election: shown.election.name().to_owned(),
        own,
    };
    answer(status(wanted(&body.own)), &body)
}

/// Answers `GET /live`: 503 when a session is closed, so that only a new process helps.
pub(super) async fn live(State(app): State<Arc<App>>) -> Response {
    let live = !app.node.shown.iter().any(Shown::is_closed);
    answer(status(live), &Live { live })
}

/// Answers `GET /ready`: 200 while the node is ready in every election, or in the requested one.
pub(super) async fn ready(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Problem> {
    let name = parameter(&asked, "election")?;
    let asked = match &name {
        Some(_) => vec![app.node.find(name.as_deref())?],
        None => app.node.shown.iter().collect(),
    };
    let (mut elections, mut reasons) = (BTreeMap::new(), BTreeMap::new());
    for shown in asked {
        let name = shown.election.name();
        let unready = shown.unready(app.node.age(shown));
        elections.insert(name.to_owned(), unready.is_none());
        if let Some(reason) = unready {
            reasons.insert(name.to_owned(), reason);
        }
    }
    let ready = reasons.is_empty();
    let body = Ready {
        ready,
        elections,
        reasons,
    };
    Ok(answer(status(ready), &body))
}

fn status(yes: bool) -> StatusCode {
    if yes {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

//! Answers requests for the state of elections, and ends the node's term on request.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{Method, StatusCode};

use super::App;
use super::answer::json as answer;
use super::contract::{Elections, Heartbeat, SteppedDown, millis};
use super::events;
use super::health::Fitness;
use super::names::{self, Part};
use super::node::Shown;
use super::peer::Caller;
use super::problem::{Problem, not_allowed, shortened};
use super::query::{Asked, parameter};
use eldest::internal;

/// Answers `GET /v1/elections`: all elections that this node shows.
pub(super) async fn list(State(app): State<Arc<App>>, caller: Caller) -> Response {
    let shown = app.node.shown.iter();
    let elections = shown.map(|shown| app.node.state(shown, caller.process()));
    let elections = elections.collect();
    answer(StatusCode::OK, &Elections { elections })
}

/// Answers everything below `/v1/elections/`. A router's own patterns cannot tell a name with slashes from an action.
pub(super) async fn one(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
) -> Result<Response, Problem> {
    let (name, part) = names::election(request.uri().path())?;
    match (part, request.method()) {
        (Part::State, &Method::GET | &Method::HEAD) => {
            let shown = app.node.find(Some(&name))?;
            let state = app.node.state(shown, caller.process());
            Ok(answer(StatusCode::OK, &state))
        }
        (Part::Events, &Method::GET | &Method::HEAD) => {
            let shown = app.node.find(Some(&name))?;
            events::follow(&app, caller, shown)
        }
        (Part::StepDown, &Method::POST) => {
            let asked = Asked::of(request.uri());
            step_down(app.node.find(Some(&name))?, asked).await
        }
        (Part::Heartbeat, &Method::POST) => heartbeat(app.node.find(Some(&name))?),
        _ => Ok(not_allowed(&request, part.allow()).into_response()),
    }
}

/// Answers `POST /v1/elections/{name}/step_down`: ends this node's term, and joins at the end of the queue. The token
/// of its work is cancelled, the work is awaited, and dropped after a grace period; only then is its key deleted.
async fn step_down(shown: &Shown, asked: Asked) -> Result<Response, Problem> {
    let wanted = parameter(&asked, "fencing_token")?;
    let conflict = |code, detail: String| Problem::new(StatusCode::CONFLICT, code, detail);
    let held = internal::local_state(&shown.election).held;
    let Some(held) = held.filter(|held| shown.is_candidate() && held.term.is_valid()) else {
        let detail = format!("this node does not lead {:?}", shown.election.name());
        return Err(conflict("not_leading", detail));
    };
    let token = held.term.fencing_token();
    if let Some(wanted) = wanted.filter(|wanted| *wanted != token.to_string()) {
        let wanted = shortened(&wanted);
        let detail = format!("this node leads under the fencing token {token}, not {wanted:?}");
        return Err(conflict("another_term", detail));
    }
    // The release is not confirmed yet; it continues in the background.
    let (status, released) = match internal::step_down(&shown.election, &held).await {
        Ok(()) => (StatusCode::OK, true),
        Err(_) => (StatusCode::ACCEPTED, false),
    };
    let body = SteppedDown {
        fencing_token: token,
        released,
    };
    Ok(answer(status, &body))
}

/// Answers `POST /v1/elections/{name}/heartbeat`: the program works, so its term continues and the node may be a
/// candidate.
fn heartbeat(shown: &Shown) -> Result<Response, Problem> {
    let name = shown.election.name();
    let fitness = shown.fitness().ok_or_else(|| {
        let detail = format!("this node does not lead {name:?} on behalf of a program");
        Problem::new(StatusCode::CONFLICT, "not_on_behalf", detail)
    })?;
    beat(fitness, name)
}

/// Records a heartbeat of the program in the election, or set of partitions, of that name.
pub(super) fn beat(fitness: &Fitness, name: &str) -> Result<Response, Problem> {
    let timeout = fitness.stall_timeout().ok_or_else(|| {
        let detail =
            format!("this node has no stall timeout in {name:?}, so it needs no heartbeats");
        Problem::new(StatusCode::CONFLICT, "no_stall_timeout", detail)
    })?;
    fitness.beat();
    let body = Heartbeat {
        stall_timeout_ms: millis(timeout),
    };
    Ok(answer(StatusCode::OK, &body))
}

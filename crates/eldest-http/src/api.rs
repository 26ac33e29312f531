//! Answers requests for the state of elections, and ends the node's term on request.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{Method, StatusCode};

use super::App;
use super::answer::json as answer;
use super::contract::{Elections, Heartbeat, Serving, SteppedDown, Warm, millis};
use super::events;
use super::health::Fitness;
use super::names::{self, Part};
use super::node::Shown;
use super::peer::Caller;
use super::problem::{Problem, not_allowed, shortened};
use super::query::{Asked, bad_query, parameter};
use eldest::ErrorKind;
use eldest::internal::{self, Held};

/// The parameter that names the only term which a request concerns.
const TOKEN: &str = "fencing_token";

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
    let asked = Asked::of(request.uri());
    match (part, request.method()) {
        (Part::StepDown | Part::Serving, &Method::POST) => asked.has_only(&[TOKEN])?,
        (Part::Heartbeat | Part::Warm, &Method::POST | &Method::DELETE) => asked.has_only(&[])?,
        _ => {}
    }
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
        (Part::StepDown, &Method::POST) => step_down(app.node.find(Some(&name))?, asked).await,
        (Part::Heartbeat, &Method::POST) => heartbeat(app.node.find(Some(&name))?),
        (Part::Serving, &Method::POST) => serving(app.node.find(Some(&name))?, asked).await,
        (Part::Warm, &Method::POST) => warm(app.node.find(Some(&name))?, true).await,
        (Part::Warm, &Method::DELETE) => warm(app.node.find(Some(&name))?, false).await,
        _ => Ok(not_allowed(&request, part.allow()).into_response()),
    }
}

/// Answers `POST /v1/elections/{name}/step_down`: ends this node's term, once its successor is warm if the election has a
/// limit for that, and joins at the end of the queue. A caller that closes the connection before that withdraws. The token
/// of its work is cancelled, the work is awaited, and dropped after a grace period; only then is its key deleted.
async fn step_down(shown: &Shown, asked: Asked) -> Result<Response, Problem> {
    let held = held(shown, &asked)?;
    let token = held.term.fencing_token();
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

/// Answers `POST /v1/elections/{name}/serving`: the program on whose behalf this node leads is ready.
async fn serving(shown: &Shown, asked: Asked) -> Result<Response, Problem> {
    on_behalf(shown)?;
    let held = held(shown, &asked)?;
    let (status, announced) = match internal::serve(&shown.election, &held).await {
        Ok(()) => (StatusCode::OK, true),
        Err(error) if error.kind() == ErrorKind::LeadershipLost => return Err(not_leading(shown)),
        // The node continues to announce it.
        Err(_) if held.term.is_serving() => (StatusCode::ACCEPTED, false),
        Err(_) => return Err(not_leading(shown)),
    };
    let body = Serving {
        fencing_token: held.term.fencing_token(),
        announced,
    };
    Ok(answer(status, &body))
}

/// Answers `/v1/elections/{name}/warm`: the program is prepared for the node's term, or no longer.
async fn warm(shown: &Shown, is_warm: bool) -> Result<Response, Problem> {
    on_behalf(shown)?;
    let said = internal::set_warm(&shown.election, is_warm).await;
    said.map_err(|error| match error.kind() {
        ErrorKind::Ended => {
            let name = shown.election.name();
            let detail =
                format!("this node does not wait in {name:?}: it leads, or is no candidate");
            Problem::new(StatusCode::CONFLICT, "not_waiting", detail)
        }
        ErrorKind::InvalidInput => {
            Problem::new(StatusCode::CONFLICT, "no_warm_within", error.to_string())
        }
        _ => Problem::of(&error, "no_warm_within"),
    })?;
    Ok(answer(StatusCode::OK, &Warm { warm: is_warm }))
}

/// Returns the term in which this node leads, if it is the one that the caller names.
fn held(shown: &Shown, asked: &Asked) -> Result<Held, Problem> {
    let wanted = parameter(asked, TOKEN)?.as_deref().map(token).transpose()?;
    let held = internal::local_state(&shown.election).held;
    let held = held.filter(|held| shown.is_candidate() && held.term.is_valid());
    let held = held.ok_or_else(|| not_leading(shown))?;
    let present = held.term.fencing_token();
    match wanted.filter(|wanted| *wanted != present) {
        None => Ok(held),
        Some(wanted) => {
            let detail = format!("this node leads under the fencing token {present}, not {wanted}");
            Err(Problem::new(StatusCode::CONFLICT, "another_term", detail))
        }
    }
}

/// Parses a fencing token.
fn token(text: &str) -> Result<i64, Problem> {
    let token = internal::number(text).filter(|token| *token > 0);
    token.ok_or_else(|| {
        let text = shortened(text);
        bad_query(format!(
            "`{TOKEN}` is {text:?}, which is no positive whole number"
        ))
    })
}

fn not_leading(shown: &Shown) -> Problem {
    let detail = format!("this node does not lead {:?}", shown.election.name());
    Problem::new(StatusCode::CONFLICT, "not_leading", detail)
}

/// Returns the health of the program on whose behalf this node is a candidate.
fn on_behalf(shown: &Shown) -> Result<&Fitness, Problem> {
    shown.fitness().ok_or_else(|| {
        let name = shown.election.name();
        let detail = format!("this node does not lead {name:?} on behalf of a program");
        Problem::new(StatusCode::CONFLICT, "not_on_behalf", detail)
    })
}

/// Answers `POST /v1/elections/{name}/heartbeat`: the program works, so its term continues and the node may be a
/// candidate.
fn heartbeat(shown: &Shown) -> Result<Response, Problem> {
    beat(on_behalf(shown)?, shown.election.name())
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

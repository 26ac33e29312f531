//! Answers requests for the state of elections, and ends the node's term on request.

use std::sync::Arc;

use axum::extract::{Path, Query, State, rejection::PathRejection, rejection::QueryRejection};
use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};

use super::App;
use super::answer::json as answer;
use super::node::Shown;
use super::problem::{Problem, shortened};
use super::role::parameter;
use eldest::internal;

type Name = Result<Path<String>, PathRejection>;

pub(super) fn find(app: &App, name: Name) -> Result<&Shown, Problem> {
    let Path(name) = name.map_err(|rejection| {
        Problem::new(StatusCode::BAD_REQUEST, "bad_path", rejection.body_text())
    })?;
    app.node.find(Some(&name))
}

/// `GET /v1/elections`: all that this node shows.
pub(super) async fn list(State(app): State<Arc<App>>) -> Response {
    let shown = app.node.shown.iter();
    let all: Vec<Value> = shown.map(|shown| app.node.json(shown)).collect();
    answer(StatusCode::OK, &json!({ "elections": all }))
}

/// `GET /v1/elections/{name}`.
pub(super) async fn show(State(app): State<Arc<App>>, name: Name) -> Result<Response, Problem> {
    Ok(answer(StatusCode::OK, &app.node.json(find(&app, name)?)))
}

/// `POST /v1/elections/{name}/resign`: this node's term ends, and it stands again at the back of the queue. Its work is
/// told, awaited, and dropped after a grace period; only then its key goes.
pub(super) async fn resign(
    State(app): State<Arc<App>>,
    name: Name,
    asked: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Response, Problem> {
    let shown = find(&app, name)?;
    let wanted = parameter(asked, "fencing_token")?;
    let conflict = |code, detail: String| Problem::new(StatusCode::CONFLICT, code, detail);
    let held = internal::local_state(&shown.election).held;
    let Some(held) = held.filter(|held| shown.stands() && held.term.is_valid()) else {
        let detail = format!("this node does not lead {:?}", shown.election.name());
        return Err(conflict("not_leading", detail));
    };
    let token = held.term.fencing_token();
    if let Some(wanted) = wanted.filter(|wanted| *wanted != token.to_string()) {
        let wanted = shortened(&wanted);
        let detail = format!("this node leads under the fencing token {token}, not {wanted:?}");
        return Err(conflict("another_term", detail));
    }
    // Not confirmed yet, it goes on in the background.
    let (status, released) = match internal::step_down(&shown.election, &held).await {
        Ok(()) => (StatusCode::OK, true),
        Err(_) => (StatusCode::ACCEPTED, false),
    };
    let body = json!({ "fencing_token": token, "released": released });
    Ok(answer(status, &body))
}

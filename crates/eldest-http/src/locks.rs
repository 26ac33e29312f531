//! Serves locks to programs in other languages: a request acquires a lock, and renewals or an open connection keep it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Request, State, rejection::PathRejection};
use axum::response::{IntoResponse, Response};
use futures::stream;
use http::{StatusCode, header};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::App;
use super::answer::{json as answer, millis};
use super::body;
use super::lock_table::{Held, LockTable, Sign};
use super::problem::{Problem, shortened};
use eldest::Session;
use eldest::internal::{Inside, SharedEnv};
use eldest::{Error, ErrorKind};

/// So many callers may wait for a lock, or hold one by their connection.
const WAITING: usize = 256;
const OWNER: usize = 256;
const USUAL_TTL: Duration = Duration::from_secs(10);
const SHORTEST_TTL: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(300);

/// The session whose locks others may take through this node.
#[derive(Debug)]
pub(super) struct Locks {
    session: Session,
    lock_table: Arc<LockTable>,
    waiting: Arc<Semaphore>,
}

impl Locks {
    pub(super) fn new(session: Session) -> Self {
        Self {
            session,
            lock_table: Arc::default(),
            waiting: Arc::new(Semaphore::new(WAITING)),
        }
    }

    fn env(&self) -> &SharedEnv {
        Inside::from(&self.session).env()
    }
}

fn of(app: &App) -> Result<&Locks, Problem> {
    app.node.locks.as_ref().ok_or_else(|| {
        let detail = "this node takes no locks for others";
        Problem::new(StatusCode::NOT_FOUND, "no_locks", detail)
    })
}

fn bad_path(rejection: &PathRejection) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "bad_path", rejection.body_text())
}

fn refused(error: &Error) -> Problem {
    let detail = error.to_string();
    match error.kind() {
        ErrorKind::InvalidInput => Problem::new(StatusCode::BAD_REQUEST, "bad_name", detail),
        ErrorKind::Closed => Problem::try_again("closed", detail),
        ErrorKind::Unavailable | ErrorKind::Overloaded => Problem::try_again("etcd", detail),
        _ => Problem::new(StatusCode::BAD_GATEWAY, "etcd", detail),
    }
}

/// `GET /v1/locks`: what this node keeps for others.
pub(super) async fn list(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    let locks = of(&app)?.lock_table.json();
    Ok(answer(StatusCode::OK, &json!({ "locks": locks })))
}

/// `POST /v1/locks/{resource}`. A caller that goes away while it waits gives up its place.
pub(super) async fn acquire(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, Problem> {
    let locks = of(&app)?;
    let Path(name) = name.map_err(|rejection| bad_path(&rejection))?;
    let mut members = body::read(request, &**locks.env()).await?;
    let owner = members.text("owner", OWNER)?;
    let wait = members.duration("wait_ms", Duration::ZERO, Duration::ZERO..=LONGEST)?;
    let ttl = members.duration("ttl_ms", USUAL_TTL, SHORTEST_TTL..=LONGEST)?;
    let manner = members.word("hold", &["renewals", "connection"])?;
    members.end()?;

    let lock = locks.session.lock(&name).map_err(|error| refused(&error))?;
    let many = || Problem::try_again("too_many_locks", "others wait for or hold too many locks");
    let place = Arc::clone(&locks.waiting).try_acquire_owned();
    let place = place.map_err(|_| many())?;
    if locks.lock_table.is_full() {
        return Err(many());
    }
    let guard = if wait.is_zero() {
        lock.try_acquire().await
    } else {
        lock.acquire_timeout(wait).await
    };
    let Some(guard) = guard.map_err(|error| refused(&error))? else {
        let detail = format!(
            "others hold {:?} or wait for it, and it was not free within {} ms",
            shortened(&name),
            millis(wait)
        );
        return Err(Problem::new(StatusCode::CONFLICT, "held", detail));
    };
    let held = locks
        .lock_table
        .keep(locks.env(), guard, (&name, owner), ttl);
    if manner == "connection" {
        return Ok(by_connection(held, place));
    }
    Ok(answer(StatusCode::CREATED, &told(held.sign())?))
}

/// `PUT /v1/locks/{resource}/{lock}/renew`: the caller lives.
pub(super) async fn renew(
    State(app): State<Arc<App>>,
    names: Result<Path<(String, String)>, PathRejection>,
) -> Result<Response, Problem> {
    let told = told(find(&app, names)?.sign())?;
    Ok(answer(StatusCode::OK, &told))
}

/// `DELETE /v1/locks/{resource}/{lock}`: the caller has ended its work.
pub(super) async fn release(
    State(app): State<Arc<App>>,
    names: Result<Path<(String, String)>, PathRejection>,
) -> Result<Response, Problem> {
    let released = find(&app, names)?.give_back().await;
    // Not confirmed yet, it goes on in the background.
    let status = if released {
        StatusCode::OK
    } else {
        StatusCode::ACCEPTED
    };
    Ok(answer(status, &json!({ "released": released })))
}

fn find(
    app: &App,
    names: Result<Path<(String, String)>, PathRejection>,
) -> Result<Arc<Held>, Problem> {
    let locks = of(app)?;
    let Path((resource, id)) = names.map_err(|rejection| bad_path(&rejection))?;
    locks
        .lock_table
        .find(&resource, &id)
        .ok_or_else(no_such_lock)
}

fn no_such_lock() -> Problem {
    let detail = "no such lock is kept here: it was given back, or no sign of life came in time";
    Problem::new(StatusCode::NOT_FOUND, "no_such_lock", detail)
}

fn told(sign: Sign) -> Result<Value, Problem> {
    match sign {
        Sign::Held(told) => Ok(told),
        Sign::Over => Err(no_such_lock()),
        Sign::Lost(reason) => {
            let reason = reason.map_or("expired", eldest::LostReason::as_str);
            let detail = format!("the lock was lost: {reason}");
            Err(Problem::new(StatusCode::GONE, "lock_lost", detail))
        }
    }
}

/// One line of JSON at once and after each beat, for as long as the caller takes them. The last one says that it is lost.
fn by_connection(held: Arc<Held>, place: OwnedSemaphorePermit) -> Response {
    let lines = stream::unfold(Some((held, place, false)), async |state| {
        let (held, place, begun) = state?;
        if begun {
            let lost = held.term.lost();
            let beat = held.pause();
            tokio::select! {
                () = lost.cancelled() => {}
                () = beat => {}
            }
        }
        let (line, next) = match told(held.sign()) {
            Ok(told) => (told, Some((held, place, true))),
            Err(problem) => (json!({ "lost": problem.code }), None),
        };
        Some((Ok::<_, Infallible>(format!("{line}\n")), next))
    });
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    (kind, Body::from_stream(lines)).into_response()
}

//! Serves locks to programs in other languages: a request acquires a lock, and renewals or an open connection keep it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{OriginalUri, Request, State};
use axum::response::{IntoResponse, Response};
use axum::{RequestExt, body::Body};
use futures::stream;
use http::{HeaderValue, StatusCode, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::App;
use super::answer::{json as answer, text};
use super::body;
use super::contract::{self, AcquireLock, Hold, LockLost, Released, millis};
use super::lock_table::{Held, LockTable, Sign};
use super::names::{self, LockRequest};
use super::peer::{self, Peer};
use super::problem::{Problem, not_allowed, shortened};
use eldest::Error;
use eldest::Session;
use eldest::internal::process::Process;
use eldest::internal::{self, Inside, SharedEnv};

/// The largest number of callers that wait for a lock, or hold one by their connection.
const WAITING: usize = 256;
const OWNER: usize = 256;
const SHORTEST_TTL: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(300);

/// The session whose locks this node keeps for others.
#[derive(Debug)]
pub(super) struct Locks {
    session: Session,
    lock_table: Arc<LockTable>,
    waiting: Arc<Semaphore>,
    /// The prefixes that a name may begin with; `None`: any.
    within: Option<Vec<String>>,
}

impl Locks {
    pub(super) fn new(session: Session) -> Self {
        Self {
            session,
            lock_table: Arc::default(),
            waiting: Arc::new(Semaphore::new(WAITING)),
            within: None,
        }
    }

    /// Allows only names that begin with one of these.
    pub(super) fn within(&mut self, prefixes: Vec<String>) {
        self.within = Some(prefixes);
    }

    fn allow(&self, name: &str) -> Result<(), Problem> {
        let within = |prefixes: &Vec<String>| prefixes.iter().any(|it| name.starts_with(it));
        if self.within.as_ref().is_none_or(within) {
            return Ok(());
        }
        let detail = format!("this node offers no lock {:?} (--locks)", shortened(name));
        Err(Problem::new(
            StatusCode::FORBIDDEN,
            "name_not_allowed",
            detail,
        ))
    }

    fn env(&self) -> &SharedEnv {
        Inside::from(&self.session).env()
    }
}

fn is_election(name: &str) -> Problem {
    let detail = format!(
        "{:?} is an election, so it cannot be a lock",
        shortened(name)
    );
    Problem::new(StatusCode::CONFLICT, "election", detail)
}

fn not_free(name: &str, wait: Duration) -> Problem {
    // Within a shorter wait than etcd's usual time to answer, its silence may be the reason.
    let or = if wait.is_zero() {
        ""
    } else {
        ", or etcd has not answered so soon"
    };
    let (name, wait) = (shortened(name), millis(wait));
    let detail =
        format!("{name:?} was not free within {wait} ms: others hold it or wait for it{or}");
    Problem::new(StatusCode::CONFLICT, "held", detail)
}

fn of(app: &App) -> Result<&Locks, Problem> {
    app.node.locks.as_ref().ok_or_else(|| {
        let detail = "this node offers no locks";
        Problem::new(StatusCode::NOT_FOUND, "no_locks", detail)
    })
}

fn refused(error: &Error) -> Problem {
    Problem::of(error, "bad_name")
}

/// Answers `GET /v1/locks`: the locks that this node keeps for others.
pub(super) async fn list(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    let locks = of(&app)?.lock_table.list();
    Ok(answer(StatusCode::OK, &contract::Locks { locks }))
}

/// Answers everything below `/v1/locks/`.
pub(super) async fn one(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, Problem> {
    match names::lock(request.method(), request.uri().path())? {
        LockRequest::Acquire(name) => {
            let locks = of(&app)?;
            let mut shown = app.node.shown.iter();
            if shown.any(|shown| shown.election.name() == name) {
                return Err(is_election(&name));
            }
            locks.allow(&name)?;
            acquire(locks, name, request).await
        }
        LockRequest::Renew(name, id) => renew(&*find(&app, &name, &id)?),
        LockRequest::Release(name, id) => Ok(release(&*find(&app, &name, &id)?).await),
        LockRequest::Other(allow) => Ok(not_allowed(&request, allow)),
    }
}

/// Answers `POST /v1/locks/{resource}`. A caller that disconnects while it waits gives up its place.
async fn acquire(locks: &Locks, name: String, mut request: Request) -> Result<Response, Problem> {
    // The path is used as the caller wrote it, so that the caller's own suffix fits.
    let Ok(OriginalUri(own)) = request.extract_parts::<OriginalUri>().await;
    let peer = request.extensions().get::<Peer>().cloned();
    let asked: AcquireLock = body::read(request, &**locks.env()).await?;
    body::text("owner", &asked.owner, OWNER)?;
    let wait = body::duration("wait_ms", asked.wait_ms, Duration::ZERO..=LONGEST)?;
    let ttl = body::duration("ttl_ms", asked.ttl_ms, SHORTEST_TTL..=LONGEST)?;
    let holder = peer::named(peer.as_ref(), asked.holder, asked.holder_pid)?;

    let lock = locks.session.lock(&name).map_err(|error| refused(&error))?;
    let lock = if asked.shared { lock.shared() } else { lock };
    let many = || {
        Problem::try_again(
            "too_many_locks",
            "other callers wait for or hold too many locks",
        )
    };
    let place = Arc::clone(&locks.waiting).try_acquire_owned();
    let place = place.map_err(|_| many())?;
    if locks.lock_table.is_full() {
        return Err(many());
    }
    let taking = async {
        if wait.is_zero() {
            lock.try_acquire().await
        } else {
            lock.acquire_timeout(wait).await
        }
    };
    let taken = tokio::select! {
        taken = taking => taken,
        number = ended(holder.as_deref()) => {
            let detail = format!("process {number}, to which the lock was to be bound, has ended");
            return Err(Problem::new(StatusCode::CONFLICT, "holder_ended", detail));
        }
    };
    let Some(guard) = taken.map_err(|error| refused(&error))? else {
        return Err(not_free(&name, wait));
    };
    // Candidates may have joined behind the caller while it waited: the caller must not come before them.
    if !wait.is_zero()
        && internal::has_candidates(&lock.roster().await.map_err(|error| refused(&error))?)
    {
        return Err(is_election(&name));
    }
    let kept = locks
        .lock_table
        .keep(&locks.session, guard, (&name, asked.owner), ttl, holder);
    if asked.hold == Hold::Connection {
        return Ok(by_connection(kept, place));
    }
    let mut response = answer(StatusCode::CREATED, &first(&kept).await?);
    let location = format!("{}/{}", own.path(), kept.id);
    let location = HeaderValue::try_from(location).map(|at| (header::LOCATION, at));
    response.headers_mut().extend(location);
    Ok(response)
}

/// Returns the first promise to a caller. Without one, the caller cannot know that it holds the lock.
async fn first(held: &Held) -> Result<contract::Lock, Problem> {
    let lock = promise(held.sign());
    if lock.is_err() {
        held.give_back().await;
    }
    lock
}

/// Completes with the number of a process when it has ended; never, without one.
async fn ended(process: Option<&Process>) -> u32 {
    match process {
        Some(process) => {
            process.ended().await;
            process.number()
        }
        None => std::future::pending().await,
    }
}

/// Answers `PUT /v1/locks/{resource}/{lock}/renew`, a sign of life.
fn renew(held: &Held) -> Result<Response, Problem> {
    Ok(answer(StatusCode::OK, &promise(held.sign())?))
}

/// Answers `DELETE /v1/locks/{resource}/{lock}`, the end of the caller's work.
async fn release(held: &Held) -> Response {
    let released = held.give_back().await;
    // The release is not confirmed yet; it continues in the background.
    let status = if released {
        StatusCode::OK
    } else {
        StatusCode::ACCEPTED
    };
    answer(status, &Released { released })
}

fn find(app: &App, resource: &str, id: &str) -> Result<Arc<Held>, Problem> {
    let held = of(app)?.lock_table.find(resource, id);
    held.ok_or_else(no_such_lock)
}

fn no_such_lock() -> Problem {
    let detail = "this node keeps no such lock: it was released, or no sign of life came in time";
    Problem::new(StatusCode::NOT_FOUND, "no_such_lock", detail)
}

fn promise(sign: Sign) -> Result<contract::Lock, Problem> {
    match sign {
        Sign::Held(lock) => Ok(lock),
        Sign::Over => Err(no_such_lock()),
        Sign::Unguarded(error) => {
            let detail = error.report().to_string();
            Err(Problem::try_again("unguarded", detail))
        }
        Sign::Lost(reason) => {
            let reason = reason.map_or("expired", eldest::LostReason::as_str);
            let detail = format!("the lock was lost: {reason}");
            Err(Problem::new(StatusCode::GONE, "lock_lost", detail))
        }
    }
}

/// Sends one line of JSON at once and after each beat, while the caller reads them. The last one says that the lock is
/// lost.
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
        let (line, next) = match promise(held.sign()) {
            Ok(lock) => (text(&lock), Some((held, place, true))),
            Err(problem) => {
                let lost = problem.code.to_owned();
                (text(&LockLost { lost }), None)
            }
        };
        Some((Ok::<_, Infallible>(format!("{line}\n")), next))
    });
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    (kind, Body::from_stream(lines)).into_response()
}

//! Lists the data centres that are evacuated, from memory, and orders and lifts evacuations on request.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use eldest::internal::{self, Inside};
use eldest::{Election, Error, Evacuate, Session};
use http::{Method, StatusCode};
use tokio::sync::watch;
use tokio_util::sync::DropGuard;

use super::App;
use super::answer::json as answer;
use super::body;
use super::contract::{Evacuation, EvacuationList, OrderEvacuation, millis};
use super::names;
use super::problem::{Problem, not_allowed, shortened};
use super::view::{self, Age, View};

/// How long to wait after a refusal. A user without the permission to read the orders rarely receives it, and each
/// refusal is logged.
const AFTER_A_REFUSAL: Duration = Duration::from_secs(600);

/// The orders in the namespace of a session, as its node sees them.
#[derive(Debug, Clone)]
pub(super) struct Orders {
    session: Session,
    pub(super) view: watch::Receiver<View>,
    /// Ends the observer when the last clone is dropped.
    _looking: Arc<DropGuard>,
}

impl Orders {
    /// Observes the orders from now on.
    pub(super) fn of(session: &Session) -> Self {
        let observed = session.clone();
        let observe = move || {
            let session = observed.clone();
            async move { internal::observe_evacuations(&session).await }
        };
        let inside = Inside::from(session);
        let (view, looking) = view::follow(inside, AFTER_A_REFUSAL, None, observe);
        Self {
            session: session.clone(),
            view,
            _looking: Arc::new(looking),
        }
    }

    /// Returns `true` if it observes the orders by that session.
    pub(super) fn is_of(&self, session: &Session) -> bool {
        Inside::from(&self.session).is(session.into())
    }

    /// Returns the orders in force, by the names of the data centres, or `None` if etcd has not answered yet.
    pub(super) fn standing(&self) -> Option<Vec<Evacuation>> {
        let view = self.view.borrow();
        let all = internal::evacuations(&self.session, view.roster.as_ref()?);
        Some(all.iter().map(Evacuation::from).collect())
    }

    /// Returns the newest version that led the election, whose mark is beside the orders.
    pub(super) fn newest_version(&self, election: &Election) -> Option<String> {
        let view = self.view.borrow();
        let newest = internal::newest_version(election, view.roster.as_ref()?)?;
        Some(newest.to_string())
    }
}

fn of(app: &App) -> Result<&Orders, Problem> {
    app.node.evacuations.as_ref().ok_or_else(|| {
        let detail = "this node takes no orders to evacuate a data centre";
        Problem::new(StatusCode::NOT_FOUND, "no_evacuations", detail)
    })
}

/// Answers `GET /v1/evacuations`: the data centres that are evacuated.
pub(super) async fn list(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    let orders = of(&app)?;
    let session = Inside::from(&orders.session);
    let view = orders.view.borrow().clone();
    let age = Age::of(session, &view.confirmed, app.node.stale_after);
    let body = EvacuationList {
        namespace: orders.session.namespace().to_owned(),
        now_unix_ms: millis(session.env().unix_time()),
        evacuations: orders.standing(),
        age_ms: age.confirmed_ms(),
        stale: age.is_stale(),
        refused: view.refused,
    };
    Ok(answer(StatusCode::OK, &body))
}

/// Answers `/v1/evacuations/{data_center}`.
pub(super) async fn one(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, Problem> {
    let data_center = names::data_center(request.uri().path())?;
    match *request.method() {
        Method::PUT => order(&of(&app)?.session, data_center, request).await,
        Method::DELETE => lift(&of(&app)?.session, &data_center).await,
        _ => Ok(not_allowed(&request, "PUT,DELETE,OPTIONS")),
    }
}

/// Answers `PUT`: evacuates the data centre, and replaces an order that is already in force.
async fn order(
    session: &Session,
    data_center: String,
    request: Request,
) -> Result<Response, Problem> {
    let env = Inside::from(session).env();
    let asked: OrderEvacuation = body::read(request, &**env).await?;
    let mut order = Evacuate::new(data_center);
    if let Some(given) = asked.for_ms {
        order = order.lasting(body::duration("for_ms", given, internal::EVACUATION)?);
    }
    if let Some(reason) = asked.reason {
        order = order.reason(reason);
    }
    if let Some(by) = asked.by {
        order = order.by(by);
    }
    let given = session.evacuate(order).await;
    let given = given.map_err(|error| refused(&error))?;
    Ok(answer(StatusCode::OK, &Evacuation::from(&given)))
}

/// Answers `DELETE`: lifts the order.
async fn lift(session: &Session, data_center: &str) -> Result<Response, Problem> {
    let lifted = session.lift(data_center).await;
    let Some(lifted) = lifted.map_err(|error| refused(&error))? else {
        let detail = format!("{:?} is not evacuated", shortened(data_center));
        return Err(Problem::new(StatusCode::NOT_FOUND, "not_evacuated", detail));
    };
    Ok(answer(StatusCode::OK, &Evacuation::from(&lifted)))
}

fn refused(error: &Error) -> Problem {
    Problem::of(error, "bad_order")
}

//! Streams the state of elections as server-sent events: the current state first, then the latest after every change.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt, stream};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::sync::CancellationToken;

use super::App;
use super::answer::text;
use super::node::Shown;
use super::peer::Caller;
use super::problem::Problem;
use super::sidecar::Kept;
use super::view::View;
use eldest::internal::{self, Challenged, Inside, LocalState};
use eldest::{EndpointStatus, SessionState};

/// The longest silence of a stream without changes. A caller that receives nothing for longer knows that the node is
/// stopped or cut off, and the node notices callers that are gone. The page's script relies on it.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

/// One caller's stream of one election.
struct Follower {
    app: Arc<App>,
    caller: Arc<Caller>,
    name: String,
    view: watch::Receiver<View>,
    own: watch::Receiver<LocalState>,
    session: watch::Receiver<SessionState>,
    endpoints: watch::Receiver<Arc<[EndpointStatus]>>,
    challenged: watch::Receiver<Challenged>,
    orders: watch::Receiver<View>,
    /// The term that is kept for callers. While there is one, the state also reports how long callers may act.
    kept: Option<watch::Receiver<i64>>,
    /// The token of the last reported term, whose end the watchdog may notice before the driver does.
    lost: Option<CancellationToken>,
    begun: bool,
    /// True if the last reported view was stale.
    stale: bool,
    _permit: Arc<OwnedSemaphorePermit>,
}

/// Answers `GET /v1/elections/{name}/events`. A slow reader misses states, but never the last one.
pub(super) fn follow(app: &Arc<App>, caller: Caller, shown: &Shown) -> Result<Response, Problem> {
    event_stream(app, caller, std::iter::once(shown))
}

/// Answers `GET /v1/events`: all elections over one connection, because a browser allows few connections for each node.
pub(super) async fn follow_all(
    State(app): State<Arc<App>>,
    caller: Caller,
) -> Result<Response, Problem> {
    event_stream(&app, caller, app.node.shown.iter())
}

fn event_stream<'a>(
    app: &Arc<App>,
    caller: Caller,
    shown: impl Iterator<Item = &'a Shown>,
) -> Result<Response, Problem> {
    let (permit, caller) = (Arc::new(permit(app)?), Arc::new(caller));
    let each = shown.map(|shown| {
        let follower = Follower {
            name: shown.election.name().to_owned(),
            view: shown.view.clone(),
            own: internal::watch_local_state(&shown.election),
            session: shown.session_state.clone(),
            endpoints: shown.endpoints.clone(),
            challenged: shown.challenged.clone(),
            orders: shown.orders.view.clone(),
            kept: shown.kept().map(Kept::watch),
            app: Arc::clone(app),
            caller: Arc::clone(&caller),
            lost: None,
            begun: false,
            stale: true,
            _permit: Arc::clone(&permit),
        };
        stream::unfold(follower, Follower::next).boxed()
    });
    Ok(kept_alive(stream::select_all(each)).into_response())
}

/// Reserves one of the streams of this node.
pub(super) fn permit(app: &App) -> Result<OwnedSemaphorePermit, Problem> {
    let permit = Arc::clone(&app.node.streams).try_acquire_owned();
    permit.map_err(|_| Problem::try_again("too_many_streams", "too many callers follow events"))
}

/// Adds signs of life to a stream of events.
pub(super) fn kept_alive<S>(events: S) -> impl IntoResponse
where
    S: Stream<Item = Result<Event, Infallible>> + Send + 'static,
{
    // A comment would not do, because a browser does not pass it to its page; nor would an event without data.
    let sign = Event::default().event("alive").data("{}");
    let alive = KeepAlive::new().interval(SIGN_OF_LIFE).event(sign);
    Sse::new(events).keep_alive(alive)
}

impl Follower {
    /// Returns `None` when the session is closed and nothing changes any more.
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        if self.begun {
            self.changed().await?;
        }
        self.begun = true;
        self.view.mark_unchanged();
        self.session.mark_unchanged();
        self.endpoints.mark_unchanged();
        self.challenged.mark_unchanged();
        self.orders.mark_unchanged();
        self.kept
            .iter_mut()
            .for_each(watch::Receiver::mark_unchanged);
        let held = self.own.borrow_and_update().held.clone();
        let lost = held.map(|held| held.term.lost());
        self.lost = lost.filter(|lost| !lost.is_cancelled());
        let shown = self.app.node.find(Some(&self.name)).ok()?;
        let age = self.app.node.age(shown);
        self.stale = age.is_stale();
        let state = text(&shown.state(age, self.caller.process()));
        let event = Event::default().event("state").data(state);
        Some((Ok(event), self))
    }

    async fn changed(&mut self) -> Option<()> {
        let kept = async {
            match &mut self.kept {
                // The node keeps the sender.
                Some(kept) => kept.changed().await.ok(),
                None => std::future::pending().await,
            }
        };
        let lost = async {
            match &self.lost {
                Some(lost) => lost.cancelled().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // The observer ends with the session.
            seen = self.view.changed() => seen.ok(),
            changed = self.own.changed() => changed.ok(),
            changed = self.session.changed() => changed.ok(),
            changed = self.endpoints.changed() => changed.ok(),
            changed = self.challenged.changed() => changed.ok(),
            changed = self.orders.changed() => changed.ok(),
            changed = kept => changed,
            () = lost => Some(()),
            () = ages(&self.app, &self.name, self.stale) => Some(()),
        }
    }
}

/// Waits until the view becomes stale, or is fresh again.
async fn ages(app: &App, name: &str, was_stale: bool) {
    let Ok(shown) = app.node.find(Some(name)) else {
        return std::future::pending().await;
    };
    let session = Inside::from(&shown.election);
    loop {
        let age = app.node.age(shown);
        if age.is_stale() != was_stale {
            return;
        }
        // A fresh view may be confirmed meanwhile. A stale one is checked again after one request timeout.
        let wait = age.left().max(session.request_timeout());
        session.env().sleep(wait).await;
    }
}

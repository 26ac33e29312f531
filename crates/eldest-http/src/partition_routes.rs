//! Answers requests about partitions: the owner of each partition, and the owner of a key.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use eldest::internal::process::Process;
use eldest::{PartitionMap, Partitions, Shutdown, internal};
use futures::stream;
use http::{Method, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::answer::{json as answer, text};
use super::api::beat;
use super::contract::millis;
use super::contract::partitions::{ForgottenShare, OwnPartition, OwnPartitions, PartitionsList};
use super::health::Health;
use super::names::{self, PartitionsPart};
use super::node::Node;
use super::owning::Owning;
use super::partitions::{LARGEST, Listed, ObservedPartitions, View};
use super::peer::Caller;
use super::problem::{Problem, not_allowed, shortened};
use super::query::{Asked, bad_query, parameter};
use super::sidecar::Leading;
use super::{App, events};

impl Node {
    /// Shows which member owns each of these partitions, under `/v1/partitions`. The node does not become a member.
    ///
    /// One observer follows them, so that every answer comes from memory. They replace partitions of the same name that
    /// were shown before. `GET /live` and `GET /ready` do not depend on them.
    pub fn observes_partitions(mut self, partitions: &Partitions) -> Self {
        self.show_partitions(partitions, None);
        self
    }

    /// Shares these partitions on behalf of the programs that ask this node, and shows who owns each.
    ///
    /// The node does no work of its own: the programs ask `GET /v1/partitions/{name}/own` before each act. The returned
    /// handle can be awaited for the end of the membership, and can stop it; `shutdown` is a token or a future, as for
    /// [`Partitions::run`].
    ///
    /// A program may act for each partition in the answer for `may_act_for_ms`, counted from the moment *before* it sent the
    /// request: no other member owns the partition within that time, which is three quarters of the [grace
    /// period](eldest::SessionOptions::grace). To ensure this, the node keeps a partition for one grace period after its term has
    /// begun to end, also where it moves to another member. The
    /// promise holds under the three conditions at the head of the [documentation of `eldest`](eldest). Fence what must never
    /// happen twice, with the `fencing_token` of the same partition.
    ///
    /// **A program that dies**, and a session with a guard, have the same effects as for [`Node::lead_on_behalf`].
    pub fn own_on_behalf<S, K>(self, partitions: &Partitions, shutdown: S) -> (Self, Leading)
    where
        S: Shutdown<K>,
        S::Signal: Send + 'static,
    {
        self.own_on_behalf_while_healthy(partitions, Health::new(), shutdown)
    }

    /// Shares partitions as [`Node::own_on_behalf`] does, while the program is healthy.
    ///
    /// If the program gives no [heartbeat](Health::stall_timeout), or fails its [check](Health::check), for too long, the
    /// terms of all partitions end, and the member leaves: the others take its partitions after the grace period that was
    /// promised to callers. It joins, at first and again, when the program is healthy.
    pub fn own_on_behalf_while_healthy<S, K>(
        mut self,
        partitions: &Partitions,
        health: Health,
        shutdown: S,
    ) -> (Self, Leading)
    where
        S: Shutdown<K>,
        S::Signal: Send + 'static,
    {
        let (owning, leading) = Owning::begin(partitions, health, shutdown, self.programs.clone());
        self.show_partitions(partitions, Some(owning));
        (self, leading)
    }

    fn show_partitions(&mut self, partitions: &Partitions, owning: Option<Owning>) {
        let observed = ObservedPartitions::new(partitions.clone(), owning);
        self.partitions
            .retain(|other| other.partitions.name() != partitions.name());
        self.partitions.push(observed);
    }

    fn find_partitions(&self, name: &str) -> Result<&ObservedPartitions, Problem> {
        let mut all = self.partitions.iter();
        all.find(|one| one.partitions.name() == name)
            .ok_or_else(|| {
                let detail = format!("this node observes no partitions {:?}", shortened(name));
                Problem::new(StatusCode::NOT_FOUND, "no_such_partitions", detail)
            })
    }
}

/// Answers `GET /v1/partitions`: the sets of partitions that this node observes.
pub(super) async fn list(State(app): State<Arc<App>>) -> Response {
    let all = app.node.partitions.iter();
    let partitions = all.map(|one| one.summary(app.node.stale_after)).collect();
    answer(StatusCode::OK, &PartitionsList { partitions })
}

/// Answers everything below `/v1/partitions/`.
pub(super) async fn one(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
) -> Result<Response, Problem> {
    let (name, part) = names::partitions(request.uri().path())?;
    let fits = match part {
        PartitionsPart::Heartbeat | PartitionsPart::Forget => *request.method() == Method::POST,
        _ => matches!(*request.method(), Method::GET | Method::HEAD),
    };
    if !fits {
        return Ok(not_allowed(&request, part.allow()));
    }
    let observed = app.node.find_partitions(&name)?;
    match part {
        PartitionsPart::State => {
            let asked = Asked::of(request.uri());
            let from = first(&asked, observed.partitions.count())?;
            let view = observed.view.borrow().clone();
            let listed = view.map.as_ref().map(|map| Listed::of(map, from, None));
            let age = observed.age(&view, app.node.stale_after);
            let state = observed.state(&view, age, listed.unwrap_or_default());
            Ok(answer(StatusCode::OK, &state))
        }
        PartitionsPart::Owner => {
            let asked = Asked::of(request.uri());
            let key = asked.bytes("key")?;
            let key = key.ok_or_else(|| bad_query("name a key with `?key=`"))?;
            let owner = observed.owner(app.node.stale_after, key)?;
            Ok(answer(StatusCode::OK, &owner))
        }
        PartitionsPart::Own => {
            let asked = Asked::of(request.uri());
            let from = first(&asked, observed.partitions.count())?;
            let owning = owning(observed)?;
            let holder = caller.asks_for(&asked)?;
            let own = own(observed, owning, from, holder.as_deref());
            Ok(answer(StatusCode::OK, &own))
        }
        PartitionsPart::Heartbeat => {
            Asked::of(request.uri()).has_only(&[])?;
            beat(&owning(observed)?.fitness, &name)
        }
        PartitionsPart::Forget => {
            let asked = Asked::of(request.uri());
            asked.has_only(&["identity"])?;
            let identity = parameter(&asked, "identity")?;
            let identity = identity.ok_or_else(|| bad_query("name a member with `?identity=`"))?;
            owning(observed)?;
            forget(&observed.partitions, &identity).await
        }
        PartitionsPart::Events => follow(&app, observed),
    }
}

fn owning(observed: &ObservedPartitions) -> Result<&Owning, Problem> {
    observed.owning.as_ref().ok_or_else(|| {
        let name = observed.partitions.name();
        let detail = format!("this node owns no partitions of {name:?} on behalf of a program");
        Problem::new(StatusCode::CONFLICT, "not_on_behalf", detail)
    })
}

/// Ends the time for which the share of an absent member is kept.
async fn forget(partitions: &Partitions, identity: &str) -> Result<Response, Problem> {
    let forgotten = partitions.forget_share(identity).await;
    if !forgotten.map_err(|error| Problem::of(&error, "bad_query"))? {
        let (name, identity) = (partitions.name(), shortened(identity));
        let detail =
            format!("no share of {name:?} is kept for {identity:?}, or that member is there");
        return Err(Problem::new(StatusCode::NOT_FOUND, "no_kept_share", detail));
    }
    let body = ForgottenShare {
        name: partitions.name().to_owned(),
        partition_count: partitions.count(),
        forgotten: identity.to_owned(),
    };
    Ok(answer(StatusCode::OK, &body))
}

fn own(
    observed: &ObservedPartitions,
    owning: &Owning,
    from: u32,
    caller: Option<&Process>,
) -> OwnPartitions {
    let session = observed.inside();
    let promised = owning.promised(session, caller).into_iter();
    let mut promised = promised.skip_while(|(partition, _)| *partition < from);
    let partitions = promised.by_ref().take(LARGEST);
    let partitions = partitions.map(|(partition, fencing_token)| OwnPartition {
        partition,
        fencing_token,
    });
    OwnPartitions {
        name: observed.partitions.name().to_owned(),
        partition_count: observed.partitions.count(),
        may_act_for_ms: millis(Owning::may_act_for(session)),
        partitions: partitions.collect(),
        next_from: promised.next().map(|(partition, _)| partition),
        unhealthy: owning.fitness.illness(),
    }
}

/// Returns the value of `?from=`, or 0.
fn first(asked: &Asked, count: u32) -> Result<u32, Problem> {
    let Some(from) = parameter(asked, "from")? else {
        return Ok(0);
    };
    let number = internal::number(&from).filter(|number| *number < count);
    number.ok_or_else(|| {
        let from = shortened(&from);
        bad_query(format!("`from` is {from:?}, not a number below {count}"))
    })
}

/// One caller's stream of one set of partitions.
struct Follower {
    app: Arc<App>,
    name: String,
    view: watch::Receiver<View>,
    /// The last map that the caller has received completely.
    sent: Option<PartitionMap>,
    /// The state that is sent to the caller in several events, and the first partition of the next event.
    unfinished: Option<(View, u32)>,
    begun: bool,
    /// True if the last reported view was stale.
    stale: bool,
    _permit: OwnedSemaphorePermit,
}

/// Answers `GET /v1/partitions/{name}/events`. A slow reader misses states, but never the last owner of a partition.
fn follow(app: &Arc<App>, observed: &ObservedPartitions) -> Result<Response, Problem> {
    let follower = Follower {
        name: observed.partitions.name().to_owned(),
        view: observed.view.clone(),
        app: Arc::clone(app),
        sent: None,
        unfinished: None,
        begun: false,
        stale: true,
        _permit: events::permit(app)?,
    };
    let all = stream::unfold(follower, Follower::next);
    Ok(events::kept_alive(all).into_response())
}

impl Follower {
    /// Returns `None` when the session is closed and nothing changes any more.
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        let (view, from) = if let Some(unfinished) = self.unfinished.take() {
            unfinished
        } else {
            if self.begun {
                self.changed().await?;
            }
            (self.view.borrow_and_update().clone(), 0)
        };
        self.begun = true;
        let app = Arc::clone(&self.app);
        let observed = app.node.find_partitions(&self.name).ok()?;
        let age = observed.age(&view, app.node.stale_after);
        self.stale = age.is_stale();
        let listed = view.map.as_ref();
        let listed = listed.map(|map| Listed::of(map, from, self.sent.as_ref()));
        let listed = listed.unwrap_or_default();
        let next_from = listed.next_from;
        let state = text(&observed.state(&view, age, listed));
        match next_from {
            Some(next) => self.unfinished = Some((view, next)),
            None => self.sent = view.map,
        }
        let event = Event::default().event("state").data(state);
        Some((Ok(event), self))
    }

    async fn changed(&mut self) -> Option<()> {
        tokio::select! {
            // The observer ends with the session.
            seen = self.view.changed() => seen.ok(),
            () = ages(&self.app, &self.name, self.stale) => Some(()),
        }
    }
}

/// Waits until the view becomes stale, or is fresh again.
async fn ages(app: &App, name: &str, was_stale: bool) {
    let Ok(observed) = app.node.find_partitions(name) else {
        return std::future::pending().await;
    };
    loop {
        let age = observed.age(&observed.view.borrow(), app.node.stale_after);
        if age.is_stale() != was_stale {
            return;
        }
        let least = observed.inside().request_timeout();
        observed.env().sleep(age.left().max(least)).await;
    }
}

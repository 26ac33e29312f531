//! Collects the state that a node shows: its own state from its session, and the rest from one observer for each
//! election. No request for that state asks etcd.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio_util::sync::DropGuard;

use super::contract::{
    Challenge, ElectionState, EndpointState, Member, OwnState, Role, key, millis,
};
use super::evacuations::Orders;
use super::health::{Fitness, Health};
use super::locks::Locks;
use super::partitions::ObservedPartitions;
use super::problem::{Problem, shortened};
use super::programs::{Programs, Promise};
use super::sidecar::{Kept, Leading};
use super::view::{self, Age, View};
use eldest::internal::process::Process;
use eldest::internal::{self, Challenged, Inside, LocalState};
use eldest::{Election, EndpointStatus, Roster, Session, SessionState, Shutdown, Status, Term};
use http::StatusCode;

/// The largest number of callers that follow events at once; the other connections are for single requests.
const STREAMS: usize = 64;

/// The elections that a node answers for: those in which it is a candidate, and those that it only observes.
///
/// A node follows each election with one [`Observer`](eldest::Observer). It keeps their sessions open: close them with
/// [`Session::close`](eldest::Session::close). All answers come from memory; no HTTP request causes a request to etcd.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), eldest::BoxError> {
/// # use eldest::{CancellationToken, Session, SessionOptions};
/// # let etcd = eldest_testing::Etcd::start().await?;
/// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
/// # let shutdown = CancellationToken::new();
/// use eldest_http as http;
///
/// let election = session.election("billing/scheduler")?;
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
/// let auth = http::Auth::at(listener.local_addr()?);
/// // Leads for any program that asks `GET /leader` before it acts.
/// let (node, leading) = http::Node::new().lead_on_behalf(&election, shutdown.clone());
/// let gone = CancellationToken::new();
/// let app = http::router(node, auth);
/// let server = tokio::spawn(http::serve(listener, app, http::Limits::default(), gone.clone()));
/// # shutdown.cancel();
/// leading.await?;
/// session.close().await?;
/// // Last, so that a program that asks until then learns that this node does not lead.
/// gone.cancel();
/// server.await??;
/// # Ok(())
/// # }
/// ```
#[must_use = "a node does nothing until a router uses it"]
#[derive(Debug)]
pub struct Node {
    pub(super) shown: Vec<Shown>,
    pub(super) partitions: Vec<ObservedPartitions>,
    pub(super) streams: Arc<Semaphore>,
    pub(super) render: Option<Render>,
    pub(super) locks: Option<Locks>,
    /// The evacuations that callers may order and lift.
    pub(super) evacuations: Option<Orders>,
    pub(super) programs: Programs,
    /// The only process on whose behalf it leads, if its command line names one.
    pub(super) program: Option<u32>,
    /// The age of a stale view. `None` means the TTL of each session.
    pub(super) stale_after: Option<Duration>,
}

/// Writes the metrics.
#[derive(Clone)]
pub(super) struct Render(pub(super) Arc<dyn Fn() -> String + Send + Sync>);

impl fmt::Debug for Render {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Render")
    }
}

/// One election, as this node knows it.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) election: Election,
    pub(super) session_state: watch::Receiver<SessionState>,
    pub(super) endpoints: watch::Receiver<Arc<[EndpointStatus]>>,
    pub(super) challenged: watch::Receiver<Challenged>,
    part: Part,
    pub(super) view: watch::Receiver<View>,
    /// The data centres of its namespace that are evacuated.
    pub(super) orders: Orders,
    /// Ends the observer when it is dropped.
    _looking: DropGuard,
}

/// The reason why a node takes part in an election.
#[derive(Debug)]
enum Part {
    /// The node leads for its callers, in the terms that are kept for them, while these programs live and are fit.
    OnBehalf(Kept, Programs, Arc<Fitness>),
    /// The node leads for its own work, which ends at its deadline: no caller is promised any time.
    OwnWork,
    Observes,
}

impl Default for Node {
    fn default() -> Self {
        Self::new()
    }
}

impl Node {
    /// Makes a node that shows nothing yet.
    pub fn new() -> Self {
        Self {
            shown: Vec::new(),
            partitions: Vec::new(),
            streams: Arc::new(Semaphore::new(STREAMS)),
            render: None,
            locks: None,
            evacuations: None,
            programs: Programs::new(),
            program: None,
            stale_after: None,
        }
    }

    /// Campaigns in an election on behalf of the programs that ask this node, and shows it.
    ///
    /// While the node leads, it does no work of its own: the programs ask `GET /leader` before each act. The returned
    /// handle can be awaited for the end of the candidacy, and can stop it; `shutdown` is a token or a future, as for
    /// [`Election::run`]. The election replaces one with the same name that was shown before.
    ///
    /// A program that received 200 for `GET /leader` may act for `may_act_for_ms`, counted from the moment *before* it
    /// sent the request: no other node leads within that time. To ensure this, the node keeps its key for one [grace
    /// period](eldest::SessionOptions::grace) after its term has begun to end. The promise holds under the three
    /// conditions at the head of the [documentation of `eldest`](eldest). Fence what must never happen twice, with the
    /// `fencing_token` of the same answer. If anything else in this session began the term, the node promises nothing,
    /// and its role is `ending`.
    ///
    /// **A program that dies.** Over a Unix socket (`serve_unix`), `POST /v1/program` binds the elections to the life
    /// of a process. From then on, only bound processes are promised time; for any other caller, `may_act_for_ms` is
    /// null. When every process that was bound has ended, the node leaves all its elections at once, without the grace
    /// period, because the dead cannot act; it only waits for the end of what it had promised others before the first
    /// one was bound. It joins again when a process binds itself.
    ///
    /// **A session with a [guard](eldest::SessionOptions::guard).** When this process dies, the guard deletes its keys after
    /// the last promise has ended, or, if processes were bound, when the last of them has ended. The guard knows each promise
    /// before the caller does.
    pub fn lead_on_behalf<S, K>(self, election: &Election, shutdown: S) -> (Self, Leading)
    where
        S: Shutdown<K>,
        S::Signal: Send + 'static,
    {
        self.lead_on_behalf_while_healthy(election, Health::new(), shutdown)
    }

    /// Campaigns as [`Node::lead_on_behalf`] does, while the program is healthy.
    ///
    /// A leader whose program gives no [heartbeat](Health::stall_timeout), or fails its [check](Health::check), for too
    /// long ends its term as [`Stalled`](eldest::LostReason::Stalled). The node keeps its key for the grace period that
    /// it promised to callers, and joins again, at the end, when the program is healthy. It does not join for the
    /// first time before the program is healthy either; until then, `GET /ready` says why. A node that waits in the
    /// queue keeps its place, and its program is not checked.
    pub fn lead_on_behalf_while_healthy<S, K>(
        self,
        election: &Election,
        health: Health,
        shutdown: S,
    ) -> (Self, Leading)
    where
        S: Shutdown<K>,
        S::Signal: Send + 'static,
    {
        let kept = Kept::new();
        let fitness = Fitness::new(Inside::from(election).env(), health);
        let part = Part::OnBehalf(kept.clone(), self.programs.clone(), fitness.clone());
        let leading = Leading::begin(election, shutdown, kept, self.programs.clone(), fitness);
        (self.show(election, part), leading)
    }

    /// Shows an election as [`Node::lead_on_behalf`] does, with terms that a test declares as kept.
    #[cfg(test)]
    pub(super) fn leads_on_behalf(self, election: &Election, kept: &Kept) -> Self {
        let programs = self.programs.clone();
        let fitness = Fitness::new(Inside::from(election).env(), Health::new());
        self.show(election, Part::OnBehalf(kept.clone(), programs, fitness))
    }

    /// Shows an election in which this session is a candidate for its own work. `GET /leader` only shows where that
    /// work runs: callers may not act on that answer, and `may_act_for_ms` is null.
    pub fn works_in(self, election: &Election) -> Self {
        self.show(election, Part::OwnWork)
    }

    /// Shows an election that this node only observes.
    pub fn observes(self, election: &Election) -> Self {
        self.show(election, Part::Observes)
    }

    /// Shows the text of `render` at `GET /metrics`, in the text format of Prometheus.
    ///
    /// With `metrics-exporter-prometheus`, pass `PrometheusHandle::render`. Just before each call, the gauge
    /// `eldest_leading` is set by the clock of that moment, and `eldest_serving` with it, for all elections that are shown. Without this option, the
    /// path is not found. Metrics of this library need the feature `metrics`.
    pub fn metrics(mut self, render: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.render = Some(Render(Arc::new(render)));
        self
    }

    /// Offers locks of this session to programs in other languages, under `/v1/locks`. Without this option, those paths
    /// are not found.
    ///
    /// A name is refused with 409 and the code `election` if the node shows an election of that name, or if etcd has
    /// candidates of such an election. [`Node::lock_names`] limits the names.
    ///
    /// A caller keeps its lock by renewals, or by the connection of its request. Each answer says how long the caller
    /// may act: `may_act_for_ms` from before it sent the request.
    ///
    /// **A caller that vanishes** keeps its lock for `ttl_ms` after the last sign of life; then the lock is free. A
    /// caller that waits loses its place as soon as its connection is gone. A sign of life is a renewal that arrives,
    /// or an open connection. A connection that was cut off counts as gone after twice
    /// [`Limits::silence`](super::Limits::silence). But the system keeps the connection of a process that is only
    /// stopped, so such a process **keeps its lock for as long as it is stopped**: a process that may be stopped should
    /// use renewals. The promise to a caller holds in any case: no other client receives the lock before
    /// `may_act_for_ms` has passed, under the conditions at the head of the [documentation of `eldest`](eldest).
    ///
    /// Over a Unix socket (`serve_unix`), a caller may bind its lock to a process, with `"holder": "peer"`,
    /// `"holder": "pidfd"` or `"holder_pid"`. The lock is then also free as soon as that process has ended.
    ///
    /// If the session has a [guard](eldest::SessionOptions::guard) and this process dies, the guard deletes its keys
    /// when no caller may act any longer: after the last promise, and when every process to which a lock was bound has
    /// ended.
    pub fn locks(mut self, session: &Session) -> Self {
        self.locks = Some(Locks::new(session.clone()));
        self
    }

    /// Limits the locks of [`Node::locks`] to names that begin with one of these texts, for example `jobs/`. Any other name is
    /// refused with 403. Without this option, callers may use every name that no election has.
    pub fn lock_names(mut self, prefixes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        if let Some(locks) = &mut self.locks {
            locks.within(prefixes.into_iter().map(Into::into).collect());
        }
        self
    }

    /// Lets callers list, order and lift [evacuations](Session::evacuate) in this session's namespace, under
    /// `/v1/evacuations`. Without this option, those paths are not found.
    ///
    /// The list is answered from memory. An order is a request to etcd by the session, whose user needs the permission to
    /// write it. An order concerns all nodes of the namespace, so [`Auth`](super::Auth) should admit only those who may give
    /// one.
    ///
    /// The state of each election shows the orders of its namespace without this option.
    pub fn evacuations(mut self, session: &Session) -> Self {
        self.evacuations = Some(self.orders_of(session));
        self
    }

    /// Sets the age from which a view that etcd has not confirmed counts as stale. Default: the
    /// [TTL](eldest::SessionOptions::ttl) of the election's session.
    ///
    /// For a stale election that this node only [observes](Node::observes), `GET /ready` answers 503; the JSON and the
    /// page of every stale election say so. The age is at least a third of the TTL and two request timeouts (or 0.5 s,
    /// if that is more), so that a quiet election is never stale; a smaller value is raised to that minimum.
    ///
    /// It does not affect `GET /leader`, nor the readiness of a candidate: these depend on the lease alone.
    pub fn stale_after(mut self, age: Duration) -> Self {
        self.stale_after = Some(age);
        self
    }

    /// Declares that the node leads on behalf of that process alone, so that no other can bind the elections. Call it
    /// once the node's elections are known.
    #[doc(hidden)]
    pub fn only_for(mut self, process: &Arc<Process>) -> Self {
        self.program = Some(process.number());
        let guarded = self.outlive(process);
        self.programs.only(process, guarded);
        self
    }

    /// Has the guards of the sessions that lead on behalf of callers await the end of that process. Returns `false` if one
    /// cannot.
    pub(super) fn outlive(&self, process: &Process) -> bool {
        let mut sessions = self.sessions_on_behalf();
        sessions.all(|session| session.outlive(process).is_ok())
    }

    /// Returns the elections in which this node leads on behalf of its callers.
    pub(super) fn led_on_behalf(&self) -> impl Iterator<Item = &Shown> {
        let shown = self.shown.iter();
        shown.filter(|shown| matches!(shown.part, Part::OnBehalf(..)))
    }

    /// Returns the session of each election that this node leads, and of each set of partitions that it owns, on behalf of
    /// its callers.
    pub(super) fn sessions_on_behalf(&self) -> impl Iterator<Item = Inside<'_>> {
        let partitions = self.partitions.iter();
        let owned = partitions.filter(|one| one.owning.is_some());
        let led = self.led_on_behalf().map(Shown::inside);
        led.chain(owned.map(ObservedPartitions::inside))
    }

    /// Returns the age of an election's view at this moment.
    pub(super) fn age(&self, shown: &Shown) -> Age {
        Age::of(
            shown.inside(),
            &shown.view.borrow().confirmed,
            self.stale_after,
        )
    }

    /// Returns the whole state of an election, for that caller.
    pub(super) fn state(&self, shown: &Shown, caller: Option<&Process>) -> ElectionState {
        shown.state(self.age(shown), caller)
    }

    fn show(mut self, election: &Election, part: Part) -> Self {
        self.shown
            .retain(|shown| shown.election.name() != election.name());
        let orders = self.orders_of(&election.session());
        self.shown.push(Shown::new(election.clone(), part, orders));
        self
    }

    /// Returns the orders in a session's namespace, by one observer for each session.
    fn orders_of(&self, session: &Session) -> Orders {
        let known = self.shown.iter().map(|shown| &shown.orders);
        let mut known = known.chain(&self.evacuations);
        let known = known.find(|orders| orders.is_of(session));
        known.map_or_else(|| Orders::of(session), Orders::clone)
    }

    /// Returns the election with that name; without a name, the only one.
    pub(super) fn find(&self, name: Option<&str>) -> Result<&Shown, Problem> {
        match (name, &self.shown[..]) {
            (None, [only]) => Ok(only),
            (None, _) => {
                let detail = format!(
                    "this node shows {} elections: name one with `?election=`",
                    self.shown.len()
                );
                Err(Problem::new(
                    StatusCode::BAD_REQUEST,
                    "which_election",
                    detail,
                ))
            }
            (Some(name), all) => all
                .iter()
                .find(|shown| shown.election.name() == name)
                .ok_or_else(|| {
                    let detail = format!("this node shows no election {:?}", shortened(name));
                    Problem::new(StatusCode::NOT_FOUND, "no_such_election", detail)
                }),
        }
    }
}

impl Shown {
    fn new(election: Election, part: Part, orders: Orders) -> Self {
        let session = Inside::from(&election);
        let pause = session.request_timeout();
        let observed = election.clone();
        let observe = move || {
            let election = observed.clone();
            async move { election.observe().await }
        };
        let own = Some(internal::watch_local_state(&election));
        let (view, looking) = view::follow(session, pause, own, observe);
        Self {
            session_state: election.session().state(),
            endpoints: election.session().endpoints(),
            challenged: internal::watch_challenges(&election.session()),
            election,
            part,
            view,
            orders,
            _looking: looking,
        }
    }

    /// Returns the state of this node in the election, at this moment, for a caller that may rely on it.
    pub(super) fn own(&self, caller: Option<&Process>) -> OwnState {
        let mut own = self.seen();
        let Part::OnBehalf(_, programs, _) = &self.part else {
            return own;
        };
        if own.may_act_for_ms.is_some() {
            match programs.promise(self.inside(), caller) {
                Promise::Given => {}
                Promise::ForOthers => own.may_act_for_ms = None,
                Promise::Unguarded => {
                    (own.role, own.serving, own.may_act_for_ms) = (Role::Ending, false, None);
                }
            }
        }
        own
    }

    /// Returns the state of this node in the election, at this moment, to show it; it promises no time to any caller.
    pub(super) fn seen(&self) -> OwnState {
        let LocalState { status, held, .. } = internal::local_state(&self.election);
        let grace = self.inside().grace();
        let term = held.map(|held| held.term);
        // If callers act, a term whose key is not kept for them promises nothing.
        let kept = match (self.kept(), &term) {
            (Some(kept), Some(term)) => kept.is(term.fencing_token()),
            _ => true,
        };
        let left = term.as_ref().map(|term| term.valid_until().time_left());
        let ends = term
            .as_ref()
            .is_none_or(|term| term.lost_reason().is_some());
        // Validity is read last: no other step lies between the clock and the answer.
        let valid = term.as_ref().is_some_and(Term::is_valid);
        let role = match (self.is_candidate(), valid) {
            // Once the token is cancelled, no new work may begin. The same holds when the watchdog is late.
            (true, true) if kept && !ends && left >= Some(grace) => Role::Leader,
            (true, true) => Role::Ending,
            (true, false) => Role::Follower,
            (false, _) => Role::Observer,
        };
        let status = status.unwrap_or(Status::Idle);
        let may_act = role == Role::Leader && self.kept().is_some();
        let serves = |term: &Term| role == Role::Leader && term.is_serving();
        OwnState {
            identity: self.identity().to_owned(),
            role,
            serving: term.as_ref().is_some_and(serves),
            fencing_token: term.filter(|_| valid).map(|term| term.fencing_token()),
            may_act_for_ms: may_act.then(|| millis(grace)),
            valid_for_ms: left.filter(|_| valid).map(millis),
            status: status.as_str().to_owned(),
            rank: match status {
                Status::Waiting { rank, .. } => Some(rank),
                Status::Leading { .. } => Some(1),
                _ => None,
            },
            session: self.session().to_owned(),
        }
    }

    pub(super) fn is_candidate(&self) -> bool {
        !matches!(self.part, Part::Observes)
    }

    /// Returns the terms that are kept for callers, if the node is a candidate on their behalf.
    pub(super) fn kept(&self) -> Option<&Kept> {
        match &self.part {
            Part::OnBehalf(kept, ..) => Some(kept),
            Part::OwnWork | Part::Observes => None,
        }
    }

    /// Returns the health of the program, if the node is a candidate on behalf of one.
    pub(super) fn fitness(&self) -> Option<&Fitness> {
        match &self.part {
            Part::OnBehalf(_, _, fitness) => Some(fitness),
            Part::OwnWork | Part::Observes => None,
        }
    }

    /// Returns `true` if every program that bound itself has ended.
    fn is_orphaned(&self) -> bool {
        matches!(&self.part, Part::OnBehalf(_, programs, _) if !programs.may_act())
    }

    fn session(&self) -> &'static str {
        self.session_state.borrow().as_str()
    }

    /// Returns why the node is not ready, or `None` if it is: a candidate with a lease that it trusts, or an observer
    /// with a fresh view.
    pub(super) fn unready(&self, age: Age) -> Option<String> {
        let session = self.session();
        if self.is_candidate() {
            let stands = matches!(
                self.election.status(),
                Status::Waiting { .. } | Status::Leading { .. } | Status::Ending { .. }
            );
            return match (session, stands) {
                ("live", true) => None,
                (_, false) if self.is_orphaned() => Some(
                    "the program on whose behalf this node led has ended; none has bound itself since"
                        .to_owned(),
                ),
                ("ready" | "live", false) => Some(match self.fitness().and_then(Fitness::illness) {
                    Some(why) => format!("the program beside this node is not healthy: {why}"),
                    None => "this node is not a candidate in the election".to_owned(),
                }),
                _ => Some(format!("this node's session with etcd is {session}")),
            };
        }
        if !matches!(session, "ready" | "live") {
            return Some(format!("this node's session with etcd is {session}"));
        }
        let view = self.view.borrow();
        match (&view.refused, &view.roster, age.confirmed_ms()) {
            (Some(refused), ..) => Some(refused.clone()),
            (None, Some(_), Some(confirmed)) => age.is_stale().then(|| {
                let bound = age.bound_ms();
                format!("last heard from etcd {confirmed} ms ago, more than {bound} ms")
            }),
            (None, ..) => Some("etcd has not sent the candidates yet".to_owned()),
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.session() == "closed"
    }

    pub(super) fn state(&self, age: Age, caller: Option<&Process>) -> ElectionState {
        let mut view = self.view.borrow().clone();
        let held = internal::local_state(&self.election).held;
        let own_term = held.as_ref().map(|held| &held.term);
        // The clock may have ended a term this moment.
        if let Some(over) = own_term.filter(|term| !term.is_valid()) {
            let now = millis(self.inside().env().unix_time());
            view.term_history.end_own(over.fencing_token(), now);
        }
        let roster = view.roster.as_ref();
        let blocker = roster.and_then(Roster::blocker);
        let identity = |lease| {
            let mut members = roster?.members().iter();
            let member = members.find(|member| member.lease_id() == lease)?;
            Some(member.identity().to_owned())
        };
        ElectionState {
            election: self.election.name().to_owned(),
            now_unix_ms: millis(self.inside().env().unix_time()),
            own: self.own(caller),
            leader: roster
                .and_then(|roster| leader(roster, own_term))
                .map(Member::from),
            roster: roster.map(|roster| roster.members().iter().map(Member::from).collect()),
            revision: roster.map(Roster::revision),
            age_ms: age.confirmed_ms(),
            stale: age.is_stale(),
            blocked_by: blocker.map(|blocker| key(blocker.key())),
            terms: view.term_history.list(),
            endpoints: self
                .endpoints
                .borrow()
                .iter()
                .map(EndpointState::from)
                .collect(),
            challenges: self
                .inside()
                .allows_challenges()
                .then(|| Challenge::all(&self.challenged.borrow(), identity)),
            refused: view.refused,
            evacuations: self.orders.standing(),
            newest_version: self.orders.newest_version(&self.election),
        }
    }

    pub(super) fn inside(&self) -> Inside<'_> {
        Inside::from(&self.election)
    }

    pub(super) fn identity(&self) -> &str {
        self.inside().identity()
    }
}

/// Returns the leader as a node with that last term of its own knows it. The node's clock knows the end of its own term
/// before etcd reports it, if etcd reports it at all.
fn leader<'a>(roster: &'a Roster, own: Option<&Term>) -> Option<&'a eldest::Member> {
    let Some(term) = own else {
        return roster.leader();
    };
    let is_own = |member: &&eldest::Member| {
        member.create_revision() == term.fencing_token() && member.key() == term.key()
    };
    let seen = || roster.leader().filter(|leader| !is_own(leader));
    if !term.is_valid() {
        return seen();
    }
    let mut members = roster.members().iter();
    members.find(is_own).or_else(seen)
}

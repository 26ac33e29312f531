//! Manages the connections to the endpoints: makes them, and moves a lane to another endpoint after a failure.
//!
//! A client over several endpoints would pick one at random for every call, dead ones included. So each lane stays with
//! one endpoint and one connection until a call fails there, or a preferred endpoint answers again.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::Client;
use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use tokio::sync::{Notify, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::access::Access;
use super::call::{CallError, timeout, unanswered, within};
use super::direct;
use super::endpoint::{self, Endpoint, Place};
use super::endpoint_status::{self, EndpointStatus};
use super::fresh;
use super::lane::{Lane, Ticket};
use super::names::{Name, Named};
use super::nearness::Nearness;
use super::pings::{self, PING_EVERY, PING_TIMEOUT};
use super::places::Places;
use super::source;
use super::switches::{Switch, Switches};
use crate::runtime::SharedEnv;
use eldest_core::error::{Class, RequestError};
use eldest_core::kv::Header;
use eldest_core::time::Time;

/// The number of request timeouts for which an attempt to connect continues, even after the request that began it has
/// timed out. Each check of a user's password takes etcd 60 ms and more of a processor, one after the other. If each
/// attempt ended with its request, the members of a large cluster that has restarted would repeat their checks and
/// never get an answer in time.
const ATTEMPT: u32 = 4;

/// The endpoints and the connections to them.
pub struct Pool {
    pub(super) env: SharedEnv,
    pub(super) access: Access,
    pub(super) request_timeout: Duration,
    /// The timeout of the transactions by which sessions challenge each other and answer.
    pub(super) challenge_timeout: Duration,
    /// True if connecting has a request timeout of its own.
    connects_first: bool,
    lease: Arc<Connection>,
    observers: Arc<Connection>,
    data: Arc<Connection>,
    /// Locked last: no other lock is taken under it.
    places: Mutex<Places>,
    /// Held while the list is being replaced.
    pub(super) replacing: tokio::sync::Mutex<()>,
    /// Locked last, like `places`.
    named: Mutex<Named>,
    /// True if the members that etcd lists replace the named endpoints.
    pub(super) follows_members: bool,
    /// True if servers whose linearizable reads may be stale are refused.
    fresh_reads: bool,
    /// Notified of an event that a lookup may resolve.
    pub(super) troubled: Arc<Notify>,
    /// The cluster that answered the last linearizable read; zero before the first.
    pub(super) cluster: AtomicU64,
    /// The numbers of endpoints that belong to another cluster, as their last probes showed, so that each is logged
    /// once. Locked last.
    strangers: Mutex<BTreeSet<usize>>,
    /// The session's identity, for metrics.
    pub(super) identity: Option<Arc<str>>,
    /// The session's data centre.
    pub(super) data_center: Option<String>,
    /// The statuses of the endpoints that users see.
    seen: watch::Sender<Arc<[EndpointStatus]>>,
    /// Notified of an event that may change which endpoint is probed, and when.
    pub(super) changed: Arc<Notify>,
    /// Notifies receivers that the list of endpoints was replaced.
    pub relisted: watch::Sender<()>,
    /// Cancelled when the session is closed or dropped.
    pub(super) closed: CancellationToken,
    _dropped: DropGuard,
}

/// One lane's connection.
pub(super) struct Connection {
    current: Mutex<Current>,
    switches: Arc<Switches>,
    /// Held while connecting: with a user, every connect costs etcd a password check.
    connecting: tokio::sync::Mutex<()>,
    /// The generation with which the lane last moved to a preferred endpoint, for the streams of earlier generations.
    pub(super) moved: watch::Sender<u64>,
}

pub(super) struct Current {
    /// The endpoint in use.
    pub(super) at: Arc<Place>,
    /// Counts how many times the connection was dropped.
    pub(super) generation: u64,
    pub(super) client: Option<Client>,
    /// The time of etcd's last answer on that client's connection.
    pub(super) heard: Option<Time>,
    /// Attempts in flight, or with a result that no request has taken; one for an endpoint at most.
    attempts: Vec<Attempt>,
}

/// One attempt to connect to an endpoint.
#[derive(Clone)]
pub(super) struct Attempt {
    number: usize,
    pub(super) client: Shared<BoxFuture<'static, Result<Client, RequestError>>>,
}

impl Pool {
    /// Checks the endpoints; connects to nothing.
    ///
    /// # Errors
    /// Says which endpoint is unusable and why.
    pub fn new<E: Into<Endpoint>>(
        env: SharedEnv,
        endpoints: impl IntoIterator<Item = E>,
        access: impl Into<Access>,
        request_timeout: Duration,
    ) -> Result<Pool, String> {
        let endpoints: Vec<_> = endpoints.into_iter().map(Into::into).collect();
        let access = source::access_of(&endpoints, &access.into());
        let endpoints = source::all(endpoints, &access)?;
        let access = access.map(|options| {
            options
                .with_require_leader(true)
                .with_connect_timeout(request_timeout)
                .with_keep_alive(PING_EVERY, PING_TIMEOUT)
                .with_keep_alive_while_idle(true)
        });
        let names = endpoints.iter().cloned().map(Name::of).collect();
        let places = Places::new(endpoints, None, env.now(), || 0);
        let connection = || Arc::new(Connection::at(places.first()));
        let closed = CancellationToken::new();
        Ok(Pool {
            env,
            access,
            request_timeout,
            challenge_timeout: request_timeout,
            connects_first: false,
            lease: connection(),
            observers: connection(),
            data: connection(),
            places: Mutex::new(places),
            replacing: tokio::sync::Mutex::default(),
            named: Mutex::new(Named::new(names)),
            follows_members: false,
            fresh_reads: false,
            troubled: Arc::default(),
            cluster: AtomicU64::new(0),
            strangers: Mutex::default(),
            identity: None,
            data_center: None,
            seen: watch::Sender::new(Arc::from([])),
            changed: Arc::default(),
            relisted: watch::Sender::new(()),
            _dropped: closed.clone().drop_guard(),
            closed,
        })
    }

    /// Configures the pool for a session with the given identity, which prefers the endpoints of its data centre, if it
    /// names one.
    ///
    /// # Errors
    /// Says which data centre is unusable and why.
    pub fn for_session(
        mut self,
        identity: &str,
        data_center: Option<&str>,
    ) -> Result<Self, String> {
        let places = self.places(|places| places.all().to_vec());
        let endpoints: Vec<_> = places.iter().map(|place| place.endpoint.clone()).collect();
        endpoint::check_own(data_center, &endpoints)?;
        let places = Places::new(endpoints, data_center, self.env.now(), || self.chance());
        for lane in Lane::ALL {
            self.connection(lane).lock().at = places.first();
        }
        self.places = Mutex::new(places);
        self.data_center = data_center.map(str::to_owned);
        self.identity = Some(identity.into());
        self.publish();
        Ok(self)
    }

    /// Follows the members that etcd lists.
    pub fn following_members(mut self, follows: bool) -> Self {
        self.follows_members = follows;
        self
    }

    /// Sets the timeout of the transactions by which sessions challenge each other and answer. By default, it is the
    /// request timeout.
    pub fn with_challenge_timeout(mut self, timeout: Duration) -> Self {
        self.challenge_timeout = timeout;
        self
    }

    /// Refuses servers whose linearizable reads may be stale.
    pub fn with_fresh_reads(mut self, fresh: bool) -> Self {
        self.fresh_reads = fresh;
        self
    }

    /// Configures the pool for operators: it also queries members that know no leader, to report their status.
    /// Connecting takes no time from a request, because no request is retried.
    pub fn for_operators(mut self) -> Self {
        self.connects_first = true;
        self.access = self
            .access
            .map(|options| options.with_require_leader(false));
        self
    }

    /// Returns the endpoint that a lane uses now.
    #[cfg(test)]
    pub(super) fn endpoint(&self, lane: Lane) -> String {
        self.ticket(lane).url().to_owned()
    }

    /// Returns the lane's client, connected first if need be, with the ticket for [`Pool::report`].
    #[cfg(test)]
    pub(super) async fn client(&self, lane: Lane) -> Result<(Client, Ticket), RequestError> {
        let mut ticket = self.ticket(lane);
        let limit = self.request_timeout;
        let connected = self.within(limit, self.connected(lane, &mut ticket)).await;
        let result = connected.unwrap_or_else(|| Err(timed_out(&ticket, limit).unsent()));
        match result {
            Ok(client) => Ok((client, ticket)),
            Err(failure) => Err(self.blamed(&ticket, failure)),
        }
    }

    /// Returns the endpoints in their given order, beginning with the one in use.
    pub(super) fn in_order(&self) -> Vec<Endpoint> {
        let in_use = self.ticket(Lane::Data).at.number;
        let places = self.places(|places| places.all().to_vec());
        let first = places.iter().position(|place| place.number == in_use);
        let (before, after) = places.split_at(first.unwrap_or(0));
        let all = after.iter().chain(before);
        all.map(|place| place.endpoint.clone()).collect()
    }

    pub(super) fn access(&self) -> &Access {
        &self.access
    }

    /// Returns the timeout of each request.
    pub fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    /// Returns the time of the deadline clock.
    pub fn now(&self) -> Time {
        self.env.now()
    }

    /// Records whether a member of another cluster answers at an endpoint. Returns `true` if that is news.
    pub(super) fn is_new_stranger(&self, number: usize, is_stranger: bool) -> bool {
        let strangers = self.strangers.lock();
        let mut strangers = strangers.unwrap_or_else(PoisonError::into_inner);
        if is_stranger {
            return strangers.insert(number);
        }
        strangers.remove(&number);
        false
    }

    /// Returns `true` if etcd knows which user sends the requests.
    pub fn is_as_user(&self) -> bool {
        self.access.is_as_user()
    }

    /// Returns the number of endpoints.
    pub fn size(&self) -> usize {
        self.places(|places| places.all().len())
    }

    pub(super) fn random(&self) -> u64 {
        self.env.random()
    }

    /// Returns a random number that spreads the probes; with a single endpoint there are none.
    pub(super) fn chance(&self) -> u64 {
        match self.size() {
            1 => 0,
            _ => self.random(),
        }
    }

    /// Reads one key, only to learn that etcd answers.
    pub async fn probe(&self, key: &[u8]) -> Result<Header, RequestError> {
        let (header, _) = self.read(Lane::Data, key).await?;
        Ok(header)
    }

    /// Sends one request over the lane, under the timeout. If etcd refuses the connection's token, it sends the request
    /// again over a newly authenticated connection, because etcd applied nothing.
    pub(super) async fn call<T, F, R>(&self, lane: Lane, request: F) -> Result<T, RequestError>
    where
        F: Fn(Client) -> R,
        R: Future<Output = Result<T, CallError>>,
    {
        let (answer, _) = self.call_with_ticket(lane, request).await?;
        Ok(answer)
    }

    /// Sends a request as [`Pool::call`] does, for streams, whose later failures are reported as well.
    pub(super) async fn call_with_ticket<T, F, R>(
        &self,
        lane: Lane,
        request: F,
    ) -> Result<(T, Ticket), RequestError>
    where
        F: Fn(Client) -> R,
        R: Future<Output = Result<T, CallError>>,
    {
        self.call_within(self.request_timeout, lane, request).await
    }

    /// Sends a request as [`Pool::call`] does, under a timeout of its own.
    pub(super) async fn call_within<T, F, R>(
        &self,
        limit: Duration,
        lane: Lane,
        request: F,
    ) -> Result<(T, Ticket), RequestError>
    where
        F: Fn(Client) -> R,
        R: Future<Output = Result<T, CallError>>,
    {
        let mut ticket = self.ticket(lane);
        if self.connects_first {
            // The request itself reports a failure of the connection.
            drop(self.within(limit, self.connected(lane, &mut ticket)).await);
        }
        let (mut sent, mut reauthenticated) = (false, false);
        let outcome = self
            .within(limit, async {
                loop {
                    let client = self.connected(lane, &mut ticket).await?;
                    sent = true;
                    // Boxed: tonic's futures are 30 kB, and callers join many of them.
                    let answer = Box::pin(request(client)).await;
                    let answer = answer.map_err(|error| error.at(ticket.url()));
                    match answer {
                        Err(refusal) if self.is_stale(&refusal) && !reauthenticated => {
                            self.report(&ticket, &refusal);
                            (sent, reauthenticated) = (false, true);
                        }
                        answer => return answer,
                    }
                }
            })
            .await;
        match outcome {
            Some(Ok(answer)) => {
                self.heard(&ticket);
                Ok((answer, ticket))
            }
            Some(Err(failure)) => Err(self.blamed(&ticket, failure)),
            None if sent => Err(self.blamed(&ticket, timed_out(&ticket, limit))),
            None => Err(self.blamed(&ticket, timed_out(&ticket, limit).unsent())),
        }
    }

    /// Waits for a later message of a stream: runs `work` within the timeout, and reports its failure.
    pub(super) async fn follow_up<T>(
        &self,
        ticket: &Ticket,
        work: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, RequestError> {
        let limit = self.request_timeout;
        match self.within(limit, work).await {
            Some(Ok(answer)) => {
                self.heard(ticket);
                Ok(answer)
            }
            Some(Err(error)) => Err(self.blamed(ticket, error.at(ticket.url()))),
            None => Err(self.blamed(ticket, timed_out(ticket, limit))),
        }
    }

    /// Records that etcd has just answered on the ticket's connection.
    pub(super) fn heard(&self, ticket: &Ticket) {
        let now = self.env.now();
        let mut current = self.connection(ticket.lane).lock();
        if current.generation == ticket.generation {
            current.heard = Some(now);
        }
    }

    /// Reports a failure that the user of a stream received, and returns it.
    pub(super) fn blamed(&self, ticket: &Ticket, mut failure: RequestError) -> RequestError {
        if failure.class == Class::Stale && !self.is_stale(&failure) {
            failure.class = Class::Auth;
        }
        let heard = self.connection(ticket.lane).lock().heard_of(ticket);
        pings::explain(&mut failure, heard.map(|heard| self.env.now().since(heard)));
        self.report(ticket, &failure);
        failure
    }

    /// Returns `true` if a new token resolves the failure. Without a user there is no token.
    fn is_stale(&self, failure: &RequestError) -> bool {
        failure.class == Class::Stale && self.access.has_user()
    }

    /// Drops the connection of the ticket, if the lane still uses it and the failure requires it.
    pub(super) fn report(&self, ticket: &Ticket, failure: &RequestError) {
        if !failure.class.moves_on() {
            return;
        }
        if failure.class == Class::Stale {
            return self.reauthenticate(ticket);
        }
        let (now, chance) = (self.env.now(), self.chance());
        // The connection is dropped after the lock is released.
        let (next, _given_up) = {
            let mut current = self.connection(ticket.lane).lock();
            if current.generation != ticket.generation {
                return;
            }
            current.generation += 1;
            current.at = self.places(|places| places.failed(ticket.lane, &ticket.at, now, chance));
            (Arc::clone(&current.at), current.client.take())
        };
        if self.is_followed() {
            self.troubled.notify_one();
        }
        if next.number == ticket.at.number {
            return;
        }
        self.changed.notify_one();
        self.publish();
        crate::metrics::endpoint_switched(ticket.lane.name());
        let switch = Switch {
            lane: ticket.lane.name(),
            from: ticket.url().to_owned(),
            to: next.url().to_owned(),
            why: failure.message.clone(),
        };
        let switches = &self.connection(ticket.lane).switches;
        switches.happened(&self.env, switch);
    }

    /// Drops the connections; a later call opens new ones.
    pub fn hang_up(&self) {
        self.closed.cancel();
        self.give_up_all();
    }

    /// Handles a refused token: etcd no longer accepts the token of the ticket's connection. The other lanes have
    /// tokens of the same age.
    fn reauthenticate(&self, ticket: &Ticket) {
        if self.ticket(ticket.lane).generation == ticket.generation {
            self.give_up_all();
        }
    }

    /// Drops the connection of each lane, and keeps its endpoint.
    fn give_up_all(&self) {
        for lane in Lane::ALL {
            // Dropped after the lock is released.
            let _given_up = {
                let mut current = self.connection(lane).lock();
                current.generation += 1;
                (current.client.take(), std::mem::take(&mut current.attempts))
            };
        }
    }

    /// Leaves the lane's present endpoint for a reason that no call reported.
    pub fn leave(&self, lane: Lane, why: &str) {
        let ticket = self.ticket(lane);
        let failure = RequestError::new(Class::Retry, why, ticket.url());
        self.report(&ticket, &failure);
    }

    /// Returns the statuses of the endpoints: the present ones at once, then every change.
    pub fn endpoints_seen(&self) -> watch::Receiver<Arc<[EndpointStatus]>> {
        self.seen.subscribe()
    }

    /// Shows users the status of the endpoints. Called without a lock.
    pub(super) fn publish(&self) {
        let used = Lane::ALL.map(|lane| (lane, self.ticket(lane).at.number));
        let now = self.env.now();
        let statuses = self.places(|places| endpoint_status::all(places, used, now));
        if let Some(identity) = &self.identity {
            endpoint_status::measure(identity, &statuses);
        }
        self.seen.send_if_modified(|seen| {
            let differs = **seen != *statuses;
            *seen = statuses.into();
            differs
        });
    }

    /// Reads or changes the measurements of the endpoints. `act` locks nothing.
    pub(super) fn nearness<T>(&self, act: impl FnOnce(&mut Nearness) -> T) -> T {
        self.places(|places| act(&mut places.nearness))
    }

    /// Reads or changes the list of endpoints. `act` locks nothing.
    pub(super) fn places<T>(&self, act: impl FnOnce(&mut Places) -> T) -> T {
        act(&mut self.places.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads or changes the names from which the list is made. `act` locks nothing.
    pub(super) fn named<T>(&self, act: impl FnOnce(&mut Named) -> T) -> T {
        act(&mut self.named.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns `true` if the list is kept up to date in the background.
    pub fn is_followed(&self) -> bool {
        self.follows_members || self.named(|named| named.has_sources())
    }

    /// Fails if the endpoint is a name that was not found yet.
    pub(super) fn found(&self, at: &Place) -> Result<(), RequestError> {
        match self.named(|named| named.missing(at.url())) {
            Some(why) => Err(RequestError::new(Class::Retry, why, at.url()).unsent()),
            None => Ok(()),
        }
    }

    /// Returns the number of each lane's endpoint.
    pub(super) fn used(&self) -> [usize; 3] {
        Lane::ALL.map(|lane| self.ticket(lane).at.number)
    }

    /// Returns `true` if the lane has moved to a preferred endpoint since that ticket, and has left the ticket's
    /// endpoint.
    pub(super) fn has_moved(&self, ticket: &Ticket) -> bool {
        let moved = *self.connection(ticket.lane).moved.borrow();
        moved > ticket.generation && self.ticket(ticket.lane).at.number != ticket.at.number
    }

    pub(super) fn connection(&self, lane: Lane) -> &Arc<Connection> {
        match lane {
            Lane::Lease => &self.lease,
            Lane::Observers => &self.observers,
            Lane::Data => &self.data,
        }
    }

    pub(super) fn ticket(&self, lane: Lane) -> Ticket {
        self.connection(lane).lock().ticket(lane)
    }

    /// Returns the lane's client. Keeps `ticket` at the connection that is being used or made, also when cancelled.
    async fn connected(&self, lane: Lane, ticket: &mut Ticket) -> Result<Client, RequestError> {
        let connection = self.connection(lane);
        if let Some(client) = connection.lock().take_up(lane, ticket) {
            return Ok(client);
        }
        // Boxed: callers join many of these, and few connect.
        Box::pin(self.connect(lane, ticket)).await
    }

    /// Connects as [`Pool::connected`] does, for a lane that has no client.
    async fn connect(&self, lane: Lane, ticket: &mut Ticket) -> Result<Client, RequestError> {
        let connection = self.connection(lane);
        let _turn = connection.connecting.lock().await;
        // The request before this one has connected, or has left this endpoint. The little time that is left must then
        // not count against the next endpoint.
        let waited_for = ticket.clone();
        if let Some(client) = connection.lock().take_up(lane, ticket) {
            return Ok(client);
        }
        if *ticket != waited_for {
            *ticket = waited_for;
            let why = "the endpoint was given up while others connected to it";
            return Err(RequestError::new(Class::Retry, why, ticket.url()).unsent());
        }
        let attempt = self.attempt(connection, &ticket.at);
        let half = self.request_timeout / 2;
        let soon = timeout(&*self.env, half, attempt.client.clone()).await;
        let overdue = soon.is_none();
        let client = match soon {
            Some(client) => client,
            None => attempt.client.clone().await,
        };
        let mut current = connection.lock();
        current.forget(&attempt);
        let client = client?;
        if current.generation == ticket.generation {
            current.client = Some(client.clone());
            current.heard = Some(self.env.now());
            if overdue {
                // The connection gets a new generation, so that the little time that is left does not count against it.
                current.generation += 1;
                let why = "connecting left too little time for the request";
                return Err(RequestError::new(Class::Retry, why, ticket.url()).unsent());
            }
        }
        Ok(client)
    }

    /// Returns the attempt to connect to that endpoint, started if there is none. It continues by itself.
    pub(super) fn attempt(&self, connection: &Arc<Connection>, at: &Place) -> Attempt {
        let mut current = connection.lock();
        let number = at.number;
        let mut attempts = current.attempts.iter();
        if let Some(attempt) = attempts.find(|attempt| attempt.number == number) {
            return attempt.clone();
        }
        let (found, server) = (self.found(at), at.server());
        let url = at.url().to_owned();
        let (env, access) = (Arc::clone(&self.env), self.access.clone());
        let (limit, fresh_reads) = (self.request_timeout, self.fresh_reads);
        let client = async move {
            found?;
            let client = access.connect(&*env, server?).await?;
            within(&*env, limit, &url, direct::check(&client)).await?;
            if fresh_reads {
                within(&*env, limit, &url, fresh::check(&client)).await?;
            }
            Ok(client)
        };
        let client = client.boxed().shared();
        let attempt = Attempt { number, client };
        current.attempts.push(attempt.clone());
        let (env, connection) = (Arc::clone(&self.env), Arc::downgrade(connection));
        let (limit, begun) = (self.request_timeout * ATTEMPT, attempt.clone());
        self.env.spawn(
            async move {
                let going_on = async {
                    let _ = begun.client.clone().await;
                    // A lane that returns to this endpoint finds it connected.
                    std::future::pending::<()>().await;
                };
                timeout(&*env, limit, going_on).await;
                if let Some(connection) = connection.upgrade() {
                    connection.lock().forget(&begun);
                }
            }
            .boxed(),
        );
        attempt
    }

    pub(super) async fn within<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        timeout(&*self.env, limit, work).await
    }
}

fn timed_out(ticket: &Ticket, limit: Duration) -> RequestError {
    unanswered(limit, ticket.url())
}

impl Connection {
    fn at(at: Arc<Place>) -> Self {
        let current = Current {
            at,
            generation: 0,
            client: None,
            heard: None,
            attempts: Vec::new(),
        };
        Self {
            current: Mutex::new(current),
            switches: Arc::default(),
            connecting: tokio::sync::Mutex::default(),
            moved: watch::Sender::default(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Current> {
        // Every change under this lock is complete in itself.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Current {
    pub(super) fn ticket(&self, lane: Lane) -> Ticket {
        Ticket {
            lane,
            at: Arc::clone(&self.at),
            generation: self.generation,
        }
    }

    /// Returns when etcd last answered on the ticket's connection, if the lane still uses it.
    fn heard_of(&self, ticket: &Ticket) -> Option<Time> {
        self.heard
            .filter(|_| self.client.is_some() && self.generation == ticket.generation)
    }

    /// Removes the attempt: the next one at that endpoint starts from the beginning.
    pub(super) fn forget(&mut self, attempt: &Attempt) {
        self.attempts
            .retain(|other| !other.client.ptr_eq(&attempt.client));
    }

    fn take_up(&self, lane: Lane, ticket: &mut Ticket) -> Option<Client> {
        *ticket = self.ticket(lane);
        self.client.clone()
    }
}

/// A pool that the streams share.
pub(super) type SharedPool = Arc<Pool>;

#[cfg(test)]
mod tests;

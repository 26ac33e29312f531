//! Manages the endpoints: chooses one, connects to it, and moves to the next one after a failure.
//!
//! A client over several endpoints would pick one at random for every call and keep asking dead ones, so each
//! lane stays with one endpoint and one connection until a call fails there.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::Client;
use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};

use super::access::Access;
use super::call::{CallError, timeout};
use super::direct;
use super::endpoint;
use super::failure;
use super::switches::{Switch, Switches};
use crate::runtime::SharedEnv;
use eldest_core::error::{Class, RequestError};
use eldest_core::kv::Header;

/// More often than every 5 s a default etcd cuts the connection. A backstop only: every call has its timeout.
const PING_EVERY: Duration = Duration::from_secs(6);
const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// For how many request timeouts an attempt to connect goes on, whoever waits for it. etcd checks a user's password for
/// 60 ms and more of a processor, for one after the other: were each attempt given up with the request that began it, the
/// members of a large cluster that has restarted would ask for one check after the other, and never be answered in time.
const ATTEMPT: u32 = 4;

/// Requests that share a connection. Renewals have their own, so that a burst of events does not delay them; so has what
/// onlookers watch, so that it delays no hand-over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Lane {
    /// The lease and what verifies its renewals.
    Lease,
    /// What users look on at.
    Onlookers,
    /// Everything else.
    Data,
}

impl Lane {
    fn name(self) -> &'static str {
        match self {
            Lane::Lease => "lease",
            Lane::Onlookers => "onlookers",
            Lane::Data => "data",
        }
    }
}

/// Which connection a request went through, so that its failure is not blamed on a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket {
    lane: Lane,
    at: usize,
    generation: u64,
}

/// The endpoints and the connections to them.
pub(crate) struct Pool {
    env: SharedEnv,
    endpoints: Vec<String>,
    access: Access,
    request_timeout: Duration,
    /// Connecting has a request timeout of its own.
    connects_first: bool,
    lease: Arc<Connection>,
    onlookers: Arc<Connection>,
    data: Arc<Connection>,
}

/// One lane's connection.
#[derive(Default)]
struct Connection {
    current: Mutex<Current>,
    switches: Arc<Switches>,
    /// Held while connecting: with a user, every connect costs etcd a password check.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Current {
    /// The endpoint in use.
    at: usize,
    /// Counts the times that the connection was given up.
    generation: u64,
    client: Option<Client>,
    /// Under way, or not yet taken up; one for an endpoint at most.
    attempts: Vec<Attempt>,
}

/// One attempt to connect to an endpoint.
#[derive(Clone)]
struct Attempt {
    at: usize,
    client: Shared<BoxFuture<'static, Result<Client, RequestError>>>,
}

impl Pool {
    /// Checks the endpoints; connects to nothing.
    ///
    /// # Errors
    /// Says which endpoint is unusable and why.
    pub(crate) fn new(
        env: SharedEnv,
        endpoints: &[String],
        access: impl Into<Access>,
        request_timeout: Duration,
    ) -> Result<Pool, String> {
        if endpoints.is_empty() {
            return Err("no etcd endpoint given".to_owned());
        }
        let access = access.into();
        let endpoints = endpoint::all(endpoints, &access)?;
        let access = access.map(|options| {
            options
                .with_require_leader(true)
                .with_connect_timeout(request_timeout)
                .with_keep_alive(PING_EVERY, PING_TIMEOUT)
                .with_keep_alive_while_idle(true)
                .with_auto_token_refresh(true)
        });
        Ok(Pool {
            env,
            endpoints,
            access,
            request_timeout,
            connects_first: false,
            lease: Arc::default(),
            onlookers: Arc::default(),
            data: Arc::default(),
        })
    }

    /// For operators: asks members that know no leader as well, to hear how they are, and takes no time for connecting
    /// from a request, since none is repeated.
    pub(crate) fn for_operators(mut self) -> Self {
        self.connects_first = true;
        self.access = self
            .access
            .map(|options| options.with_require_leader(false));
        self
    }

    /// The endpoint that a lane uses now.
    #[cfg(test)]
    pub(crate) fn endpoint(&self, lane: Lane) -> &str {
        let at = self.connection(lane).lock().at;
        &self.endpoints[at]
    }

    /// The lane's client, connected first if need be, with the ticket for [`Pool::report`].
    #[cfg(test)]
    pub(crate) async fn client(&self, lane: Lane) -> Result<(Client, Ticket), RequestError> {
        let mut ticket = self.ticket(lane);
        let connected = self.within(self.connected(lane, &mut ticket)).await;
        let result = connected.unwrap_or_else(|| Err(self.timed_out(ticket).unsent()));
        match result {
            Ok(client) => Ok((client, ticket)),
            Err(failure) => Err(self.blamed(ticket, failure)),
        }
    }

    /// The endpoints, in the order in which they were given.
    pub(super) fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    pub(super) fn access(&self) -> &Access {
        &self.access
    }

    pub(super) fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    /// How many endpoints there are.
    pub(crate) fn size(&self) -> usize {
        self.endpoints.len()
    }

    pub(super) fn random(&self) -> u64 {
        self.env.random()
    }

    /// Asks etcd for the state of one key, only to learn that it answers.
    pub(crate) async fn probe(&self, key: &[u8]) -> Result<Header, RequestError> {
        let (header, _) = self.read(Lane::Data, key).await?;
        Ok(header)
    }

    /// Sends one request over the lane, under the timeout.
    pub(super) async fn call<T, F, R>(&self, lane: Lane, request: F) -> Result<T, RequestError>
    where
        F: FnOnce(Client) -> R,
        R: Future<Output = Result<T, CallError>>,
    {
        let (answer, _) = self.call_with_ticket(lane, request).await?;
        Ok(answer)
    }

    /// [`Pool::call`] for streams, whose later failures are to be reported as well.
    pub(super) async fn call_with_ticket<T, F, R>(
        &self,
        lane: Lane,
        request: F,
    ) -> Result<(T, Ticket), RequestError>
    where
        F: FnOnce(Client) -> R,
        R: Future<Output = Result<T, CallError>>,
    {
        let mut ticket = self.ticket(lane);
        if self.connects_first {
            // What is wrong with the connection, the request itself tells.
            drop(self.within(self.connected(lane, &mut ticket)).await);
        }
        let mut sent = false;
        let outcome = self
            .within(async {
                let client = self.connected(lane, &mut ticket).await?;
                sent = true;
                let endpoint = self.endpoint_of(ticket);
                // Boxed: tonic's futures are 30 kB, and callers join many of them.
                let answer = Box::pin(request(client)).await;
                answer.map_err(|error| error.at(endpoint))
            })
            .await;
        match outcome {
            Some(Ok(answer)) => Ok((answer, ticket)),
            Some(Err(failure)) => Err(self.blamed(ticket, failure)),
            None if sent => Err(self.blamed(ticket, self.timed_out(ticket))),
            None => Err(self.blamed(ticket, self.timed_out(ticket).unsent())),
        }
    }

    /// A later message of a stream: `work` under the timeout, its failure reported.
    pub(super) async fn follow_up<T>(
        &self,
        ticket: Ticket,
        work: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, RequestError> {
        match self.within(work).await {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(error)) => Err(self.blamed(ticket, error.at(self.endpoint_of(ticket)))),
            None => Err(self.blamed(ticket, self.timed_out(ticket))),
        }
    }

    /// Reports a failure that a stream's user noticed, and hands it back.
    pub(super) fn blamed(&self, ticket: Ticket, failure: RequestError) -> RequestError {
        self.report(ticket, &failure);
        failure
    }

    /// Gives up the connection behind the ticket, if it is still the lane's, when the failure says so.
    pub(crate) fn report(&self, ticket: Ticket, failure: &RequestError) {
        if !failure.class.moves_on() {
            return;
        }
        let next = (ticket.at + 1) % self.endpoints.len();
        // Dropped after the lock.
        let _given_up = {
            let mut current = self.connection(ticket.lane).lock();
            if current.generation != ticket.generation {
                return;
            }
            current.generation += 1;
            current.at = next;
            current.client.take()
        };
        if next == ticket.at {
            return;
        }
        crate::metrics::endpoint_switched(ticket.lane.name());
        let switch = Switch {
            lane: ticket.lane.name(),
            from: self.endpoints[ticket.at].clone(),
            to: self.endpoints[next].clone(),
            why: failure.message.clone(),
        };
        let switches = &self.connection(ticket.lane).switches;
        switches.happened(&self.env, switch);
    }

    /// Drops the connections; a later call would open new ones.
    pub(crate) fn hang_up(&self) {
        for connection in [&self.lease, &self.onlookers, &self.data] {
            let _given_up = {
                let mut current = connection.lock();
                current.generation += 1;
                (current.client.take(), std::mem::take(&mut current.attempts))
            };
        }
    }

    /// Leaves the lane's present endpoint for a reason that no call told.
    pub(crate) fn leave(&self, lane: Lane, why: &str) {
        let ticket = self.ticket(lane);
        let failure = RequestError::new(Class::Retry, why, self.endpoint_of(ticket));
        self.report(ticket, &failure);
    }

    /// The endpoint behind a ticket.
    pub(super) fn endpoint_of(&self, ticket: Ticket) -> &str {
        &self.endpoints[ticket.at]
    }

    fn connection(&self, lane: Lane) -> &Arc<Connection> {
        match lane {
            Lane::Lease => &self.lease,
            Lane::Onlookers => &self.onlookers,
            Lane::Data => &self.data,
        }
    }

    fn ticket(&self, lane: Lane) -> Ticket {
        self.connection(lane).lock().ticket(lane)
    }

    /// The lane's client. Keeps `ticket` at the connection that is being used or made, also when cancelled.
    async fn connected(&self, lane: Lane, ticket: &mut Ticket) -> Result<Client, RequestError> {
        let connection = self.connection(lane);
        if let Some(client) = connection.lock().take_up(lane, ticket) {
            return Ok(client);
        }
        // Boxed: callers join many of these, and few connect.
        Box::pin(self.connect(lane, ticket)).await
    }

    /// [`Pool::connected`] for a lane that has no client.
    async fn connect(&self, lane: Lane, ticket: &mut Ticket) -> Result<Client, RequestError> {
        let connection = self.connection(lane);
        let _turn = connection.connecting.lock().await;
        // Whoever had the turn before has connected, or has given up this endpoint. Then the little time that is
        // left must not be held against the next one.
        let waited_for = *ticket;
        if let Some(client) = connection.lock().take_up(lane, ticket) {
            return Ok(client);
        }
        if *ticket != waited_for {
            *ticket = waited_for;
            let why = "the endpoint was given up while others connected to it";
            return Err(
                RequestError::new(Class::Retry, why, self.endpoint_of(waited_for)).unsent(),
            );
        }
        let attempt = self.attempt(connection, ticket.at);
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
            if overdue {
                // Of another generation, so that it is not blamed for the little time that is left.
                current.generation += 1;
                let why = "connecting left too little time for the request";
                return Err(
                    RequestError::new(Class::Retry, why, self.endpoint_of(*ticket)).unsent(),
                );
            }
        }
        Ok(client)
    }

    /// The attempt to connect to that endpoint, begun if there is none. It goes on by itself.
    fn attempt(&self, connection: &Arc<Connection>, at: usize) -> Attempt {
        let mut current = connection.lock();
        if let Some(attempt) = current.attempts.iter().find(|attempt| attempt.at == at) {
            return attempt.clone();
        }
        let endpoint = self.endpoints[at].clone();
        let (env, access) = (Arc::clone(&self.env), self.access.clone());
        let limit = self.request_timeout;
        let client = async move {
            let options = access.now(&*env, &endpoint).await;
            let options =
                options.map_err(|why| RequestError::new(Class::Retry, why, &endpoint).unsent())?;
            let client = env.connect(endpoint.clone(), options).await;
            let client = client.map_err(|error| failure::from_error(&error, &endpoint).unsent())?;
            direct::check_new(&*env, limit, &client, &endpoint).await?;
            Ok(client)
        };
        let client = client.boxed().shared();
        let attempt = Attempt { at, client };
        current.attempts.push(attempt.clone());
        let (env, connection) = (Arc::clone(&self.env), Arc::downgrade(connection));
        let (limit, begun) = (self.request_timeout * ATTEMPT, attempt.clone());
        self.env.spawn(
            async move {
                let going_on = async {
                    let _ = begun.client.clone().await;
                    // Whoever comes back to this endpoint finds it connected.
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

    fn timed_out(&self, ticket: Ticket) -> RequestError {
        let message = format!("no answer within {:?}", self.request_timeout);
        RequestError::new(Class::Retry, message, self.endpoint_of(ticket))
    }

    async fn within<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        timeout(&*self.env, self.request_timeout, work).await
    }
}

impl Connection {
    fn lock(&self) -> MutexGuard<'_, Current> {
        // Every change under this lock is complete in itself.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Current {
    fn ticket(&self, lane: Lane) -> Ticket {
        Ticket {
            lane,
            at: self.at,
            generation: self.generation,
        }
    }

    /// Whoever tries that endpoint next begins anew.
    fn forget(&mut self, attempt: &Attempt) {
        self.attempts
            .retain(|other| !other.client.ptr_eq(&attempt.client));
    }

    fn take_up(&self, lane: Lane, ticket: &mut Ticket) -> Option<Client> {
        *ticket = self.ticket(lane);
        self.client.clone()
    }
}

/// Shared by the streams.
pub(super) type SharedPool = Arc<Pool>;

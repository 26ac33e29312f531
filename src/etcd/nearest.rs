//! Measures how near the endpoints are, and moves the lanes to a preferred endpoint that is well, between requests.
//!
//! A probe asks a member for its status, which the member answers by itself, needs no permission and writes nothing. It
//! connects without the user, because a check of the password costs etcd 60 ms and more of a processor. [`Nearness`]
//! decides what is probed when.
//!
//! [`Nearness`]: super::nearness::Nearness

use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use etcd_client::{Client, GetOptions};
use futures::FutureExt;
use tracing::Instrument;

use super::call::{CallError, header, kv};
use super::lane::{Lane, Ticket};
use super::lease;
use super::pool::Pool;
use super::successor::Opened;
use crate::metrics;
use eldest_core::error::{Class, RequestError};
use eldest_core::kv::Header;

/// Round trips that one probe measures; the shortest counts.
const SAMPLES: u32 = 3;

/// Why a lane was not moved.
enum Stays {
    /// The endpoint is not fit for use, though it answers probes.
    Refused(RequestError),
    /// The lane has changed meanwhile, or cannot be judged now.
    Overtaken,
}

impl Pool {
    /// Probes the endpoints and moves the lanes in the background, until the session is closed or dropped. `key` is one
    /// that the session may read.
    pub(crate) fn keep_near(self: &Arc<Self>, key: Arc<[u8]>, span: tracing::Span) {
        let task = run(Arc::downgrade(self), key).instrument(span);
        self.env.spawn(task.boxed());
    }

    fn used(&self) -> [usize; 3] {
        Lane::ALL.map(|lane| self.ticket(lane).at)
    }

    /// Probes what is due, and moves what is to be moved.
    async fn round(&self, key: &[u8]) {
        let due = self.nearness().due(&self.used(), self.env.now());
        if due.is_empty() {
            return;
        }
        futures::future::join_all(due.into_iter().map(|at| self.probe_endpoint(at))).await;
        self.follow_all(key).await;
        self.publish();
    }

    /// Moves the lanes for which another endpoint is preferred.
    pub(super) async fn follow_all(&self, key: &[u8]) {
        for lane in Lane::ALL {
            self.follow(lane, key).await;
        }
        self.renew_here().await;
    }

    async fn probe_endpoint(&self, at: usize) {
        let measured = self.round_trip(at).await;
        let outcome = match &measured {
            Ok(_) => "answered",
            Err(failure) => {
                let (endpoint, why) = (&self.endpoints[at].url, failure.to_string());
                tracing::debug!(target: "eldest::etcd", endpoint, why, "probe not answered");
                "failed"
            }
        };
        metrics::endpoint_probed(self.identity.as_deref().unwrap_or_default(), outcome);
        let (now, chance) = (self.env.now(), self.chance());
        self.nearness().probed(at, now, measured.ok(), chance);
    }

    /// The shortest of several round trips to an endpoint: over the connection of the requests if that is there, or over
    /// one that is made for it.
    async fn round_trip(&self, at: usize) -> Result<Duration, RequestError> {
        let open = {
            let data = self.connection(Lane::Data).lock();
            (data.at == at).then(|| data.client.clone()).flatten()
        };
        let client = match open {
            Some(client) => client,
            None => self.connect_to_probe(at).await?,
        };
        let mut shortest = Duration::MAX;
        // The first one of a connection that is made by it is longer than the others.
        for _ in 0..=SAMPLES {
            let sent = self.env.now();
            self.in_time(at, Box::pin(ask_status(&client))).await?;
            shortest = shortest.min(self.env.now().since(sent));
        }
        Ok(shortest)
    }

    async fn connect_to_probe(&self, at: usize) -> Result<Client, RequestError> {
        let url = &self.endpoints[at].url;
        let failed = |why| RequestError::new(Class::Retry, why, url).unsent();
        let access = self.access.clone().without_user();
        let options = access.now(&*self.env, url).await.map_err(failed)?;
        let connect = self.env.connect(url.clone(), options);
        self.in_time(at, async { Ok(connect.await?) }).await
    }

    /// `work` under the timeout. No lane is blamed for its failure.
    async fn in_time<T>(
        &self,
        at: usize,
        work: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, RequestError> {
        let url = &self.endpoints[at].url;
        match self.within(work).await {
            Some(done) => done.map_err(|error| error.at(url)),
            None => Err(RequestError::new(
                Class::Retry,
                format!("no answer within {:?}", self.request_timeout),
                url,
            )),
        }
    }

    /// Moves the lane if another endpoint is preferred.
    async fn follow(&self, lane: Lane, key: &[u8]) {
        let from = self.ticket(lane).at;
        let Some(to) = self.nearness().better_than(from, self.env.now()) else {
            return;
        };
        match self.move_to(lane, to, key).await {
            Ok(()) => {
                let round_trip = {
                    let mut nearness = self.nearness();
                    nearness.moved(to, self.env.now());
                    nearness.round_trip(to)
                };
                let why = self.nearness().why(to, self.env.now()).as_str();
                let [from, to] = [from, to].map(|at| &self.endpoints[at].url);
                metrics::endpoint_switched(lane.name());
                tracing::info!(target: "eldest::etcd", lane = lane.name(), from, to, ?round_trip, why, "moved to the preferred endpoint");
            }
            Err(Stays::Overtaken) => {}
            Err(Stays::Refused(failure)) => {
                let (now, chance) = (self.env.now(), self.chance());
                self.nearness().refused(to, now, chance);
                let why = failure.to_string();
                tracing::warn!(target: "eldest::etcd", lane = lane.name(), why, "preferred endpoint not usable");
            }
        }
    }

    /// Connects at `to` and makes sure that it shows the same etcd, no older. Then it opens the keepalive stream there, if
    /// the lane has one, and only then lets the lane's requests go there.
    async fn move_to(&self, lane: Lane, to: usize, key: &[u8]) -> Result<(), Stays> {
        let before = self.ticket(lane);
        let idle = self.connection(lane).lock().client.is_none();
        if idle && lane != Lane::Data && self.ticket(Lane::Data).at == to {
            return self.switch(before, to, None).map(drop);
        }
        let here = self.call(lane, async |client| head(&client, key).await);
        // A failure of it has moved the lane already.
        let here = here.await.map_err(|_| Stays::Overtaken)?;
        let client = self.connect_at(lane, to).await.map_err(Stays::Refused)?;
        let there = self.in_time(to, Box::pin(head(&client, key))).await;
        let there = there.map_err(Stays::Refused)?;
        if let (Some(here), Some(there)) = (here, there) {
            self.compare(here, there, to)?;
        }
        let renewing = self.renewing.lock();
        let renewing = renewing.unwrap_or_else(PoisonError::into_inner).upgrade();
        let Some(successor) = renewing.filter(|_| lane == Lane::Lease) else {
            return self.switch(before, to, Some(client)).map(drop);
        };
        let opened = self.in_time(to, Box::pin(lease::open(&client, successor.lease)));
        let (keeper, answers) = opened.await.map_err(|failure| match failure.class {
            Class::LeaseGone => Stays::Overtaken,
            _ => Stays::Refused(failure),
        })?;
        let ticket = self.switch(before, to, Some(client))?;
        successor.offer(Opened {
            ticket,
            keeper,
            answers,
        });
        Ok(())
    }

    fn compare(&self, here: Header, there: Header, to: usize) -> Result<(), Stays> {
        let why = if there.cluster != here.cluster {
            "it belongs to another cluster"
        } else if there.revision < here.revision {
            "it shows an older state than the endpoint in use"
        } else {
            return Ok(());
        };
        let url = &self.endpoints[to].url;
        Err(Stays::Refused(RequestError::new(Class::Retry, why, url)))
    }

    /// A connection of the lane's own kind to another endpoint than the lane's.
    async fn connect_at(&self, lane: Lane, to: usize) -> Result<Client, RequestError> {
        let connection = self.connection(lane);
        let attempt = self.attempt(connection, to);
        let connected = self.in_time(to, async { Ok(attempt.client.clone().await) });
        let connected = connected.await;
        connection.lock().forget(&attempt);
        connected?
    }

    /// The lane's next request goes to `to`, unless the lane has changed since `before`.
    fn switch(&self, before: Ticket, to: usize, client: Option<Client>) -> Result<Ticket, Stays> {
        let connection = self.connection(before.lane);
        // The old connection is dropped after the lock; its requests and streams end by themselves.
        let (ticket, _old) = {
            let mut current = connection.lock();
            if current.generation != before.generation {
                return Err(Stays::Overtaken);
            }
            current.generation += 1;
            current.at = to;
            let old = std::mem::replace(&mut current.client, client);
            (current.ticket(before.lane), old)
        };
        connection.moved.send_replace(ticket.generation);
        self.publish();
        Ok(ticket)
    }

    /// A keepalive stream that was being opened while the lane moved is still at the old endpoint: it gets a successor.
    async fn renew_here(&self) {
        let renewing = self.renewing.lock();
        let renewing = renewing.unwrap_or_else(PoisonError::into_inner).upgrade();
        let (ticket, client) = {
            let current = self.connection(Lane::Lease).lock();
            (current.ticket(Lane::Lease), current.client.clone())
        };
        let (Some(successor), Some(client)) = (renewing, client) else {
            return;
        };
        if successor.at() == ticket.at {
            return;
        }
        let opened = Box::pin(lease::open(&client, successor.lease));
        if let Ok((keeper, answers)) = self.in_time(ticket.at, opened).await {
            successor.offer(Opened {
                ticket,
                keeper,
                answers,
            });
        }
    }
}

/// Until the session is closed or dropped.
async fn run(pool: Weak<Pool>, key: Arc<[u8]>) {
    loop {
        let (closed, changed, next) = {
            let Some(pool) = pool.upgrade() else { return };
            let now = pool.env.now();
            let next = pool.nearness().next(&pool.used());
            let next = next.map(|at| pool.env.sleep(at.since(now)));
            (pool.closed.clone(), Arc::clone(&pool.changed), next)
        };
        let due = async {
            match next {
                Some(next) => next.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = closed.cancelled() => return,
            () = changed.notified() => continue,
            () = due => {}
        }
        let Some(pool) = pool.upgrade() else { return };
        tokio::select! {
            () = closed.cancelled() => return,
            // Boxed: it is large, and seldom there.
            () = Box::pin(pool.round(&key)) => {}
        }
    }
}

/// Asks a member that votes and knows a leader. A refusal is an answer, too: with users, etcd 3.4 tells its status to root
/// alone.
async fn ask_status(client: &Client) -> Result<(), CallError> {
    match client.maintenance_client().status().await {
        Ok(status) if status.leader() == 0 => Err(CallError::Odd("it knows no leader")),
        Ok(status) if status.is_learner() => Err(CallError::Odd("it is a learner")),
        Ok(_) => Ok(()),
        Err(error) => {
            let error = CallError::from(error);
            match error.at("").class {
                Class::Denied | Class::Auth => Ok(()),
                _ => Err(error),
            }
        }
    }
}

/// A linearizable read: what etcd's whole cluster shows at this moment. Nothing, if the user may not read the key: etcd
/// refuses that after its leader was asked.
async fn head(client: &Client, key: &[u8]) -> Result<Option<Header>, CallError> {
    let only_header = GetOptions::new().with_count_only();
    match kv(client).get(key, Some(only_header)).await {
        Ok(answer) => header(answer.header()).map(Some),
        Err(error) => {
            let error = CallError::from(error);
            match error.at("").class {
                Class::Denied => Ok(None),
                _ => Err(error),
            }
        }
    }
}

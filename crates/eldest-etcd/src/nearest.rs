//! Measures how near the endpoints are, and moves the lanes, between requests, to a preferred endpoint that answers.
//!
//! A probe reads a member's status. The member answers by itself; the probe needs no permission and writes nothing. It
//! connects without the user, because a check of the password costs etcd 60 ms and more of a processor. [`Nearness`]
//! decides which endpoint is probed, and when.
//!
//! [`Nearness`]: super::nearness::Nearness

use std::sync::{Arc, Weak};
use std::time::Duration;

use etcd_client::{Client, GetOptions, ResponseHeader};
use futures::future::join_all;

use super::call::{CallError, header, kv, unanswered};
use super::endpoint::Place;
use super::lane::{Lane, Ticket};
use super::pool::Pool;
use crate::metrics;
use eldest_core::error::{Class, RequestError};
use eldest_core::kv::Header;
use eldest_core::time::Time;

/// How many round trips one probe measures; the shortest counts.
const SAMPLES: u32 = 3;

pub(super) const FOREIGN: &str = "it belongs to another cluster";

/// Why a lane was not moved.
pub(super) enum Stays {
    /// The endpoint is not fit for use, though it answers probes.
    Refused(RequestError),
    /// The lane has changed meanwhile, or cannot be judged now.
    Overtaken,
}

impl Pool {
    /// Returns the time of the next probe, if one is planned.
    pub(super) fn next_probe(&self) -> Option<Time> {
        let used = self.used();
        self.nearness(|nearness| nearness.next(&used))
    }

    /// Returns the endpoints to probe now.
    pub(super) fn due_probes(&self) -> Vec<usize> {
        let (used, now) = (self.used(), self.env.now());
        self.nearness(|nearness| nearness.due(&used, now))
    }

    /// Probes the endpoints that are due, and moves the lanes that should move.
    async fn round(&self, key: &[u8]) {
        self.leave_unlisted(key).await;
        let due = self.due_probes();
        if !due.is_empty() {
            self.measure(&due).await;
            self.follow_all(key).await;
            self.publish();
        }
    }

    /// Probes the endpoints. A member of another cluster than that of the requests counts as failing, so no lane uses
    /// it while another endpoint answers.
    pub(super) async fn measure(&self, due: &[usize]) {
        let home = self.ticket(Lane::Data).at;
        let due = self.places(|places| {
            let listed = due.iter().filter_map(|at| places.get(*at));
            listed.cloned().collect::<Vec<_>>()
        });
        let probes = due.iter().map(|at| self.round_trip(at));
        let answers: Vec<_> = due.iter().zip(join_all(probes).await).collect();
        let cluster = |answer: &Result<(Duration, Option<u64>), _>| answer.as_ref().ok()?.1;
        let mut at_home = answers.iter().filter(|(at, _)| at.number == home.number);
        let ours = at_home.find_map(|(_, answer)| cluster(answer));
        for (at, answer) in answers {
            let foreign = ours.is_some() && cluster(&answer).is_some_and(|its| Some(its) != ours);
            if self.is_new_stranger(at.number, foreign) {
                let why = format!("{}: {FOREIGN} than {}", at.url(), home.url());
                tracing::warn!(target: "eldest::etcd", why, "endpoint not used");
            }
            self.probed(
                at,
                match answer {
                    Ok(_) if foreign => Err(RequestError::new(Class::Retry, FOREIGN, at.url())),
                    answer => answer.map(|(round_trip, _)| round_trip),
                },
            );
        }
    }

    fn probed(&self, at: &Place, answer: Result<Duration, RequestError>) {
        let outcome = match &answer {
            Ok(_) => "answered",
            Err(failure) => {
                let (endpoint, why) = (at.url(), failure.to_string());
                tracing::debug!(target: "eldest::etcd", endpoint, why, "probe not answered");
                "failed"
            }
        };
        metrics::endpoint_probed(self.identity.as_deref().unwrap_or_default(), outcome);
        let (now, chance) = (self.env.now(), self.chance());
        self.nearness(|nearness| nearness.probed(at.number, now, answer.ok(), chance));
    }

    /// Moves the lanes for which another endpoint is preferred.
    pub(super) async fn follow_all(&self, key: &[u8]) {
        for lane in Lane::ALL {
            self.follow(lane, key).await;
        }
    }

    /// Measures an endpoint, over the connection of the requests if there is one, or over a new connection. Returns the
    /// shortest of several round trips, and the cluster that the member reports.
    async fn round_trip(&self, at: &Place) -> Result<(Duration, Option<u64>), RequestError> {
        let open = {
            let data = self.connection(Lane::Data).lock();
            (data.at.number == at.number)
                .then(|| data.client.clone())
                .flatten()
        };
        let client = match open {
            Some(client) => client,
            None => self.connect_to_probe(at).await?,
        };
        let (mut shortest, mut cluster) = (Duration::MAX, None);
        // The first round trip of a new connection is longer than the others.
        for _ in 0..=SAMPLES {
            let sent = self.env.now();
            cluster = self.in_time(at, Box::pin(ask_status(&client))).await?;
            shortest = shortest.min(self.env.now().since(sent));
        }
        Ok((shortest, cluster))
    }

    async fn connect_to_probe(&self, at: &Place) -> Result<Client, RequestError> {
        self.found(at)?;
        let access = self.access.clone().without_user();
        let connect = Box::pin(access.connect(&*self.env, at.server()?));
        self.in_time(at, async { Ok(connect.await) }).await?
    }

    /// Runs `work` within the timeout. Its failure does not count against any lane.
    pub(super) async fn in_time<T>(
        &self,
        at: &Place,
        work: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, RequestError> {
        let url = at.url();
        let limit = self.request_timeout;
        match self.within(limit, work).await {
            Some(done) => done.map_err(|error| error.at(url)),
            None => Err(unanswered(limit, url)),
        }
    }

    /// Moves the lane if another endpoint is preferred.
    async fn follow(&self, lane: Lane, key: &[u8]) {
        let (before, now) = (self.ticket(lane), self.env.now());
        let better = self.places(|places| {
            let better = places.nearness.better_than(before.at.number, now)?;
            places.get(better).cloned()
        });
        if let Some(to) = better {
            let moved = self.move_to(lane, &to, key).await;
            self.report_move(&before, &to, moved);
        }
    }

    /// Logs and counts the outcome of an attempt to move a lane.
    pub(super) fn report_move(&self, before: &Ticket, to: &Place, moved: Result<(), Stays>) {
        let (lane, now, number) = (before.lane.name(), self.env.now(), to.number);
        match moved {
            Ok(()) => {
                let (round_trip, why) = self.nearness(|nearness| {
                    let why = nearness.why(number, now).as_str();
                    (nearness.round_trip(number), why)
                });
                let (from, to) = (before.url(), to.url());
                metrics::endpoint_switched(lane);
                tracing::info!(target: "eldest::etcd", lane, from, to, ?round_trip, why, "moved to the preferred endpoint");
            }
            Err(Stays::Overtaken) => {}
            Err(Stays::Refused(failure)) => {
                let chance = self.chance();
                self.nearness(|nearness| nearness.refused(number, now, chance));
                let why = failure.to_string();
                tracing::warn!(target: "eldest::etcd", lane, why, "preferred endpoint not usable");
            }
        }
    }

    /// Connects to `to`, and checks that it shows the same etcd at no older state. Only then does the lane's next
    /// request go there.
    pub(super) async fn move_to(
        &self,
        lane: Lane,
        to: &Arc<Place>,
        key: &[u8],
    ) -> Result<(), Stays> {
        let before = self.ticket(lane);
        let idle = self.connection(lane).lock().client.is_none();
        if idle && lane != Lane::Data && self.ticket(Lane::Data).at.number == to.number {
            return self.switch(&before, to, None);
        }
        let here = self.call(lane, |client| async move { head(&client, key).await });
        // This read's failure has already moved the lane.
        let here = here.await.map_err(|_| Stays::Overtaken)?;
        let client = self.connect_at(lane, to).await.map_err(Stays::Refused)?;
        let there = self.in_time(to, Box::pin(head(&client, key))).await;
        let there = there.map_err(Stays::Refused)?;
        if let (Some(here), Some(there)) = (here, there) {
            Self::compare(here, there, to).map_err(Stays::Refused)?;
        }
        self.switch(&before, to, Some(client))
    }

    pub(super) fn compare(here: Header, there: Header, to: &Place) -> Result<(), RequestError> {
        let why = if there.cluster != here.cluster {
            FOREIGN
        } else if there.revision < here.revision {
            "it shows an older state than the endpoint in use"
        } else {
            return Ok(());
        };
        Err(RequestError::new(Class::Retry, why, to.url()))
    }

    /// Makes a connection of the lane's kind to another endpoint.
    pub(super) async fn connect_at(&self, lane: Lane, to: &Place) -> Result<Client, RequestError> {
        let connection = self.connection(lane);
        let attempt = self.attempt(connection, to);
        let connected = self.in_time(to, async { Ok(attempt.client.clone().await) });
        let connected = connected.await;
        connection.lock().forget(&attempt);
        connected?
    }

    /// Sends the lane's next request to `to`, unless the lane has changed since `before`.
    pub(super) fn switch(
        &self,
        before: &Ticket,
        to: &Arc<Place>,
        client: Option<Client>,
    ) -> Result<(), Stays> {
        let connection = self.connection(before.lane);
        // The old connection is dropped after the lock is released; its requests and streams end by themselves.
        let (generation, _old) = {
            let mut current = connection.lock();
            if current.generation != before.generation {
                return Err(Stays::Overtaken);
            }
            current.generation += 1;
            current.at = Arc::clone(to);
            current.heard = Some(self.env.now());
            let old = std::mem::replace(&mut current.client, client);
            (current.generation, old)
        };
        connection.moved.send_replace(generation);
        self.publish();
        Ok(())
    }
}

/// Runs the probes when they are due, until the session is closed or dropped.
pub(super) async fn run(pool: Weak<Pool>, key: Arc<[u8]>) {
    loop {
        let (closed, changed, next) = {
            let Some(pool) = pool.upgrade() else { return };
            let now = pool.env.now();
            let next = pool.next_probe();
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
            biased;
            () = closed.cancelled() => return,
            () = changed.notified() => {}
            () = due => {}
        }
        let Some(pool) = pool.upgrade() else { return };
        tokio::select! {
            biased;
            () = closed.cancelled() => return,
            // Boxed, because it is large and seldom exists.
            () = Box::pin(pool.round(&key)) => {}
        }
    }
}

/// Reads the cluster of a member that votes and knows a leader. A refusal is an answer, too: with users, etcd 3.4 shows
/// its status to root alone.
async fn ask_status(client: &Client) -> Result<Option<u64>, CallError> {
    match client.maintenance_client().status().await {
        Ok(status) if status.leader() == 0 => Err(CallError::Odd("it knows no leader")),
        Ok(status) if status.is_learner() => Err(CallError::Odd("it is a learner")),
        Ok(status) => Ok(status.header().map(ResponseHeader::cluster_id)),
        Err(error) => {
            let error = CallError::from(error);
            match error.at("").class {
                Class::Denied | Class::Auth | Class::Stale => Ok(None),
                _ => Err(error),
            }
        }
    }
}

/// Makes a linearizable read: the present state of etcd's whole cluster. `None` if the user may not read the key: etcd
/// consults its leader before it refuses the read.
pub(super) async fn head(client: &Client, key: &[u8]) -> Result<Option<Header>, CallError> {
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

//! Replaces the list of endpoints at run time: tries the new list first, and then moves the lanes whose endpoint is
//! gone, between requests.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::future::join_all;

use super::endpoint::{self, Endpoint, Place};
use super::endpoint_status::{self, EndpointStatus};
use super::lane::Lane;
use super::names::{self, Name, Named};
use super::nearest::head;
use super::pool::Pool;
use super::source::{self, Source};
use eldest_core::error::{Class, RequestError};
use eldest_core::kv::Header;

/// Why a list was not used.
pub(super) enum Refused {
    /// The endpoint shows another etcd, or an older state.
    Unfit(RequestError),
    /// No endpoint can be used: the failure of each. Those that do not answer come first.
    Silent(Vec<RequestError>),
}

/// The outcome of trying an endpoint.
enum Tried {
    Answers,
    Silent(RequestError),
    Unfit(RequestError),
}

impl Pool {
    /// Checks a list as [`Pool::new`] and [`Pool::for_session`] do.
    ///
    /// # Errors
    /// Says which endpoint is unusable and why.
    pub fn checked(&self, endpoints: Vec<Endpoint>) -> Result<Vec<Endpoint>, String> {
        let access = source::access_of(&endpoints, &self.access);
        let endpoints = source::all(endpoints, &access)?;
        endpoint::check_own(self.data_center.as_deref(), &endpoints)?;
        Ok(endpoints)
    }

    /// Looks up these endpoints, uses them from now on, and waits until every lane uses them. The background task of
    /// [`Pool::keep_near`] moves the lanes, and repeats the lookups.
    ///
    /// # Errors
    /// The failure of an endpoint, if none answers; or, within the answer, the endpoint that shows another etcd. The
    /// list is unchanged then.
    ///
    /// # Cancellation safety
    /// Either list is in use. The lanes follow it in the background.
    pub async fn set_endpoints(
        &self,
        endpoints: Vec<Endpoint>,
        key: &[u8],
    ) -> Result<Result<(), String>, RequestError> {
        let _turn = self.replacing.lock().await;
        let mut names: Vec<Name> = endpoints.into_iter().map(Name::of).collect();
        self.look_up(&mut names).await;
        match self.adopt(names::list(&names), key, true).await {
            Ok(_) => {}
            Err(Refused::Silent(mut failures)) => {
                return Err(names::explained(&names, failures.swap_remove(0)));
            }
            Err(Refused::Unfit(failure)) => {
                return Ok(Err(format!(
                    "etcd endpoint {:?}: {}",
                    failure.endpoint, failure.message
                )));
            }
        }
        self.named(|named| *named = Named::new(names));
        self.troubled.notify_one();
        self.lanes_are_listed().await;
        Ok(Ok(()))
    }

    /// Tries these endpoints and uses them from now on. The caller must hold the turn to replace the list. If `all` is
    /// not set, endpoints that show another etcd are left out, and their failures are returned.
    ///
    /// # Errors
    /// The list is unchanged after an error.
    pub(super) async fn adopt(
        &self,
        endpoints: Vec<Endpoint>,
        key: &[u8],
        all: bool,
    ) -> Result<Vec<RequestError>, Refused> {
        let places = self.places(|places| places.places_for(endpoints));
        if !all && self.is_unknown() {
            // The list is taken without a comparison, as on connecting.
            self.replace(&places, &vec![true; places.len()]);
            return Ok(Vec::new());
        }
        let (mut fit, mut answered) = (Vec::new(), Vec::new());
        let (mut unfit, mut silent) = (Vec::new(), Vec::new());
        for (place, tried) in places.iter().zip(self.try_out(&places, key).await) {
            match tried {
                Tried::Unfit(failure) if all => return Err(Refused::Unfit(failure)),
                Tried::Unfit(failure) => {
                    unfit.push(failure);
                    continue;
                }
                Tried::Silent(failure) => {
                    silent.push(failure);
                    answered.push(false);
                }
                Tried::Answers => answered.push(true),
            }
            fit.push(Arc::clone(place));
        }
        if !answered.contains(&true) {
            silent.extend(unfit);
            if silent.is_empty() {
                let none = RequestError::new(Class::Retry, "no endpoint", "");
                return Err(Refused::Unfit(none));
            }
            return Err(Refused::Silent(silent));
        }
        self.replace(&fit, &answered);
        Ok(unfit)
    }

    /// Returns `true` if no endpoint of the list was found yet, so that there is nothing to compare others with.
    pub(super) fn is_unknown(&self) -> bool {
        self.cluster.load(Ordering::Relaxed) == 0 && !self.has_endpoint()
    }

    /// Returns `true` if the list has an endpoint besides names that were not found yet.
    pub(super) fn has_endpoint(&self) -> bool {
        self.places(|places| {
            let mut all = places.all().iter();
            all.any(|place| Source::of(place.url()).is_none())
        })
    }

    /// Makes a linearizable read at each of the places.
    async fn try_out(&self, places: &[Arc<Place>], key: &[u8]) -> Vec<Tried> {
        let here = self.present(key).await;
        let asked = places.iter().map(|place| async {
            match here {
                Some((at, header)) if at == place.number => Ok(header),
                _ => {
                    let client = self.connect_at(Lane::Data, place).await?;
                    self.in_time(place, Box::pin(head(&client, key))).await
                }
            }
        });
        let answers = join_all(asked).await;
        let headers = answers.iter().flatten().flatten();
        // If no present endpoint answers, the revision is unknown; the cluster may be known from earlier answers.
        let cluster = match self.cluster.load(Ordering::Relaxed) {
            0 => headers.map(|header| header.cluster).next(),
            known => Some(known),
        };
        let known = cluster.map(|cluster| Header {
            cluster,
            member: 0,
            revision: 0,
            term: 0,
        });
        let here = here.and_then(|(_, header)| header).or(known);
        let judged = places
            .iter()
            .zip(answers)
            .map(|(place, answer)| match (here, answer) {
                (Some(here), Ok(Some(there))) => {
                    Self::compare(here, there, place).map_or_else(Tried::Unfit, |()| Tried::Answers)
                }
                (_, Ok(_)) => Tried::Answers,
                (_, Err(failure)) => Tried::Silent(failure),
            });
        judged.collect()
    }

    /// Makes a linearizable read through the endpoint of the requests, or the next one that answers; returns that
    /// endpoint's number as well.
    async fn present(&self, key: &[u8]) -> Option<(usize, Option<Header>)> {
        for _ in 0..self.size() {
            let read =
                self.call_with_ticket(Lane::Data, |client| async move { head(&client, key).await });
            if let Ok((header, ticket)) = read.await {
                return Some((ticket.at.number, header));
            }
        }
        None
    }

    /// Takes the list; `answered`: whether each of its endpoints answered just now.
    fn replace(&self, list: &[Arc<Place>], answered: &[bool]) {
        let now = self.env.now();
        let silent = list
            .iter()
            .zip(answered)
            .filter(|(_, answered)| !**answered);
        let before = self.places(|places| {
            let before = places.all().to_vec();
            let own = self.data_center.as_deref();
            places.replace(list.to_vec(), own, now, || self.random());
            for (place, _) in silent {
                let chance = self.random();
                places.nearness.probed(place.number, now, None, chance);
            }
            before
        });
        if before == list {
            return;
        }
        let [added, removed] = [(list, &*before), (&*before, list)].map(|(these, those)| {
            let gone = |place: &&Arc<Place>| those.iter().all(|other| other.number != place.number);
            let gone = these.iter().filter(gone);
            gone.map(|place| place.url().to_owned()).collect::<Vec<_>>()
        });
        tracing::info!(target: "eldest::etcd", ?added, ?removed, "endpoints changed");
        if let Some(identity) = &self.identity {
            endpoint_status::forget(identity, &removed);
        }
        for lane in Lane::ALL {
            // Ends streams that a failure left behind at an endpoint which is no longer listed.
            let generation = self.ticket(lane).generation;
            let moved = &self.connection(lane).moved;
            moved.send_modify(|moved| *moved = generation.max(*moved));
        }
        self.changed.notify_one();
        self.relisted.send_replace(());
        self.publish();
    }

    /// Moves the lanes whose endpoint is no longer in the list.
    pub(super) async fn leave_unlisted(&self, key: &[u8]) {
        for lane in Lane::ALL {
            // After each refusal, another endpoint is the next best.
            for _ in 0..self.size() {
                let (before, now) = (self.ticket(lane), self.env.now());
                let to = self.places(|places| places.instead_of(lane, &before.at, now));
                let Some(to) = to else { break };
                let idle = self.connection(lane).lock().client.is_none();
                let moved = if idle {
                    self.switch(&before, &to, None)
                } else {
                    self.move_to(lane, &to, key).await
                };
                self.report_move(&before, &to, moved);
            }
            let at = self.ticket(lane).at;
            if self.places(|places| places.get(at.number).is_none()) {
                self.leave(lane, "it is not among the endpoints any more");
            }
        }
    }

    async fn lanes_are_listed(&self) {
        let mut seen = self.endpoints_seen();
        let listed = seen.wait_for(|seen| EndpointStatus::show_every_lane(seen));
        tokio::select! {
            _ = listed => {}
            () = self.closed.cancelled() => {}
        }
    }
}

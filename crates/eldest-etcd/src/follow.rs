//! Keeps the list of endpoints up to date: looks names up again, and follows etcd's own list of members.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{join, join_all};
use tracing::Instrument;

use super::call::CallError;
use super::endpoint::Endpoint;
use super::lane::Lane;
use super::members::{self, Usable};
use super::names::{self, Name, Trouble};
use super::nearest::{self, FOREIGN, head};
use super::nearness::jitter;
use super::operator::members_of;
use super::pool::Pool;
use super::relist::Refused;
use super::source;
use crate::metrics;
use crate::runtime::timeout;
use eldest_core::error::{Class, RequestError};

/// The longest time for one lookup.
const LOOKUP: Duration = Duration::from_secs(5);
/// The shortest time between two rounds; it doubles with each round that follows a failure.
const SOON: Duration = Duration::from_secs(1);
/// How often the time doubles.
const DOUBLINGS: u32 = 4;
/// The average time between two rounds while no lookup fails.
const LATER: Duration = Duration::from_secs(30);

/// One round of lookups.
#[derive(Default)]
struct Round {
    troubles: BTreeSet<Trouble>,
    /// True if a lookup failed that may soon succeed, or the members are changing.
    unsettled: bool,
}

impl Round {
    fn trouble(&mut self, trouble: Trouble) {
        self.troubles.insert(trouble);
    }

    /// Takes etcd's list of members, and returns the endpoints to use: the members that were listed last; the named
    /// endpoints as well, if no member could be read; or the named ones alone, if no member was ever used.
    fn members(
        &mut self,
        answer: Result<Usable, RequestError>,
        known: &mut Option<Vec<Endpoint>>,
        named: Vec<Endpoint>,
    ) -> Vec<Endpoint> {
        let (usable, silent) = match answer {
            Ok(usable) => (usable, false),
            Err(failure) => {
                let silent = !matches!(
                    failure.class,
                    Class::Denied | Class::Auth | Class::Stale | Class::Invalid
                );
                let usable = Usable {
                    refused: vec![failure.to_string()],
                    changing: silent,
                    ..Usable::default()
                };
                (usable, silent)
            }
        };
        self.unsettled |= usable.changing;
        for why in usable.refused {
            self.trouble(Trouble::Members { why });
        }
        if !usable.endpoints.is_empty() {
            *known = Some(usable.endpoints);
        }
        let mut list = known.clone().unwrap_or_default();
        if silent || list.is_empty() {
            names::add(&mut list, named);
        }
        list
    }
}

impl Pool {
    /// Probes the endpoints, moves the lanes, looks names up and follows the members in the background, until the
    /// session is closed or dropped. `key` is one that the session may read.
    pub fn keep_near(self: &Arc<Self>, key: Arc<[u8]>, span: tracing::Span) {
        let near = nearest::run(Arc::downgrade(self), Arc::clone(&key));
        let followed = run(Arc::downgrade(self), key);
        let task = join(near, followed).map(drop).instrument(span);
        self.env.spawn(task.boxed());
    }

    /// Looks up all names once, at the same time. A failed lookup keeps its former result.
    pub(super) async fn look_up(&self, names: &mut [Name]) {
        // The access that these names need: their list may not be in use yet.
        let access = &source::access_of(names.iter().map(Name::named), &self.access);
        let asked = names.iter().map(|name| async {
            let source = name.source()?;
            let found = source.look_up(&*self.env, access);
            let found = timeout(&*self.env, LOOKUP, found).await;
            let found = found.unwrap_or_else(|| Err(format!("no answer within {LOOKUP:?}")));
            self.count_lookup(source.kind(), found.is_ok());
            Some(found)
        });
        let answers = join_all(asked).await;
        for (name, answer) in names.iter_mut().zip(answers) {
            if let Some(answer) = answer {
                name.answered(answer);
            }
        }
    }

    /// Looks up all names once. Returns the URL, the data centre and the endpoint of each named or found endpoint.
    ///
    /// # Errors
    /// Says which name was not found, and why.
    pub async fn found_once(&self) -> Result<Vec<(String, Option<String>, Endpoint)>, String> {
        let mut names = self.named(|named| named.names.clone());
        self.look_up(&mut names).await;
        if let Some((name, why)) = names.iter().find_map(Name::failure) {
            return Err(format!("{name} was not looked up: {why}"));
        }
        let found = names::list(&names).into_iter();
        Ok(found
            .map(|one| (one.url.clone(), one.data_center.clone(), one))
            .collect())
    }

    fn count_lookup(&self, source: &'static str, answered: bool) {
        let identity = self.identity.as_deref().unwrap_or_default();
        let outcome = if answered { "answered" } else { "failed" };
        metrics::endpoints_looked_up(identity, source, outcome);
    }

    /// Looks up all names once, and uses the endpoints found. Returns `true` if no further round is needed soon.
    pub(super) async fn refresh(&self, key: &[u8]) -> bool {
        let mut round = Round::default();
        let _turn = self.replacing.lock().await;
        let mut names = self.named(|named| named.names.clone());
        self.look_up(&mut names).await;
        for name in &names {
            if let Some((name, why)) = name.failure() {
                round.unsettled = true;
                round.trouble(Trouble::Name { name, why });
            }
        }
        let found = names::list(&names);
        self.named(|named| named.names = names);
        if self.is_unknown() {
            // The lanes get an endpoint to which they can switch, and have no connection to lose yet.
            self.use_list(found.clone(), key, &mut round).await;
            self.leave_unlisted(key).await;
        }
        let list = if self.follows_members && self.has_endpoint() {
            let answer = self.listed_members(&found, key).await;
            self.count_lookup("members", answer.is_ok());
            self.named(|named| round.members(answer, &mut named.members, found))
        } else {
            found
        };
        self.use_list(list, key, &mut round).await;
        let new = self.named(|named| named.new_troubles(round.troubles));
        new.iter().for_each(Trouble::log);
        !round.unsettled
    }

    /// Reads the list of members from one member, after a linearizable read there, so that the member knows all changes
    /// that were confirmed before.
    async fn listed_members(&self, named: &[Endpoint], key: &[u8]) -> Result<Usable, RequestError> {
        let cluster = self.cluster.load(Ordering::Relaxed);
        let asked = self.call(Lane::Data, |client| async move {
            head(&client, key).await?;
            let (members, its) = members_of(&client).await?;
            if cluster != 0 && its != cluster {
                return Err(CallError::Odd(FOREIGN));
            }
            Ok(members)
        });
        let members = asked.await?;
        Ok(members::usable(
            &members,
            named,
            &self.in_order(),
            &self.access,
        ))
    }

    async fn use_list(&self, mut list: Vec<Endpoint>, key: &[u8], round: &mut Round) {
        let present = self.places(|places| places.all().to_vec());
        let position = |one: &Endpoint| present.iter().position(|at| at.endpoint == *one);
        // The order of DNS answers must not change the list.
        list.sort_by_key(|one| position(one).unwrap_or(usize::MAX));
        let is_present = list.iter().eq(present.iter().map(|at| &at.endpoint));
        if is_present {
            return;
        }
        let adopted = self.adopt(list, key, false).await;
        let failures = match adopted {
            Ok(unfit) => unfit,
            Err(refused) => {
                round.unsettled = true;
                match refused {
                    Refused::Unfit(failure) => vec![failure],
                    Refused::Silent(failures) => failures,
                }
            }
        };
        for failure in failures {
            let why = failure.to_string();
            round.trouble(Trouble::Endpoints { why });
        }
    }
}

/// Refreshes the list until the session is closed or dropped.
async fn run(pool: Weak<Pool>, key: Arc<[u8]>) {
    let mut hurry = 0;
    loop {
        let Some(pool) = pool.upgrade() else { return };
        let (closed, troubled) = (pool.closed.clone(), Arc::clone(&pool.troubled));
        if !pool.is_followed() {
            drop(pool);
            tokio::select! {
                biased;
                () = closed.cancelled() => return,
                () = troubled.notified() => continue,
            }
        }
        let settled = tokio::select! {
            biased;
            () = closed.cancelled() => return,
            // Boxed, because it is large and seldom exists.
            settled = Box::pin(pool.refresh(&key)) => settled,
        };
        let spacing = pool.env.sleep(SOON * (1 << hurry.min(DOUBLINGS)));
        let rest = if settled {
            LATER.mul_f64(jitter(pool.random()))
        } else {
            Duration::ZERO
        };
        let rest = pool.env.sleep(rest);
        drop(pool);
        let pause = async {
            spacing.await;
            tokio::select! {
                biased;
                () = troubled.notified() => false,
                () = rest => settled,
            }
        };
        let quiet = tokio::select! {
            biased;
            () = closed.cancelled() => return,
            quiet = pause => quiet,
        };
        hurry = if quiet { 0 } else { hurry + 1 };
    }
}

#[cfg(test)]
mod tests;

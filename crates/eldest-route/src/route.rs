//! Determines where the next request goes: to the leader of an election, or to the owner of a partition.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use eldest::internal::{Inside, SharedEnv, timeout};
use eldest::{Election, PartitionMap, Partitions};
use tokio::sync::watch;

use crate::destination::Destination;
use crate::error::{Error, ErrorKind};
use crate::follow::{self, Seen, View};

/// The part of a wait beyond one TTL: an election of etcd's own leader, and the time until a new leader learns of its
/// term.
const BEYOND_TTL: Duration = Duration::from_secs(5);

/// Follows an [`Election`] or [`Partitions`].
pub trait RouteExt {
    /// The route that [`route`](Self::route) returns.
    type Route;

    /// Starts to follow the leader of the election, or the owners of the partitions. A leader that does not
    /// [serve](eldest::Member::is_serving) yet does not count.
    ///
    /// It needs no lease, and only the permission to read. It sends nothing to the leader. One task follows for all
    /// clones of the route, and ends with the last of them. While etcd cannot be reached, the route keeps the last
    /// leader that it knew ([`Route::age`]). If etcd refuses the watch, the route tries again after a third of the TTL.
    ///
    /// # Errors
    ///
    /// `Closed`: the session was closed.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: a dropped call leaves nothing behind.
    fn route(&self) -> impl Future<Output = eldest::Result<Self::Route>> + Send;
}

impl RouteExt for Election {
    type Route = Route;

    async fn route(&self) -> eldest::Result<Route> {
        let inside = Inside::from(self);
        Ok(Route {
            name: self.name().into(),
            env: Arc::clone(inside.env()),
            usual_wait: inside.ttl() + BEYOND_TTL,
            seen: follow::election(self).await?,
            partition: None,
            item: None,
        })
    }
}

impl RouteExt for Partitions {
    type Route = PartitionRoutes;

    async fn route(&self) -> eldest::Result<PartitionRoutes> {
        let inside = Inside::from(self);
        let any = Route {
            name: self.name().into(),
            env: Arc::clone(inside.env()),
            usual_wait: inside.ttl() + BEYOND_TTL,
            seen: follow::partitions(self).await?,
            partition: None,
            item: None,
        };
        Ok(PartitionRoutes {
            partitions: self.clone(),
            any,
        })
    }
}

/// The way to the leader of an election, or to the owner of a partition. Cheap to clone.
///
/// **This is etcd's view.** Only the leader knows whether it acts as leader. So a node must check each request by its
/// own clock (`OnlyWhileLeader` of `eldest-http`, [`Term::is_valid`](eldest::Term::is_valid)), whatever route it took.
#[derive(Clone)]
pub struct Route {
    name: Arc<str>,
    env: SharedEnv,
    usual_wait: Duration,
    seen: watch::Receiver<Seen>,
    /// The partition; `None` for the leader of an election.
    partition: Option<u32>,
    /// The name of the metadata item that has the address.
    item: Option<Arc<str>>,
}

/// The way of a request by one view.
enum Way {
    To(Destination),
    /// The owner of a partition, whose member has left: it finishes its work, has no address and takes no new requests.
    Leaving(Destination),
    Nobody,
    Gone(Error),
}

impl Route {
    /// Returns the name of the election or of the partitions.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the same route, with the address that an item of the announcement's metadata names, instead of the
    /// announcement's address.
    pub fn by_metadata(mut self, key: impl AsRef<str>) -> Self {
        self.item = Some(key.as_ref().into());
        self
    }

    /// Returns the leader, or the partition's owner, by the newest view, or `None` if there is none or no view exists
    /// yet. Reads memory.
    pub fn destination(&self) -> Option<Destination> {
        match self.way() {
            Way::To(destination) | Way::Leaving(destination) => Some(destination),
            Way::Nobody | Way::Gone(_) => None,
        }
    }

    /// Returns how long ago etcd last confirmed that the view is complete, as
    /// [`Observer::age`](eldest::Observer::age) does, or `None` before the first view.
    pub fn age(&self) -> Option<Duration> {
        let as_of = self.seen.borrow().freshness.as_ref()?.as_of()?;
        Some(self.env.now().since(as_of))
    }

    /// Returns how long [`Routed`](crate::Routed) waits by default: one TTL and 5 seconds. A leader that dies is
    /// replaced within that time, if its session has the TTL of this one.
    pub fn usual_wait(&self) -> Duration {
        self.usual_wait
    }

    /// Returns the leader, or the partition's owner. Waits for one if there is none.
    ///
    /// # Errors
    ///
    /// `NoLeader`: there was none within `limit`. `NoView`: the session was closed, or etcd refuses to show the keys.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe.
    pub async fn wait(&self, limit: Duration) -> Result<Destination, Error> {
        let next = timeout(&*self.env, limit, self.next()).await;
        next.unwrap_or_else(|| Err(self.nobody(limit)))
    }

    /// Waits until that node's term is over, as far as etcd shows: another term has begun, or no node leads or owns the
    /// partition. Also returns when the route can no longer see that, because the session was closed or etcd refuses to
    /// show the keys. While etcd cannot be reached, it waits ([`Route::age`]).
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe.
    pub async fn ended(&self, node: &Destination) {
        let mut seen = self.seen.clone();
        loop {
            let same = |to: &Destination| to.fencing_token() == node.fencing_token();
            let goes_on = matches!(self.choose_way(&seen.borrow_and_update().view), Way::To(to) | Way::Leaving(to) if same(&to));
            if !goes_on || seen.changed().await.is_err() {
                return;
            }
        }
    }

    /// Makes the error after a wait without a leader.
    pub(crate) fn nobody(&self, waited: Duration) -> Error {
        let known = match self.seen.borrow().view {
            View::Unknown => "etcd has not shown the election yet",
            _ => "nobody came",
        };
        let message = format!("{}: {known} within {waited:?}", self.what());
        Error::new(ErrorKind::NoLeader, message)
    }

    pub(crate) fn what(&self) -> String {
        match self.partition {
            Some(partition) => format!("partition {partition} of {:?}", self.name),
            None => format!("{:?}", self.name),
        }
    }

    pub(crate) fn env(&self) -> &SharedEnv {
        &self.env
    }

    /// Waits for a leader, or for an owner that has not left.
    pub(crate) async fn next(&self) -> Result<Destination, Error> {
        let mut seen = self.seen.clone();
        loop {
            match self.choose_way(&seen.borrow_and_update().view) {
                Way::To(destination) => return Ok(destination),
                Way::Gone(error) => return Err(error),
                Way::Leaving(_) | Way::Nobody => {}
            }
            if seen.changed().await.is_err() {
                return Err(self.closed());
            }
        }
    }

    /// Waits until a term with another token has begun.
    pub(crate) async fn replaced(&self, token: i64) {
        let mut seen = self.seen.clone();
        loop {
            let another =
                |way| matches!(way, Way::To(to) | Way::Leaving(to) if to.fencing_token() != token);
            if another(self.choose_way(&seen.borrow_and_update().view)) {
                return;
            }
            if seen.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn way(&self) -> Way {
        self.choose_way(&self.seen.borrow().view)
    }

    fn choose_way(&self, view: &View) -> Way {
        let item = self.item.as_deref();
        let to = match view {
            View::Unknown => None,
            View::Election(leader) => leader
                .as_ref()
                .map(|leader| Destination::leader(leader, item)),
            View::Partitions(map) => {
                let owner = self.partition.and_then(|partition| map.owner(partition));
                if let Some(owner) = owner.filter(|owner| owner.member().is_none()) {
                    return Way::Leaving(Destination::owner(&owner, item));
                }
                owner.map(|owner| Destination::owner(&owner, item))
            }
            View::Refused(error) => {
                let refused = Error::new(ErrorKind::NoView, self.what());
                return Way::Gone(refused.caused_by(error.clone()));
            }
            View::Closed => return Way::Gone(self.closed()),
            #[cfg(test)]
            View::Named(to) => to.clone(),
        };
        to.map_or(Way::Nobody, Way::To)
    }

    fn closed(&self) -> Error {
        let message = format!("{}: the session was closed", self.what());
        Error::new(ErrorKind::NoView, message)
    }

    /// Makes a route to the leader that a test names.
    #[cfg(test)]
    pub(crate) fn named(seen: watch::Receiver<Seen>) -> Self {
        let env = eldest::internal::System::new().expect("a runtime");
        Self {
            name: "team/e".into(),
            env: Arc::new(env),
            usual_wait: Duration::from_secs(15),
            seen,
            partition: None,
            item: None,
        }
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route")
            .field("name", &self.name)
            .field("partition", &self.partition)
            .field("destination", &self.destination())
            .finish_non_exhaustive()
    }
}

/// The ways to the owners of partitions. Cheap to clone.
#[derive(Debug, Clone)]
pub struct PartitionRoutes {
    partitions: Partitions,
    any: Route,
}

impl PartitionRoutes {
    /// Returns the way to the owner of a key's partition ([`Partitions::partition_for`]).
    ///
    /// While a partition moves, it has no owner. An owner that leaves, and whose work is still ending, has no address:
    /// [`Routed`](crate::Routed) waits for the next owner.
    pub fn to(&self, key: impl AsRef<[u8]>) -> Route {
        self.to_partition(self.partitions.partition_for(key))
    }

    /// Returns the way to the owner of a partition. A number beyond the count never has an owner.
    pub fn to_partition(&self, partition: u32) -> Route {
        Route {
            partition: Some(partition),
            ..self.any.clone()
        }
    }

    /// Returns the same routes, with the address that an item of the announcements' metadata names.
    pub fn by_metadata(mut self, key: impl AsRef<str>) -> Self {
        self.any = self.any.by_metadata(key);
        self
    }

    /// Returns the newest map, or `None` before the first view.
    pub fn map(&self) -> Option<PartitionMap> {
        match &self.any.seen.borrow().view {
            View::Partitions(map) => Some(map.clone()),
            _ => None,
        }
    }

    /// Returns how long ago etcd last confirmed that the view is complete, as [`Route::age`] does.
    pub fn age(&self) -> Option<Duration> {
        self.any.age()
    }
}

//! Marks data centres as evacuated, lifts the marks and lists them. Orders candidates to step down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Session, SessionShared};
use crate::error::Result;
use crate::state::{Evacuate, Evacuation, check_data_center};
use eldest_core::error::{Class, RequestError};
use eldest_core::evacuation::step_down_key;
use eldest_core::kv::{Entry, Reach};
use eldest_etcd::Lane;

impl Session {
    /// Evacuates a data centre, for the elections and partitions of this session's namespace.
    ///
    /// While the mark is in etcd, nodes that [announce](crate::Announcement::with_data_center) that data centre let
    /// others lead:
    ///
    /// * A leader's term ends as soon as there is a candidate elsewhere ([`LostReason::Evacuated`](crate::LostReason)); with
    ///   [`warm_within`](crate::Election::warm_within), up to that limit later.
    ///   Its work has the [grace period](crate::SessionOptions::grace) to finish, then the eldest of the others leads.
    /// * Candidates of that data centre rank behind those elsewhere. A node that joins there waits as well.
    /// * Members of that data centre give up their [partitions](crate::Partitions) to those elsewhere.
    ///
    /// **No leader stops without a successor**: if there is no candidate elsewhere, because all data centres are
    /// evacuated for example, age decides as usual. Locks, semaphores and groups do not change. A candidate that
    /// announces no data centre counts as one elsewhere, as do programs that know nothing of this crate.
    ///
    /// An existing mark is replaced, so that its time starts again. The mark is the key `<namespace>/~evacuated/<data
    /// centre>`; any value counts.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # use eldest::{Session, SessionOptions};
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("ops")).await?;
    /// use std::time::Duration;
    /// use eldest::Evacuate;
    ///
    /// session.evacuate(Evacuate::new("dc1").lasting(Duration::from_secs(7200))).await?;
    /// assert_eq!(session.evacuations().await?[0].data_center(), "dc1");
    /// session.lift("dc1").await?;
    /// # assert!(session.evacuations().await?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `InvalidInput`: a name, a text or the time breaks a rule. `PermissionDenied`, `Unauthenticated`: etcd refused
    /// the session's user, who needs to read and write the key. `Unavailable`: etcd did not answer within the connect
    /// timeout; the mark may exist or not, and the call may be repeated.
    ///
    /// # Cancellation safety
    ///
    /// If the call is dropped midway, the mark may exist or not. A lease without keys may stay until it expires.
    pub async fn evacuate(&self, order: impl Into<Evacuate>) -> Result<Evacuation> {
        let order = order.into();
        order.check()?;
        let shared = self.shared();
        let key = shared.mark(order.data_center());
        let now = shared.env.unix_time();
        let value = order.encode(&shared.settings.identity, now);
        let entry = shared
            .persist(|| shared.put_mark(&key, &value, order.seconds()))
            .await?;
        Ok(Evacuation::decode(order.data_center().as_bytes(), &entry))
    }

    /// Lifts the evacuation of a data centre: its candidates keep their places, and age decides as usual. Returns the
    /// lifted evacuation, or `None` if the data centre was not evacuated.
    ///
    /// # Errors
    ///
    /// As [`Session::evacuate`].
    ///
    /// # Cancellation safety
    ///
    /// If the call is dropped midway, the mark may exist or not.
    pub async fn lift(&self, data_center: impl AsRef<str>) -> Result<Option<Evacuation>> {
        let data_center = data_center.as_ref();
        check_data_center(data_center)?;
        let shared = self.shared();
        let lifted = shared.remove_mark(&shared.mark(data_center)).await?;
        Ok(lifted.map(|entry| Evacuation::decode(data_center.as_bytes(), &entry)))
    }

    /// Returns the evacuated data centres, in the order of their names, by one linearizable read.
    ///
    /// # Errors
    ///
    /// As [`Election::leader`](crate::Election::leader).
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: it only reads.
    pub async fn evacuations(&self) -> Result<Arc<[Evacuation]>> {
        let shared = self.shared();
        let prefix = shared.settings.marks();
        let read = || shared.pool.list(&prefix, Reach::Everything);
        let listed = shared.persist(read).await?;
        Ok(Evacuation::all(&prefix, &listed.entries))
    }
}

impl SessionShared {
    /// Orders the candidate to step down, for at least `seconds`. Returns the order's lease, or `None` if the
    /// candidate's key is gone.
    pub(crate) async fn order_step_down(
        &self,
        candidate: &Entry,
        by: &str,
        seconds: i64,
    ) -> Result<Option<i64>> {
        let marks = self.settings.marks();
        let key = step_down_key(&marks, &candidate.key, candidate.create_revision);
        let lease = self.persist(|| self.pool.grant(seconds)).await?.id;
        let put = || {
            let pool = &self.pool;
            pool.put_order(&key, candidate, (by.as_bytes(), lease))
        };
        match self.persist(put).await {
            Ok(true) => Ok(Some(lease)),
            put => {
                let withdrawn = self.withdraw(lease).await;
                put.and(withdrawn).map(|()| None)
            }
        }
    }

    /// Withdraws an order to step down.
    pub(crate) async fn withdraw(&self, lease: i64) -> Result<()> {
        self.persist(|| self.pool.revoke(lease)).await.map(drop)
    }

    fn mark(&self, data_center: &str) -> Vec<u8> {
        [&self.settings.marks(), data_center.as_bytes()].concat()
    }

    /// Puts the mark in place of the existing one, with a lease of its own if it ends by itself.
    async fn put_mark(
        &self,
        key: &[u8],
        value: &[u8],
        seconds: Option<i64>,
    ) -> Result<Entry, RequestError> {
        let (_, before) = self.pool.read(Lane::Data, key).await?;
        let lease = match seconds {
            Some(seconds) => self.pool.grant(seconds).await?.id,
            None => 0,
        };
        let mod_revision = before.as_ref().map_or(0, |entry| entry.mod_revision);
        let put = self.pool.put_mark(key, mod_revision, (value, lease)).await;
        if let Ok(Some(revision)) = put {
            self.tidy_mark(before.as_ref().map_or(0, |entry| entry.lease))
                .await;
            return Ok(Entry {
                key: key.into(),
                value: value.into(),
                create_revision: before.map_or(revision, |entry| entry.create_revision),
                mod_revision: revision,
                lease,
            });
        }
        self.tidy_mark(lease).await;
        put.and_then(|_| Err(overtaken()))
    }

    /// Deletes the existing mark, and returns it.
    pub(crate) async fn remove_mark(&self, key: &[u8]) -> Result<Option<Entry>> {
        loop {
            let read = || self.pool.read(Lane::Data, key);
            let (_, Some(mark)) = self.persist(read).await? else {
                return Ok(None);
            };
            if self.delete_as_read(&mark, &self.settings.marks()).await? {
                return Ok(Some(mark));
            }
        }
    }

    /// Deletes a key below `prefix` unless it was written since it was read, and returns whether it existed until now. Its
    /// lease is revoked if no other key is bound to it.
    pub(crate) async fn delete_as_read(&self, entry: &Entry, prefix: &[u8]) -> Result<bool> {
        // An earlier attempt may have deleted the key although its answer was lost.
        let tried = AtomicBool::new(false);
        let (key, mod_revision) = (&entry.key, entry.mod_revision);
        let delete = || async {
            let asked = self.pool.delete_if_written_at(key, mod_revision).await;
            asked.inspect_err(|failure| {
                tried.fetch_or(failure.ambiguous, Ordering::Relaxed);
            })
        };
        let existed = self.persist(delete).await?;
        self.tidy(entry.lease, prefix).await;
        Ok(existed || tried.load(Ordering::Relaxed))
    }

    async fn tidy_mark(&self, lease: i64) {
        self.tidy(lease, &self.settings.marks()).await;
    }

    /// Revokes the lease of a key below `prefix` if no key is bound to it any more; otherwise the lease expires.
    pub(crate) async fn tidy(&self, lease: i64, prefix: &[u8]) {
        if lease == 0 {
            return;
        }
        let keys = self.pool.lease_keys(lease, prefix).await;
        if keys.is_ok_and(|keys| keys.is_empty()) {
            let _ = self.pool.revoke(lease).await;
        }
    }
}

/// Makes the error for a mark that another session changed after it was read.
fn overtaken() -> RequestError {
    RequestError::new(Class::Retry, "the mark was changed at the same time", "")
}

//! Names the keys of shared partitions, and hands a member each partition that it comes to own.

mod work;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use twox_hash::XxHash3_64;

use crate::election::{Candidate, Claim, Leadership};
use crate::error::{Error, ErrorKind, Result};
use crate::observe::{Layout, Observer, PartitionMap, PartitionMapObserver};
use crate::session::{Handle, MAX_COUNT, Session, Use, check_name};
use crate::state::{Announcement, Term};
use eldest_core::candidate::{CandidateConfig, WatchScope};
use eldest_core::kv::Reach;
use eldest_core::partitions::{KeyKind, PartitionSet, kind_of};

/// A number of partitions that all members share: **at every instant at most one acts for a partition**, and once
/// things have settled exactly one does, with loads that differ by one at most.
///
/// Each owned partition is a term of leadership of its own, with the guarantees of [`Term`]: it ends before anybody
/// else can own the partition, its [token](Term::fencing_token) is larger than that of every earlier term of the
/// partition, and its work ends before its key goes. What is *not* promised is that a partition always has an owner:
/// when a member dies, its partitions are nobody's until its lease expires; when one is moved, until its work has ended,
/// for the [grace period](crate::SessionOptions::grace) at most. A member whose work goes on beyond the end of its term
/// is no member until that has ended: it keeps what it owns, and what it can take no more goes to others.
///
/// A member that joins is given its share of those who have most, what they took last; one that leaves, or dies, leaves
/// its share to the others; nothing else moves. Nobody decides this: every member watches the same keys and computes the
/// same answer. A cheap handle from [`Session::partitions`](crate::Session::partitions); clone it freely.
///
/// The keys are `<namespace>/~partitions/<name>/<count>/m-<lease>` for members and `.../o-<partition>` for owners, all
/// bound to their session's lease.
///
/// # Changing the count
///
/// A key's partition follows from the count, so two counts must never be in use at once. etcd holds no record of it but
/// the keys themselves: while one member or owner with a count stands, nobody joins with another
/// ([`CountMismatch`](crate::ErrorKind::CountMismatch) names both). To change it stop every member, then start them with
/// the new count; the first of them joins when the last key of the old count is gone, a TTL later at most if a process
/// was killed. Whoever routes by [`Partitions::partition_for`] must be told of the new count as well.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), eldest::BoxError> {
/// # use eldest::{BoxError, CancellationToken, Session, SessionOptions};
/// # let etcd = eldest_testing::Etcd::start().await?;
/// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
/// # let shutdown = CancellationToken::new();
/// # let stop = shutdown.clone();
/// # async fn one_piece_of_work(_: u32, _: i64) {}
/// let partitions = session.partitions("billing", 64)?;
/// assert!(partitions.partition_for("customer-4711") < 64);
/// partitions
///     .run(shutdown, |partition| {
///         # let stop = stop.clone();
///         async move {
///             let lost = partition.lost();
///             while !lost.is_cancelled() {
///                 one_piece_of_work(partition.number(), partition.fencing_token()).await;
///                 # stop.cancel();
///                 # lost.cancelled().await;
///             }
///             Ok::<_, BoxError>(())
///         }
///     })
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Partitions {
    pub(crate) handle: Handle,
    name: Arc<str>,
    /// The keys of all counts.
    family: Arc<[u8]>,
    prefix: Arc<str>,
    count: u32,
}

impl Session {
    /// So many partitions by name, 1 to 65,536, which all sessions that [join](Partitions::join) share among them. Sends
    /// nothing.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: the count is out of bounds, or the name is as it must not be for [`Session::election`]. Partitions
    /// have names of their own, apart from those of elections, locks and semaphores. `CountMismatch`: this session uses
    /// the name with another count.
    pub fn partitions(&self, name: impl AsRef<str>, count: u32) -> Result<Partitions> {
        Partitions::new(self.handle().clone(), name.as_ref(), count)
    }
}

impl Partitions {
    pub(crate) fn new(handle: Handle, name: &str, count: u32) -> Result<Self> {
        check_name(name)?;
        if !(1..=MAX_COUNT).contains(&count) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("the count of partitions is {count}; it must be from 1 to {MAX_COUNT}"),
            ));
        }
        let shared = &handle.shared;
        let what = Use::Partitions { count };
        let (name, _) = shared.names.register(name, what)?;
        let family = shared.settings.prefix(&what.path(&name));
        Ok(Self {
            prefix: format!("{family}{count}/").into(),
            family: family.into_bytes().into(),
            handle,
            name,
            count,
        })
    }

    /// Its name within the session's namespace.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many partitions there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The prefix of its keys, with the final `/`.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The partition that a key belongs to: the XXH3 hash of its bytes with 64 bits and seed 0, modulo the count.
    ///
    /// The function will not change. In other languages use any implementation of XXH3-64; these are its values:
    ///
    /// | key | XXH3-64 | of 64 | of 1,024 |
    /// |---|---|---|---|
    /// | (empty) | `2d06800538d394c2` | 2 | 194 |
    /// | `a` | `e6c632b61e964e1f` | 31 | 543 |
    /// | `abc` | `78af5f94892f3950` | 16 | 336 |
    /// | `user-4711` | `e8a0a5a0080aecb1` | 49 | 177 |
    /// | `billing/invoices/4711` | `f8166bbb1b28304b` | 11 | 75 |
    pub fn partition_for(&self, key: impl AsRef<[u8]>) -> u32 {
        partition_for(key.as_ref(), self.count)
    }

    /// Becomes a member; returns once its key stands in etcd. Its partitions follow: see [`PartitionMembership::owned`].
    ///
    /// Goes on trying while etcd cannot be reached; give it a timeout if that is not wanted.
    ///
    /// # Errors
    ///
    /// `AlreadyCampaigning`: this session is a member, or its work as one goes on. `CountMismatch`: others share the
    /// partitions under another count. Others as for [`Election::campaign`](crate::Election::campaign). Nothing is left
    /// in etcd.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: dropped before it is ready, the key is taken away again in the background.
    pub async fn join(&self) -> Result<PartitionMembership> {
        self.enter(false).await
    }

    pub(crate) async fn enter(&self, persistent: bool) -> Result<PartitionMembership> {
        let settings = &self.handle.shared.settings;
        let config = CandidateConfig {
            watch_scope: WatchScope::Everyone,
            persistent,
            partitions: Some(PartitionSet {
                count: self.count,
                family: Arc::clone(&self.family),
                tag: settings.identity.as_bytes().into(),
            }),
            ..CandidateConfig::default()
        };
        let (name, prefix) = (Arc::clone(&self.name), self.prefix_bytes());
        let candidate =
            Candidate::stand(&self.handle, name, prefix, None, None, None, |_| config).await?;
        Ok(PartitionMembership {
            candidate,
            prefix: self.prefix_bytes(),
            patience: settings.grace + self.handle.patience(),
        })
    }

    /// Who shares the partitions and which is with whom, by one linearizable read.
    ///
    /// # Errors
    ///
    /// `CountMismatch`: nobody shares them under this count, but others do under another. Others as for
    /// [`Election::leader`](crate::Election::leader).
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: it only reads.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # use eldest::{Session, SessionOptions};
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
    /// let partitions = session.partitions("billing", 64)?;
    /// let map = partitions.map().await?;
    /// match map.owner(partitions.partition_for("customer-4711")) {
    ///     Some(owner) => println!("{} has it, at {:?}", owner.identity(), owner.address()),
    ///     None => println!("nobody has it now"),
    /// }
    /// # assert_eq!(map.unowned().count(), 64);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn map(&self) -> Result<PartitionMap> {
        let all = self
            .handle
            .shared
            .roster(&self.family, Reach::Everything)
            .await?;
        self.layout().map(&all)
    }

    /// Looks on: the current state first, then every change. Needs no lease, and only the permission to read. While
    /// etcd cannot be reached, the stream waits. While others share the partitions under another count, and nobody under
    /// this one, each change is an error of the kind `CountMismatch`; the stream goes on.
    ///
    /// # Errors
    ///
    /// `Closed`: the session was closed.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe.
    pub async fn observe(&self) -> Result<PartitionMapObserver> {
        let family = Arc::clone(&self.family);
        let changes = Observer::start(self.handle.clone(), family, Reach::Everything).await?;
        Ok(PartitionMapObserver::new(changes, self.layout()))
    }

    fn layout(&self) -> Layout {
        Layout {
            family: Arc::clone(&self.family),
            prefix: self.prefix_bytes(),
            count: self.count,
        }
    }

    fn prefix_bytes(&self) -> Arc<[u8]> {
        self.prefix.as_bytes().into()
    }
}

impl fmt::Debug for Partitions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partitions")
            .field("name", &self.name)
            .field("count", &self.count)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

fn partition_for(key: &[u8], count: u32) -> u32 {
    (XxHash3_64::oneshot(key) % u64::from(count)) as u32
}

/// A member of those who share partitions. Its key is kept alive, and stands again by itself after a lost lease.
///
/// Dropping it leaves, in the background: the terms of its partitions end, and their keys go when their work has ended.
/// [`Partition`]s that were handed out live on without it, until then.
#[must_use = "dropping a membership leaves"]
pub struct PartitionMembership {
    candidate: Candidate,
    prefix: Arc<[u8]>,
    patience: Duration,
}

impl PartitionMembership {
    /// Waits for the next partition that becomes this member's.
    ///
    /// The deadline is compared at the moment of return: one that was lost on the way is never handed out. A partition
    /// whose term has ended may become this member's again, with a larger token, when the [`Partition`] of that term
    /// was dropped.
    ///
    /// # Errors
    ///
    /// `Ended`: it left. `CountMismatch`: while its lease was lost, others began to share another count. `Closed`: the
    /// session was closed.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: what became its own meanwhile is returned by the next call.
    pub async fn owned(&mut self) -> Result<Partition> {
        loop {
            let leadership = self.candidate.elected().await?;
            // One of ours has no other kind of key.
            if let Some(KeyKind::Partition(number)) = kind_of(&self.prefix, leadership.key()) {
                return Ok(Partition { number, leadership });
            }
        }
    }

    /// Replaces all that this member announces, now and after every rejoin. At most 32 KiB.
    ///
    /// # Errors
    ///
    /// As [`Candidate::proclaim`](crate::Candidate::proclaim).
    ///
    /// # Cancellation safety
    ///
    /// Dropped midway, etcd may or may not have it; the next key will.
    pub async fn proclaim(&self, announcement: impl Into<Announcement>) -> Result<()> {
        self.candidate.proclaim(announcement).await
    }

    /// Leaves: the tokens of all partitions are cancelled, their deadlines frozen a
    /// [grace period](crate::SessionOptions::grace) away at most, and each key goes when its [`Partition`] was dropped,
    /// at the frozen deadline at the latest. Returns when every `Partition` was dropped and every key is gone.
    ///
    /// # Errors
    ///
    /// `Unavailable`: not within the grace period and four request timeouts. Leaving goes on in the background, and this
    /// call may be repeated.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: leaving goes on in the background.
    pub async fn leave(&mut self) -> Result<()> {
        self.candidate.leave_within(self.patience).await
    }

    /// Says that it leaves, and does not wait.
    pub(crate) fn begin_to_leave(&self) -> Result<()> {
        self.candidate.begin_to_leave()
    }
}

impl fmt::Debug for PartitionMembership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartitionMembership")
            .finish_non_exhaustive()
    }
}

/// A partition that this member owns, for one term. Checks and fencing are those of its [`Term`], to which it
/// dereferences: each of its methods means the same here.
///
/// Dropping it, or a panic that unwinds through it, gives the partition back at once; drop it only when the work has
/// ended. If balance still wants it here, this member takes it again, in a new term.
#[must_use = "dropping a partition gives it back"]
pub struct Partition {
    number: u32,
    leadership: Leadership,
}

impl Partition {
    /// Which one, from 0.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// A view to pass to whatever acts for the partition; it does not hold it.
    pub fn term(&self) -> Term {
        self.leadership.term()
    }

    /// Runs a task that belongs to the term, as [`Leadership::spawn`] does: the key is released only after it has ended,
    /// and at the frozen deadline it is dropped.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.leadership.spawn(task);
    }

    pub(crate) fn claim(&self) -> Arc<Claim> {
        self.leadership.claim()
    }
}

impl Deref for Partition {
    type Target = Term;

    fn deref(&self) -> &Term {
        &self.leadership
    }
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partition")
            .field("number", &self.number)
            .field("leadership", &self.leadership)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As published with [`Partitions::partition_for`]; the first three also stand in other implementations' tests.
    #[test]
    fn keys_find_the_partitions_of_the_published_table() {
        for (key, hash, of_64, of_1024) in [
            ("", 0x2d06_8005_38d3_94c2, 2, 194),
            ("a", 0xe6c6_32b6_1e96_4e1f, 31, 543),
            ("abc", 0x78af_5f94_892f_3950, 16, 336),
            ("user-4711", 0xe8a0_a5a0_080a_ecb1, 49, 177),
            ("billing/invoices/4711", 0xf816_6bbb_1b28_304b, 11, 75),
        ] {
            assert_eq!(XxHash3_64::oneshot(key.as_bytes()), hash, "{key}");
            let partitions = [64, 1024].map(|count| partition_for(key.as_bytes(), count));
            assert_eq!(partitions, [of_64, of_1024], "{key}");
        }
        // Beyond the lengths that the function treats each in its own way.
        let long = |key: &[u8]| XxHash3_64::oneshot(key);
        assert_eq!(long(&(0..=255).collect::<Vec<u8>>()), 0x9408_a443_3b95_2d71);
        assert_eq!(long(&[b'x'; 1000]), 0xc0a4_877b_962c_ba82);
    }
}

//! Defines the handles of shared partitions, and hands a member each partition that it wins.

mod handing_over;
mod keeping;
mod preparing;
mod runner;
mod work;

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use twox_hash::XxHash3_64;

use crate::election::{
    Announcer, Candidate, Checkpoint, Claim, Heartbeats, Leadership, MemberSays, Opening,
    prefix_of_partitions, validate_limit,
};
use crate::error::{Error, ErrorKind, Result};
use crate::observe::{Layout, Observer, PartitionMap, PartitionMapObserver};
use crate::session::{Handle, MAX_COUNT, Session, Use, check_name};
use crate::state::{Announcement, Term};
use eldest_core::candidate::{CandidateConfig, WatchScope};
use eldest_core::kv::Reach;
use eldest_core::partitions::{KeyKind, PartitionSet, kind_of};
use eldest_core::reason::EndReason;
use keeping::Keeping;

pub use preparing::ComingPartition;
pub use runner::PartitionRunner;

/// A number of partitions that all members share: **at every instant, at most one member acts for a partition**. Once
/// the members have settled, exactly one member owns each, and every member owns its share, rounded down or up.
///
/// All shares are equal, unless members [announce capacities](crate::Announcement::with_capacity): a member of capacity
/// 2 takes twice as many partitions as one of capacity 1. Members of versions that know no capacities count as 1, and
/// compute the shares as if all did; so announce capacities only when all members know them. While all members [ask for
/// it](crate::Announcement::with_spread_over_data_centers), data centres own equal numbers of partitions.
///
/// Each owned partition is a term of leadership of its own, with the guarantees of [`Term`]: the term ends before
/// another member can own the partition, and its work ends before its key is deleted. Its [token](Term::fencing_token)
/// is larger than that of every earlier term of the partition.
///
/// It is *not* guaranteed that a partition always has an owner. When a member dies, its partitions have no owner until
/// its lease expires. A partition that moves has no owner until its work has ended, for the [grace
/// period](crate::SessionOptions::grace) at most. A member whose work continues beyond the end of its term does not
/// count as a member until that work has ended: it keeps the partitions that it owns, and others take the rest.
///
/// A new member receives its share from the members with most partitions, starting with those they took last. The share
/// of a member that leaves or dies goes to the others. Nothing else moves, except where capacities differ: there, the
/// share of another member may be rounded the other way, which moves one of its partitions at most. No single node
/// decides this: every member watches the same keys and computes the same answer. `Partitions` is a cheap handle from
/// [`Session::partitions`](crate::Session::partitions); clone it freely.
///
/// The keys are `<namespace>/~partitions/<name>/<count>/m-<lease>` for members and `.../o-<partition>` for owners, all
/// bound to their session's lease. A [kept share](Partitions::keep_share_for) is `.../k-<lease>`, with a lease of its own.
/// [Checkpoints](Partition::checkpoint) are `<namespace>/~checkpoint/...`, without
/// a lease.
///
/// # Changing the count
///
/// A key's partition depends on the count, so two counts must never be in use at once. etcd has no record of the count
/// except the keys themselves: while a member or owner with one count exists, no member can join with another
/// ([`CountMismatch`](crate::ErrorKind::CountMismatch) names both). To change it, stop every member, then start them
/// with the new count. The first of them joins when the last key of the old count is gone, a TTL later at most if a
/// process was killed, or when the last kept share ends. Programs that route by [`Partitions::partition_for`] need the new count as well.
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
    /// The prefix of the keys of all counts.
    family: Arc<[u8]>,
    prefix: Arc<str>,
    count: u32,
    warm_within: Option<Duration>,
    /// How long the share of a member that is away is kept.
    keep_share_for: Option<Duration>,
}

impl Session {
    /// Returns the handle of `count` partitions (1 to 65,536) with that name. All sessions that
    /// [join](Partitions::join) share them. Sends nothing.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: the count is out of bounds, or [`Session::election`] would refuse the name. Partitions have
    /// their own names, apart from those of elections, locks and semaphores. `CountMismatch`: this session uses the
    /// name with another count.
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
            warm_within: None,
            keep_share_for: None,
        })
    }

    /// Returns the name within the session's namespace.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of partitions.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the prefix of the keys, with the final `/`.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Makes members that join or run through this handle from now on keep a partition that moves until its next owner
    /// is **ready** for it, for `limit` at most. By default, a partition moves at once.
    ///
    /// A member is ready for a partition once the work of [`PartitionRunner::prepare`] has prepared it, or has failed. The
    /// limit is more than zero and at most 24 h. It counts from when the assignment moved the partition, and nothing
    /// extends it. A next owner that does not prepare is not awaited, nor is one of an earlier version. Use the same limit
    /// on all members.
    ///
    /// That applies where members join, change their capacities, are [evacuated](crate::Session::evacuate) or [hand over
    /// before they leave](PartitionRunner::hand_over_within). A member that leaves, dies, is ill or loses its lease keeps
    /// nothing.
    ///
    /// **The wait changes nothing else.** The assignment is the same, the owner's term and token are valid as ever, and the
    /// next owner may not act before it owns the partition.
    ///
    /// # Errors
    ///
    /// [`Partitions::join`] and [`Partitions::run`] refuse another limit as `InvalidInput`.
    pub fn warm_within(mut self, limit: Duration) -> Self {
        self.warm_within = Some(limit);
        self
    }

    /// Returns the partition that a key belongs to: the XXH3 hash of its bytes with 64 bits and seed 0, modulo the
    /// count.
    ///
    /// The function will not change. In other languages, use any implementation of XXH3-64. These are its values:
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

    /// Joins as a member, and returns once the member's key is in etcd. To receive partitions, await
    /// [`PartitionMembership::owned`].
    ///
    /// The call retries while etcd cannot be reached; add a timeout if it should give up.
    ///
    /// # Errors
    ///
    /// `AlreadyCampaigning`: this session is already a member, or its work as a former member continues.
    /// `CountMismatch`: others share the partitions under another count. Others as for
    /// [`Election::campaign`](crate::Election::campaign). After an error, nothing is left in etcd.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: if the call is dropped before it completes, the key is deleted in the background.
    pub async fn join(&self) -> Result<PartitionMembership> {
        self.enter(false, MemberSays::default()).await
    }

    pub(crate) async fn enter(
        &self,
        persistent: bool,
        member: MemberSays,
    ) -> Result<PartitionMembership> {
        if let Some(limit) = self.warm_within {
            validate_limit("warm_within", limit)?;
        }
        self.check_keep_share_for()?;
        let settings = &self.handle.shared.settings;
        let config = CandidateConfig {
            watch_scope: WatchScope::Everyone,
            persistent,
            warm_within: self.warm_within.unwrap_or_default(),
            partitions: Some(PartitionSet {
                count: self.count,
                family: Arc::clone(&self.family),
                tag: settings.identity.as_bytes().into(),
            }),
            ..CandidateConfig::default()
        };
        let (name, prefix) = (Arc::clone(&self.name), self.prefix_bytes());
        let opening = Opening {
            member,
            ..Opening::default()
        };
        let candidate =
            Candidate::join(&self.handle, name, prefix, None, None, opening, |_| config).await?;
        let keeping = self
            .keep_share_for
            .map(|time| Keeping::start(self, time, candidate.subscribe()));
        Ok(PartitionMembership {
            candidate,
            keeping,
            prefix: self.prefix_bytes(),
            checkpoints: self.checkpoints(),
            patience: settings.grace + self.handle.patience(),
        })
    }

    /// Reads the members and the owner of each partition, by one linearizable read.
    ///
    /// # Errors
    ///
    /// `CountMismatch`: the partitions have no member under this count, but have members under another. Others as for
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

    /// Returns a stream of partition maps: the current one first, then every change.
    ///
    /// An observer needs no lease, and only the permission to read. While etcd cannot be reached, the stream waits.
    /// While the partitions have members under another count, and none under this one, each change is an error of the
    /// kind `CountMismatch`; the stream continues.
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

    /// Returns the prefix of the keys of checkpoints.
    fn checkpoints(&self) -> String {
        let namespace = self.handle.shared.settings.namespace_prefix();
        prefix_of_partitions(&namespace, &self.name, self.count)
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

/// A membership in shared partitions. The session keeps its key alive, and replaces it after a lost lease.
///
/// Dropping it ends the membership, in the background: the terms of its partitions end, and their keys are deleted when
/// their work has ended. [`Partition`]s that it returned continue without it, until then.
#[must_use = "dropping a membership leaves"]
pub struct PartitionMembership {
    // Dropped before the candidate: the kept share is not rewritten while the member leaves.
    keeping: Option<Keeping>,
    candidate: Candidate,
    prefix: Arc<[u8]>,
    /// The prefix of the keys of checkpoints.
    checkpoints: String,
    patience: Duration,
}

impl PartitionMembership {
    /// Waits for the next partition that this member wins.
    ///
    /// The deadline is checked at the moment of return, so a partition that was already lost is never returned. A
    /// partition whose term has ended may return to this member, with a larger token, once the [`Partition`] of that
    /// term has been dropped.
    ///
    /// # Errors
    ///
    /// `Ended`: the member left. `CountMismatch`: while this member's lease was lost, others began to share the
    /// partitions under another count. `Closed`: the session was closed.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: the next call returns a partition that was won meanwhile.
    pub async fn owned(&mut self) -> Result<Partition> {
        loop {
            let leadership = self.candidate.elected().await?;
            // A key of a member's term is always a partition's key.
            if let Some(KeyKind::Partition(number)) = kind_of(&self.prefix, leadership.key()) {
                let checkpoints = format!("{}{number}", self.checkpoints);
                leadership.claim().keep_checkpoints_at(checkpoints);
                return Ok(Partition { number, leadership });
            }
        }
    }

    /// Returns the partitions that are coming to this member, and the announcer of those for which it is ready.
    fn coming(&self) -> Option<(watch::Receiver<BTreeSet<u32>>, Announcer)> {
        self.candidate.coming()
    }

    /// Returns the announcer of what this member says about itself.
    fn announcer(&self) -> Announcer {
        self.candidate.announcer()
    }

    /// Replaces this member's whole announcement (at most 32 KiB), now and after every rejoin.
    ///
    /// # Errors
    ///
    /// As [`Candidate::proclaim`](crate::Candidate::proclaim).
    ///
    /// # Cancellation safety
    ///
    /// If the call is dropped midway, etcd may or may not have the announcement; the next key will have it.
    pub async fn proclaim(&self, announcement: impl Into<Announcement>) -> Result<()> {
        self.candidate.proclaim(announcement).await
    }

    /// Ends the membership, and returns once every [`Partition`] has been dropped and every key is gone.
    ///
    /// The tokens of all partitions are cancelled, and their deadlines are frozen, a [grace
    /// period](crate::SessionOptions::grace) away at most. Each key is deleted when its `Partition` is dropped, and at
    /// the frozen deadline at the latest.
    ///
    /// # Errors
    ///
    /// `Unavailable`: leaving took longer than the grace period plus four request timeouts. Leaving continues in the
    /// background, and this call may be repeated.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: leaving continues in the background.
    pub async fn leave(&mut self) -> Result<()> {
        self.leave_for(EndReason::Left).await
    }

    /// Begins to leave, without waiting.
    async fn leave_for(&mut self, reason: EndReason) -> Result<()> {
        self.stop_keeping();
        self.candidate.leave_within(reason, self.patience).await?;
        if let Some(keeping) = &self.keeping {
            keeping.withdrawn(self.patience).await;
        }
        Ok(())
    }

    /// Stops the task that rewrites and renews the kept share, which stays until its lease expires.
    fn stop_keeping(&self) {
        if let Some(keeping) = &self.keeping {
            keeping.stop();
        }
    }

    /// Withdraws the kept share, so that others take the partitions at once. Leaving waits for that.
    fn keep_no_share(&self) {
        if let Some(keeping) = &self.keeping {
            keeping.withdraw();
        }
    }

    pub(crate) fn begin_to_leave(&self, reason: EndReason) -> Result<()> {
        self.stop_keeping();
        self.candidate.begin_to_leave(reason)
    }
}

impl fmt::Debug for PartitionMembership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartitionMembership")
            .finish_non_exhaustive()
    }
}

/// A partition that this member owns, for one term. It dereferences to its [`Term`], which has the checks and the
/// fencing.
///
/// Dropping it, or a panic that unwinds through it, releases the partition at once; drop it only when the work has
/// ended. If the balance still assigns the partition to this member, the member takes it again, in a new term.
#[must_use = "dropping a partition gives it back"]
pub struct Partition {
    number: u32,
    leadership: Leadership,
}

impl Partition {
    /// Returns the partition's number, from 0.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns a view of the term, for everything that acts for the partition. The view does not hold the partition.
    pub fn term(&self) -> Term {
        self.leadership.term()
    }

    /// Reports that the work on this partition makes progress, for the [stall
    /// timeout](PartitionRunner::stall_timeout); as [`Leadership::heartbeat`] does.
    pub fn heartbeat(&self) {
        self.leadership.heartbeat();
    }

    /// Returns a handle that reports heartbeats, for parts of the work that do not hold the partition.
    pub fn heartbeats(&self) -> Heartbeats {
        self.leadership.heartbeats()
    }

    /// Runs a task that belongs to the term, as [`Leadership::spawn`] does: the key is released only after the task has
    /// ended, and at the frozen deadline the task is dropped.
    ///
    /// # Errors
    ///
    /// `LeadershipLost`: the term has ended. The task was dropped.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        self.leadership.spawn(task)
    }

    /// Saves the progress of the work on this partition for the next owner, in at most 64 KiB, as
    /// [`Leadership::checkpoint`] does for the next leader. It replaces the last checkpoint.
    ///
    /// The checkpoint is the key `<namespace>/~checkpoint/<name>/<count>/<partition>`. With another count, partitions
    /// begin without checkpoints.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # use eldest::{Session, SessionOptions};
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
    /// # let mut member = session.partitions("billing", 1)?.join().await?;
    /// let partition = member.owned().await?;
    /// let from = match partition.last_checkpoint().await? {
    ///     Some(last) => String::from_utf8_lossy(last.value()).parse()?,
    ///     None => 0_u64,
    /// };
    /// // ... the items from `from` to `from + 100` ...
    /// partition.checkpoint((from + 100).to_string()).await?;
    /// # let last = partition.last_checkpoint().await?.expect("saved");
    /// # assert_eq!(last.value(), b"100");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Leadership::checkpoint`].
    ///
    /// # Cancellation safety
    ///
    /// As [`Leadership::checkpoint`].
    pub async fn checkpoint(&self, state: impl AsRef<[u8]>) -> Result<()> {
        self.leadership.checkpoint(state).await
    }

    /// Reads the last checkpoint of this partition, which this owner or an earlier one saved. `None`: nobody has saved
    /// one.
    ///
    /// # Errors
    ///
    /// As [`Leadership::last_checkpoint`].
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: it only reads.
    pub async fn last_checkpoint(&self) -> Result<Option<Checkpoint>> {
        self.leadership.last_checkpoint().await
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
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are published with [`Partitions::partition_for`]; the first three also appear in other
    /// implementations' tests.
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
        // Longer keys than those for which the function has special cases.
        let long = |key: &[u8]| XxHash3_64::oneshot(key);
        assert_eq!(long(&(0..=255).collect::<Vec<u8>>()), 0x9408_a443_3b95_2d71);
        assert_eq!(long(&[b'x'; 1000]), 0xc0a4_877b_962c_ba82);
    }
}

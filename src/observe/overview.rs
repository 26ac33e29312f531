//! Sorts the keys below a namespace into the elections, locks, semaphores, partitions and groups that they belong to.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::partition_map::PartitionMap;
use crate::error::{Error, ErrorKind, Result};
use crate::session::{Path, Session, SessionShared, Use, check_name, is_hidden};
use crate::state::{AsOf, Member, Roster};
use eldest_core::error::{Class, RequestError};
use eldest_core::kv::Entry;

/// All elections, locks, semaphores, partitions and groups below a namespace, or below a name in it, at one revision of
/// etcd.
#[derive(Debug, Clone, PartialEq)]
pub struct Overview {
    revision: i64,
    queues: Vec<Queue>,
}

impl Overview {
    /// Returns the revision of etcd's store that the overview shows.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Returns all queues that have a member, in order of their names: elections and locks first, then semaphores,
    /// partitions and groups. A queue without members has no keys in etcd, so it is not listed.
    pub fn queues(&self) -> &[Queue] {
        &self.queues
    }

    /// Returns the election or lock with exactly that name.
    pub fn election(&self, name: &str) -> Option<&Queue> {
        let mut queues = self.queues.iter();
        queues.find(|queue| queue.kind == QueueKind::Election && queue.name == name)
    }
}

/// The kind of a queue, which determines the meaning of the keys below its prefix.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(tag = "kind", rename_all = "snake_case")
)]
pub enum QueueKind {
    /// An election or a lock. Their keys are the same, as in etcd's own two recipes.
    Election,
    /// A semaphore.
    Semaphore {
        /// The number of permits.
        capacity: usize,
    },
    /// Partitions that their members share.
    Partitions {
        /// The number of partitions.
        count: u32,
    },
    /// A group. Its members have no leader.
    Group,
}

/// One election, lock, semaphore, set of partitions or group, with its candidates or members.
#[derive(Clone, PartialEq)]
pub struct Queue {
    name: String,
    kind: QueueKind,
    roster: Roster,
    map: Option<PartitionMap>,
}

impl Queue {
    /// Returns all queues of these keys, by their prefixes.
    pub(crate) fn all(
        revision: i64,
        namespace: &[u8],
        entries: impl IntoIterator<Item = Entry>,
    ) -> impl Iterator<Item = Self> {
        let mut parents: BTreeMap<Vec<u8>, Vec<Entry>> = BTreeMap::new();
        for entry in entries {
            if let Some(parent) = parent(&entry.key) {
                parents.entry(parent.to_vec()).or_default().push(entry);
            }
        }
        let queue =
            move |(prefix, entries): (Vec<u8>, _)| Self::new(revision, &prefix, namespace, entries);
        parents.into_iter().map(queue)
    }

    fn new(revision: i64, prefix: &[u8], namespace: &[u8], entries: Vec<Entry>) -> Self {
        let path = prefix.strip_prefix(namespace).unwrap_or(prefix);
        let path = path.strip_suffix(b"/").unwrap_or(path);
        let Path { name, what } = Path::parse(&String::from_utf8_lossy(path));
        let mut all = Roster::new(revision, entries);
        let (kind, map) = match what {
            Use::Semaphore { capacity } => (QueueKind::Semaphore { capacity }, None),
            Use::Partitions { count } => {
                let map = PartitionMap::new(&all, prefix, count);
                (QueueKind::Partitions { count }, Some(map))
            }
            Use::Group => {
                all = all.unled();
                (QueueKind::Group, None)
            }
            Use::Election | Use::Lock => (QueueKind::Election, None),
        };
        Self {
            name,
            kind,
            roster: all,
            map,
        }
    }

    fn read_at(&mut self, sent: &AsOf) {
        self.roster = self.roster.clone().with_as_of(Some(sent.clone()));
        if let Some(map) = &mut self.map {
            map.read_at(sent);
        }
    }

    /// Returns the name within the session's namespace.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the kind of the queue.
    pub fn kind(&self) -> QueueKind {
        self.kind
    }

    /// Returns all keys of the queue, eldest first. For partitions, these are the members and the partitions that they
    /// own; [`partition_map`](Queue::partition_map) distinguishes them.
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// Returns the owners of the partitions, or `None` if this queue is not a set of partitions.
    pub fn partition_map(&self) -> Option<&PartitionMap> {
        self.map.as_ref()
    }

    /// Returns `true` if etcd shows that the member leads, or holds the lock or a permit. It returns `false` for a key
    /// without a lease, and for partitions and groups.
    pub fn has_turn(&self, member: &Member) -> bool {
        if member.is_shared() && self.kind == QueueKind::Election {
            let older = self.roster.members().iter();
            let mut older = older.take_while(|older| older.rank() < member.rank());
            return member.lease_id() != 0 && older.all(Member::is_shared);
        }
        let winners = match self.kind {
            QueueKind::Election => 1,
            QueueKind::Semaphore { capacity } => capacity,
            QueueKind::Partitions { .. } | QueueKind::Group => 0,
        };
        member.lease_id() != 0 && member.rank() <= winners
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .field("members", &self.roster.members().len())
            .finish_non_exhaustive()
    }
}

/// The remaining time of a lease, by the clock of etcd's leader, in whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTime {
    left: Duration,
    granted: Duration,
}

impl LeaseTime {
    /// Returns the time until etcd deletes the lease's keys if the lease is not renewed, rounded down.
    pub fn left(self) -> Duration {
        self.left
    }

    /// Returns the TTL: the whole time that every renewal restores.
    pub fn granted(self) -> Duration {
        self.granted
    }
}

impl Session {
    /// Reads all elections, locks, semaphores, partitions and groups that have a member, below the name `below` or in
    /// the whole namespace.
    ///
    /// If `below` is not empty, the overview has the names that equal `below` and those that begin with `below` and a
    /// `/`. The call reads all their keys at one revision. It is meant for people who monitor a namespace, not for
    /// decisions of programs.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # use eldest::{Session, SessionOptions};
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
    /// let _candidate = session.election("billing/scheduler")?.campaign().await?;
    /// let overview = session.overview("billing").await?;
    /// let queue = &overview.queues()[0];
    /// assert_eq!(queue.name(), "billing/scheduler");
    /// assert_eq!(queue.roster().leader().map(|leader| leader.identity()), Some("node-a"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `InvalidInput`: `below` begins or ends with `/`, contains `//` or control characters, begins with `~`, or is
    /// longer than 512 bytes; or both `below` and the session's namespace are empty, which would read the whole store.
    /// Others as for [`Election::leader`](crate::Election::leader).
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: it only reads.
    pub async fn overview(&self, below: impl AsRef<str>) -> Result<Overview> {
        let below = below.as_ref();
        let shared = self.shared();
        let namespace = shared.settings.namespace_prefix();
        if below.is_empty() && shared.settings.is_everywhere() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "the namespace is empty, so a name is required; without one, all keys of etcd would be read",
            ));
        }
        if !below.is_empty() {
            check_name(below)?;
        }
        shared.persist(|| shared.overview(&namespace, below)).await
    }

    /// Reads how much of a lease is left, for example of a [`Member`]'s lease. Returns `None` if the lease is gone. The
    /// call needs no permission in etcd.
    ///
    /// # Errors
    ///
    /// As [`Election::leader`](crate::Election::leader).
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: it only reads.
    pub async fn lease_time(&self, lease_id: i64) -> Result<Option<LeaseTime>> {
        let shared = self.shared();
        let term = shared.persist(|| shared.pool.lease_term(lease_id)).await?;
        Ok(term.map(|term| LeaseTime {
            left: term.left,
            granted: term.granted,
        }))
    }
}

impl SessionShared {
    /// Reads all ranges at the first one's revision.
    async fn overview(&self, namespace: &str, below: &str) -> Result<Overview, RequestError> {
        let sent = AsOf::now(&self.env);
        let mut revision = None;
        let mut entries = Vec::new();
        for path in Path::families(below) {
            let own_level = path != below;
            let prefix = format!(
                "{namespace}{path}{}",
                if path.is_empty() { "" } else { "/" }
            );
            let listed = match self.pool.below(prefix.as_bytes(), revision).await {
                // Without a namespace, permissions are granted on the prefixes that the users need, so a whole range
                // may be denied.
                Err(failure)
                    if own_level
                        && failure.class == Class::Denied
                        && self.settings.is_everywhere() =>
                {
                    continue;
                }
                listed => listed?,
            };
            revision = Some(listed.header.revision);
            entries.extend(listed.entries);
        }
        let revision = revision.unwrap_or_default();
        let mut queues: Vec<Queue> = Queue::all(revision, namespace.as_bytes(), entries).collect();
        let ours = |queue: &Queue| !queue.name.is_empty() && !is_hidden(&queue.name);
        queues.retain(ours);
        for queue in &mut queues {
            queue.read_at(&sent);
        }
        let order = |queue: &Queue| match queue.kind {
            QueueKind::Election => 0,
            QueueKind::Semaphore { .. } => 1,
            QueueKind::Partitions { .. } => 2,
            QueueKind::Group => 3,
        };
        queues.sort_by(|a, b| (order(a), &a.name, a.kind).cmp(&(order(b), &b.name, b.kind)));
        Ok(Overview { revision, queues })
    }
}

/// Returns the prefix, with its `/`, one level above a key, or `None` if there is none.
fn parent(key: &[u8]) -> Option<&[u8]> {
    let slash = key.iter().rposition(|byte| *byte == b'/')?;
    (slash + 1 < key.len()).then(|| &key[..=slash])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_lies_below_the_last_slash_before_its_last_level() {
        assert_eq!(parent(b"ns/a/b/1f"), Some(&b"ns/a/b/"[..]));
        assert_eq!(parent(b"/1f"), Some(&b"/"[..]));
        assert_eq!(parent(b"1f"), None);
        assert_eq!(parent(b"ns/a/"), None, "nobody's key, as for elections");
    }

    #[test]
    fn only_our_own_key_levels_determine_the_kind_of_a_queue() {
        let queue = |prefix: &str| {
            let entry = Entry {
                key: format!("{prefix}1f").into_bytes().into(),
                value: b"node-a"[..].into(),
                create_revision: 5,
                mod_revision: 5,
                lease: 31,
            };
            Queue::new(7, prefix.as_bytes(), b"ns/", vec![entry])
        };
        let kind = |prefix: &str| (queue(prefix).name.clone(), queue(prefix).kind);
        let named = |name: &str, kind| (name.to_owned(), kind);
        assert_eq!(kind("ns/a/b/"), named("a/b", QueueKind::Election));
        assert_eq!(kind("ns/~members/a/b/"), named("a/b", QueueKind::Group));
        let semaphore = QueueKind::Semaphore { capacity: 3 };
        assert_eq!(kind("ns/~semaphore/a/b/3/"), named("a/b", semaphore));
        let partitions = QueueKind::Partitions { count: 64 };
        assert_eq!(kind("ns/~partitions/a/64/"), named("a", partitions));
        for odd in [
            "~semaphore/a/many",
            "~semaphore/3",
            "~partitions/a/-1",
            "~partitions/a/4000000000",
            "~semaphore/a/0",
            "~new/a",
        ] {
            assert_eq!(kind(&format!("ns/{odd}/")), named(odd, QueueKind::Election));
        }
        let queue = queue("ns/~semaphore/a/b/3/");
        assert!(queue.has_turn(&queue.roster().members()[0]));
    }
}

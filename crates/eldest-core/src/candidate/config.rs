//! Says how a candidate stands: what it watches, what it retries, which permits or partitions it is for.

use std::sync::Arc;

use crate::partitions::PartitionSet;

/// Which part of the queue a candidate watches.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum WatchScope {
    /// Everyone in a queue of up to 65; in a longer one, the leader and the next do so, and all behind them follow the
    /// predecessor, from then on.
    #[default]
    Auto,
    /// The whole prefix: every change costs every candidate a message; promotion never needs a request.
    Everyone,
    /// The own key and those of the two before it: messages per change do not grow with the queue. Promotion needs one
    /// linearizable read unless the predecessor is known to be the only older candidate; when the one before it goes,
    /// that is read in advance.
    Predecessor,
}

/// With [`WatchScope::Auto`], more candidates than this beside one's own mean following the predecessor.
pub const LONG_QUEUE: usize = 64;

/// How a candidate stands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CandidateConfig {
    /// Which part of the queue it watches.
    pub watch_scope: WatchScope,
    /// Retries what else would be told the caller of `campaign`.
    pub persistent: bool,
    /// Stands only where it leads at once; otherwise no key is put, and the candidacy ends as `Taken`.
    pub at_once: bool,
    /// Of a semaphore, whose permits several hold at once.
    pub permit: Option<Permit>,
    /// Stands to own some of these partitions, not to lead.
    pub partitions: Option<PartitionSet>,
    /// Stands to be seen, as a member of a group, not to lead. It has no place among the others and watches its own key
    /// alone, as [`WatchScope::Predecessor`] with nobody before it.
    pub present: bool,
}

/// A candidate for one of several permits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permit {
    /// So many of the eldest hold.
    pub capacity: usize,
    /// The capacity is the level below it. While a key of another capacity stands, nobody joins.
    pub family: Arc<[u8]>,
    /// Tells apart the keys of one session.
    pub number: u64,
}

/// The level of `key` right below `family`.
pub(super) fn level_below<'a>(family: &[u8], key: &'a [u8]) -> std::borrow::Cow<'a, str> {
    let below = key.strip_prefix(family).unwrap_or(key);
    let level = below.split(|byte| *byte == b'/').next();
    String::from_utf8_lossy(level.unwrap_or(below))
}

/// What is told who asks for `ours` partitions where others share another number of them, by the key `other`.
pub fn miscount(family: &[u8], ours: usize, other: &[u8]) -> String {
    let (theirs, key) = (level_below(family, other), String::from_utf8_lossy(other));
    format!(
        "{ours} partitions were asked for, but others share {theirs} under this name, as the key {key}"
    )
}

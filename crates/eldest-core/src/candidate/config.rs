//! Defines a candidate's configuration: what it watches, what it retries, and its permits or partitions.

use std::sync::Arc;
use std::time::Duration;

use crate::partitions::{KeyKind, PartitionSet, kind_of};
use crate::version::Version;

/// The part of the queue that a candidate watches.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum WatchScope {
    /// `Everyone` in a queue of up to 65 candidates. In a longer one, the leader and the next candidate watch everyone,
    /// and all behind them follow their predecessor from then on.
    #[default]
    Auto,
    /// The whole prefix. Every change costs every candidate a message, but promotion never needs a request.
    Everyone,
    /// The candidate's own key and the two keys before it. The number of messages per change does not grow with the
    /// queue.
    ///
    /// Promotion needs one linearizable read unless the predecessor is known to be the only older candidate. When the
    /// key before the predecessor disappears, the candidate makes that read in advance.
    Predecessor,
}

/// The number of other candidates above which [`WatchScope::Auto`] follows the predecessor.
pub const LONG_QUEUE: usize = 64;

/// The configuration of a candidate.
#[allow(
    clippy::struct_excessive_bools,
    reason = "independent choices, each said in its own words"
)]
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CandidateConfig {
    /// The part of the queue that the candidate watches.
    pub watch_scope: WatchScope,
    /// True if the candidate retries failures that the caller of `campaign` would otherwise receive.
    pub persistent: bool,
    /// True if the candidate joins only if it leads at once. Otherwise no key is put, and the candidacy ends as
    /// `Taken`.
    pub at_once: bool,
    /// The permit of a semaphore, whose permits several candidates hold at once.
    pub permit: Option<Permit>,
    /// `Some` if the candidate leads together with other readers of a shared lock. The number distinguishes the keys of
    /// one session.
    pub shared: Option<u64>,
    /// True if the candidate holds a lock instead of leading an election: it does not join beside candidates of an
    /// election.
    pub lock: bool,
    /// The set of partitions that the candidate wants to own, instead of leading.
    pub partitions: Option<PartitionSet>,
    /// True if the candidate joins a group as a member, and never leads. With [`WatchScope::Predecessor`], the member
    /// watches its own key alone. Otherwise, it also follows two other members for signs of life, and counts itself in
    /// only while the session's clean reads would let it lead.
    pub present: bool,
    /// True if the candidate gives up its place to candidates elsewhere while its data centre is evacuated. Members of
    /// partitions need no such setting: they always give up their partitions then.
    pub gives_way: bool,
    /// How long a leader that must give way leads on while its successor is not warm, and how long a member keeps a
    /// partition whose next owner is not ready.
    pub warm_within: Duration,
    /// `Some` if the candidate does not lead once a newer version has led its election.
    pub required: Option<Required>,
}

/// The version of a candidate whose election requires versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Required {
    /// The candidate's version.
    pub version: Version,
    /// The value of the election's mark when this version leads.
    pub mark: Arc<[u8]>,
}

/// A candidate's request for one of several permits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permit {
    /// The number of eldest candidates that hold a permit.
    pub capacity: usize,
    /// The prefix above the level that names the capacity. While a key of another capacity exists, no candidate can
    /// join.
    pub family: Arc<[u8]>,
    /// The number that distinguishes the keys of one session.
    pub number: u64,
}

/// Returns the level of `key` right below `family`.
pub(super) fn level_below<'a>(family: &[u8], key: &'a [u8]) -> std::borrow::Cow<'a, str> {
    let below = key.strip_prefix(family).unwrap_or(key);
    let level = below.split(|byte| *byte == b'/').next();
    String::from_utf8_lossy(level.unwrap_or(below))
}

/// Returns the message for a caller that requests `ours` partitions while others share another number of them, as the
/// key `other` shows.
pub fn miscount(family: &[u8], ours: usize, other: &[u8]) -> String {
    let (theirs, key) = (level_below(family, other), String::from_utf8_lossy(other));
    let prefix = [family, theirs.as_bytes(), b"/"].concat();
    let kept = match kind_of(&prefix, other) {
        Some(KeyKind::Kept { .. }) => " of a kept share",
        _ => "",
    };
    format!(
        "{ours} partitions were requested, but others share {theirs} under this name, as the key {key}{kept}"
    )
}

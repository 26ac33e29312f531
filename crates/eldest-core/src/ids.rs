//! Numbers the slots, requests, watches and terms of a session.

/// The number of a candidacy or observer of a session.
pub type SlotId = u64;
/// The first slot of partitions, which the core assigns itself; handles never make so many slots.
pub const FIRST_OF_PARTITIONS: SlotId = 1 << 62;
/// The number of a request to etcd. It is never reused, so that a late answer is recognised and dropped.
pub type RequestId = u64;
/// The number of a watcher on the session's watch stream. It is never reused, because late events of a cancelled
/// watcher would go to its successor.
pub type WatchId = i64;
/// The number of a term of leadership.
pub type TermId = u64;

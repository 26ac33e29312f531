//! Numbers the slots, requests, watches and terms of a session.

/// One candidacy or observer of a session.
pub type SlotId = u64;
/// One request to etcd. Never reused, so that a late answer is recognised and dropped.
pub type RequestId = u64;
/// One watcher on the session's watch stream. Never reused: late events of a cancelled watcher would go to its successor.
pub type WatchId = i64;
/// One term of leadership.
pub type TermId = u64;

//! Defines the reasons for which a term or a candidacy ends.

use std::fmt;

/// The reason for which a term of leadership ended.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum LostReason {
    /// No renewal of the lease could be verified in time: etcd was slow, out of reach or changing its leader. The term
    /// stays valid for the grace period, then ends. The node joins again.
    LeaseExpiring,
    /// etcd reported that the lease is gone: it expired there, or was revoked.
    LeaseLost,
    /// The leader's key was deleted, although its lease may live.
    KeyDeleted,
    /// The leader's key was overwritten.
    KeyOverwritten,
    /// etcd answered as another cluster, or its revision fell because a backup was restored. What the session knew of
    /// etcd no longer holds, and fencing tokens may repeat. Set a new epoch for outside resources.
    StoreChanged,
    /// The partition goes to another member, for balance. The term stays valid for the grace period, so that its work
    /// can finish.
    Reassigned,
    /// The leader's data centre is [evacuated](https://docs.rs/eldest/latest/eldest/struct.Evacuate.html), and there is
    /// a candidate elsewhere. The term stays valid for the grace period, so that its work can finish. The node joins
    /// again, at the end of the queue.
    Evacuated,
    /// The leader was [ordered](https://docs.rs/eldest/latest/eldest/struct.Election.html#method.order_step_down) to
    /// step down, and there is another candidate. The term stays valid for the grace period, so that its work can
    /// finish. The node joins again, at the end of the queue.
    Ordered,
    /// The leader resigned, or its `Leadership` was dropped.
    Resigned,
    /// The leader stepped down. It joins again, at the end of the queue.
    SteppedDown,
    /// The leader's work returned an error. The node leaves the election, or joins again after a pause, as
    /// [`OnError`](https://docs.rs/eldest/latest/eldest/enum.OnError.html) says.
    WorkFailed,
    /// The leader's work sent no heartbeat, or its health check no `Ok`, for as long as `Runner` allows. The term stays
    /// valid for the grace period. The node joins again only when its work has ended and its health check returns `Ok`.
    Stalled,
    /// The leader did not serve within the limit of its election (`Election::serving_within`). The term stays valid for
    /// the grace period. The node joins again as after a stall.
    NotServing,
    /// The shutdown token given to `Election::run` was cancelled.
    Shutdown,
    /// The session was closed.
    SessionClosed,
    /// The tokio runtime that drives the session was shut down.
    RuntimeGone,
}

impl LostReason {
    /// Returns a stable name for logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            LostReason::LeaseExpiring => "lease_expiring",
            LostReason::LeaseLost => "lease_lost",
            LostReason::KeyDeleted => "key_deleted",
            LostReason::KeyOverwritten => "key_overwritten",
            LostReason::StoreChanged => "store_changed",
            LostReason::Reassigned => "reassigned",
            LostReason::Evacuated => "evacuated",
            LostReason::Ordered => "ordered",
            LostReason::Resigned => "resigned",
            LostReason::SteppedDown => "stepped_down",
            LostReason::WorkFailed => "work_failed",
            LostReason::Stalled => "stalled",
            LostReason::NotServing => "not_serving",
            LostReason::Shutdown => "shutdown",
            LostReason::SessionClosed => "session_closed",
            LostReason::RuntimeGone => "runtime_gone",
        }
    }
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The reason for which a candidacy ended for good.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum EndReason {
    /// The candidate left the queue.
    Left,
    /// The leader resigned, or its `Leadership` was dropped while valid.
    Resigned,
    /// The work of `Election::run`, or its follower's work, returned an error.
    WorkFailed,
    /// The shutdown token given to `Election::run` was cancelled.
    Shutdown,
    /// The session was closed.
    SessionClosed,
    /// etcd refused the candidate's key; `campaign` returned the error.
    Refused,
    /// The candidate was to acquire at once or not at all, as in `Lock::try_acquire`, and others hold or wait already.
    Taken,
}

impl EndReason {
    /// Returns a stable name for logs and metrics. It is the same as that of [`LostReason::as_str`] where both mean the
    /// same.
    pub const fn as_str(self) -> &'static str {
        match self {
            EndReason::Left => "left",
            EndReason::Resigned => "resigned",
            EndReason::WorkFailed => "work_failed",
            EndReason::Shutdown => "shutdown",
            EndReason::SessionClosed => "session_closed",
            EndReason::Refused => "refused",
            EndReason::Taken => "taken",
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../docs/operations.md");

    /// Lists every reason, as the successor of another: a new reason does not compile before it has its place here.
    const fn after(reason: LostReason) -> Option<LostReason> {
        Some(match reason {
            LostReason::LeaseExpiring => LostReason::LeaseLost,
            LostReason::LeaseLost => LostReason::KeyDeleted,
            LostReason::KeyDeleted => LostReason::KeyOverwritten,
            LostReason::KeyOverwritten => LostReason::StoreChanged,
            LostReason::StoreChanged => LostReason::Reassigned,
            LostReason::Reassigned => LostReason::Evacuated,
            LostReason::Evacuated => LostReason::Ordered,
            LostReason::Ordered => LostReason::Resigned,
            LostReason::Resigned => LostReason::SteppedDown,
            LostReason::SteppedDown => LostReason::WorkFailed,
            LostReason::WorkFailed => LostReason::Stalled,
            LostReason::Stalled => LostReason::NotServing,
            LostReason::NotServing => LostReason::Shutdown,
            LostReason::Shutdown => LostReason::SessionClosed,
            LostReason::SessionClosed => LostReason::RuntimeGone,
            LostReason::RuntimeGone => return None,
        })
    }

    const fn after_end(reason: EndReason) -> Option<EndReason> {
        Some(match reason {
            EndReason::Left => EndReason::Resigned,
            EndReason::Resigned => EndReason::WorkFailed,
            EndReason::WorkFailed => EndReason::Shutdown,
            EndReason::Shutdown => EndReason::SessionClosed,
            EndReason::SessionClosed => EndReason::Refused,
            EndReason::Refused => EndReason::Taken,
            EndReason::Taken => return None,
        })
    }

    /// Returns true if a row of the table under that heading explains the reason.
    fn explained(heading: &str, reason: &str) -> bool {
        let table = PAGE.split_once(heading).map_or("", |(_, rest)| rest);
        let rows = table.lines().skip_while(|line| !line.starts_with("| `"));
        let mut rows = rows.take_while(|line| line.starts_with('|'));
        rows.any(|row| row.starts_with(&format!("| `{reason}` |")))
    }

    /// Returns true if the reason has the same name with the feature `serde`.
    #[cfg(feature = "serde")]
    fn is_serialized_as(reason: impl serde::Serialize, name: &str) -> bool {
        serde_json::to_value(reason).is_ok_and(|written| written == name)
    }

    #[test]
    fn every_reason_is_explained_to_operators() {
        let mut lost = Some(LostReason::LeaseExpiring);
        while let Some(reason) = lost {
            assert!(explained("## Why a term", reason.as_str()), "{reason}");
            #[cfg(feature = "serde")]
            assert!(is_serialized_as(reason, reason.as_str()), "{reason}");
            lost = after(reason);
        }
        let mut ended = Some(EndReason::Left);
        while let Some(reason) = ended {
            assert!(
                explained("A candidacy that has ended", reason.as_str()),
                "{reason}"
            );
            #[cfg(feature = "serde")]
            assert!(is_serialized_as(reason, reason.as_str()), "{reason}");
            ended = after_end(reason);
        }
        assert!(!explained("A candidacy that has ended", "lease_lost"));
    }
}

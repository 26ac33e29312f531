//! Names the faults of a plan, and the actions of users.

use serde::{Deserialize, Serialize};
use strum::VariantArray;

/// A fault, or an action of a user. Groups of kinds follow each other here.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, VariantArray,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    // Faults of the link to etcd.
    Cut,
    RequestsLost,
    AnswersLost,
    RequestsLate,
    AnswersTwice,
    AnswerLostOnce,
    DeleteLate,
    /// The link becomes slow, and then passes nothing.
    Fading,
    Refused,
    // Faults of the watch stream.
    WatchesStalled,
    /// The present stream delivers nothing more, without an error.
    WatchesDead,
    WatchesCanceled,
    /// A stream stalls until the events that it holds back are compacted, and etcd cancels its watches.
    Compacted,
    StreamBroken,
    // Faults of etcd.
    LeaderChange,
    /// etcd's leader changes, and this node's renewals still reach the old one, which acknowledges them.
    Deposed,
    /// etcd's leader changes, and the old one, which considers this node's lease expired, has it revoked.
    StaleRevocation,
    QuorumLost,
    // Faults of the node.
    Pause,
    Kill,
    // Actions of users.
    Leave,
    Return,
    Resign,
    StepDown,
    Stall,
    Unwell,
    ShutDown,
    Drop,
    Close,
    /// The node announces several values in a row.
    Proclaim,
    /// The node observes for a while.
    Look,
    // Actions of users of the lock and the semaphore.
    Acquire,
    Try,
    Release,
    GiveUp,
    // Actions of users of partitions.
    LeavePartitions,
    DropOwned,
    // Actions of operators and of other clients.
    Delete,
    Recreate,
    Overwrite,
    Revoke,
    DeleteHeld,
    Foreign,
    /// etcd refuses a node's watches of one election, beside others on the same stream.
    WatchesRefused,
    /// The node starts again as a clone of another one, and draws lease ids that others have.
    Clone,
    /// etcd refuses a request permanently: not permitted, or never acceptable.
    Denied,
    /// A request is carried out, and a later part of the same operation is refused permanently.
    DeniedLater,
    /// One transaction puts two keys of another client into an election.
    Twins,
    /// etcd's data is replaced by a backup.
    Restored,
    /// The node's machine is suspended: everything stops but the clock.
    Suspend,
    /// A request is carried out, and yet answered by a refusal of any class.
    RefusedDone,
    /// The next request, of the kind that the fault names, is lost.
    RequestLostOnce,
    /// The next request of the fault's kind, in the first half of its duration, arrives half of the duration later, and
    /// is answered if that is in time.
    LateOnce,
    /// An operator revokes a node's permission for all keys, while its lease lives on and is renewed.
    NotPermitted,
    /// The process dies and another takes its place; its guard deletes the dead one's keys, at once or later. The guard
    /// of a stranger does the same after it had bound a key of its own to the lease of another process.
    GuardRevokes,
    /// An operator evacuates the node's data centre: for a while, until the mark is lifted, or for so long that it
    /// lasts into the calm. If it is evacuated already, the mark may be lifted instead. If the node is in no data
    /// centre, the operator orders an election's leader to step down, for a while.
    Evacuate,
    /// etcd refuses a node the read of the marks of evacuated data centres.
    MarksDenied,
    /// An operator removes the mark of the newest version that led an election.
    VersionRemoved,
    /// etcd refuses each transaction with more operations, or more bytes, than a number of the dice.
    TooLarge,
    /// The end of a lease takes etcd a time of the dice for each of its keys, and everything else waits.
    SlowEnds,
    /// The process dies while its partitions are kept for it. Another takes its place, at once or later: under the same
    /// identity, for which they may be kept into the calm, or under one that was never used.
    KeptShare,
    // Faults of sessions that allow challenges.
    /// The node suspects the leader, or another session, although it answers.
    Suspicion,
    /// All nodes suspect the same session, although it answers.
    SuspectedByAll,
    /// The node is stopped when it has sent the next request of one kind about challenges, or a while later.
    StopAtStep,
    /// The node's next request of one kind about challenges arrives late, long after it timed out here.
    StepLate,
    /// The answer to the node's next request of one kind about challenges is lost.
    StepUnheard,
    /// The answer to the node's next request of one kind about challenges is slow.
    StepSlow,
    /// The node's next request of one kind about challenges is applied twice: at once, and again later.
    StepTwice,
    /// No sign of life passes between the node and others: to it, from it or both. All links to etcd work.
    PeersCut,
    /// etcd has no space: nothing is put or granted.
    NoSpace,
    /// The node's session no longer allows challenges.
    Withdraw,
    /// An operator revokes a node's permission for all anchors and challenges. Some versions of etcd then refuse to renew
    /// its lease, too.
    SessionsDenied,
    /// Another client deletes the anchor of the leader's session, or of another one, and may put a copy in its place.
    AnchorDeleted,
}

impl Kind {
    /// Returns these kinds and all between them.
    fn from_to(first: Kind, last: Kind) -> &'static [Kind] {
        &Self::VARIANTS[first as usize..=last as usize]
    }

    /// Returns the kinds of every storm. All others are drawn after everything else, so that the stories of known seeds do not
    /// change.
    pub(crate) fn first() -> &'static [Kind] {
        Self::from_to(Kind::Cut, Kind::Foreign)
    }

    /// Returns kinds that are drawn after the first.
    pub(crate) fn later() -> &'static [Kind] {
        Self::from_to(Kind::WatchesRefused, Kind::Restored)
    }

    /// Kinds that are drawn after those.
    pub(crate) const NEWEST: [Kind; 3] = [Kind::Suspend, Kind::RefusedDone, Kind::NotPermitted];

    /// Kinds about etcd's limits.
    pub(crate) const LIMITS: [Kind; 2] = [Kind::TooLarge, Kind::SlowEnds];

    /// Returns the kinds that are drawn only for sessions that allow challenges.
    pub(crate) fn of_challenges() -> &'static [Kind] {
        Self::from_to(Kind::Suspicion, Kind::PeersCut)
    }

    /// Returns the kinds that disturb one step of a challenge.
    pub(crate) fn of_steps() -> &'static [Kind] {
        Self::from_to(Kind::StopAtStep, Kind::StepTwice)
    }

    /// Returns the kinds that are drawn only for such sessions, and more seldom: each ends many terms.
    pub(crate) fn seldom() -> &'static [Kind] {
        Self::from_to(Kind::NoSpace, Kind::AnchorDeleted)
    }

    /// Kinds that meet one request. Their fault may name the request's kind. Seeds draw only [`Kind::AnswerLostOnce`] of them.
    pub(crate) const ONCE: [Kind; 3] =
        [Kind::AnswerLostOnce, Kind::RequestLostOnce, Kind::LateOnce];

    /// Returns every kind that seeds draw without challenges.
    pub(crate) fn every() -> impl Iterator<Item = Kind> {
        let all = Self::VARIANTS.iter().copied();
        all.filter(|kind| !kind.is_about_challenges() && !Self::ONCE[1..].contains(kind))
    }

    /// Returns true if only sessions that allow challenges meet the fault.
    pub(crate) fn is_about_challenges(self) -> bool {
        self >= Kind::Suspicion
    }

    /// Returns true if the fault deletes keys that have an owner.
    pub(crate) fn meddles(self) -> bool {
        (Kind::Delete..=Kind::DeleteHeld).contains(&self)
            || matches!(self, Kind::StaleRevocation | Kind::AnchorDeleted)
    }

    /// Returns true if the fault needs a running process.
    pub(crate) fn is_own_act(self) -> bool {
        (Kind::Leave..=Kind::DropOwned).contains(&self)
            || matches!(self, Kind::Pause | Kind::Suspend)
    }
}

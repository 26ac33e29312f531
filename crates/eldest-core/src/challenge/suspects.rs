//! Tracks the sessions that this one suspects to be silent: each is challenged, and condemned if it does not answer.
//!
//! A suspicion may be wrong at any time. It grants nothing: only what etcd has committed counts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::config::Announced;
use crate::ids::{RequestId, SlotId};
use crate::time::Time;

/// The longest pause after a suspect has answered.
pub(crate) const LONGEST: Duration = Duration::from_secs(60);

/// A key of a suspect in an election of this session, with the anchor that it announces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// The candidate of this session that waits for the key to go; `None`: one will wait for it soon.
    pub(crate) slot: Option<SlotId>,
    pub(crate) key: Arc<[u8]>,
    pub(crate) create_revision: i64,
    pub(crate) announced: Announced,
}

/// The progress of one challenge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Progress {
    /// No challenge stands, as far as known. The next one is sent not before that time.
    Idle { not_before: Time },
    /// The answer to the challenge is awaited.
    Challenging(RequestId),
    /// The challenge was written at that revision. The suspect is condemned at `until` if the challenge still stands.
    Counting { written: i64, until: Time },
    /// The answer to the condemnation is awaited. The challenge was written at that revision.
    Condemning { request: RequestId, written: i64 },
    /// The suspect's anchor is gone, so its keys are deleted wherever this session waits behind one.
    Gone,
}

/// A session that is suspected.
#[derive(Debug)]
pub(crate) struct Suspect {
    pub(crate) progress: Progress,
    /// The key by which the suspect is challenged, once one is known.
    pub(crate) target: Option<Target>,
    /// The anchor of a suspect that is gone.
    pub(crate) gone: Option<Announced>,
    pub(crate) failures: u32,
    /// How often the suspect has answered in time.
    answers: u32,
    /// The keys whose deletion is in flight.
    deleting: BTreeSet<Arc<[u8]>>,
    /// True if the suspect was ahead of a candidate of this session, and is no longer.
    has_left: bool,
}

impl Progress {
    /// Returns true if the answer to that request is awaited.
    pub(crate) fn awaits(&self, awaited: RequestId) -> bool {
        match self {
            Self::Challenging(request) | Self::Condemning { request, .. } => *request == awaited,
            Self::Idle { .. } | Self::Counting { .. } | Self::Gone => false,
        }
    }

    /// Returns the revision of the challenge that stands, as far as known.
    fn written(&self) -> Option<i64> {
        match self {
            Self::Counting { written, .. } | Self::Condemning { written, .. } => Some(*written),
            Self::Idle { .. } | Self::Challenging(_) | Self::Gone => None,
        }
    }
}

impl Suspect {
    fn new() -> Self {
        Self {
            progress: Progress::Idle {
                not_before: Time::ZERO,
            },
            target: None,
            gone: None,
            failures: 0,
            answers: 0,
            deleting: BTreeSet::new(),
            has_left: false,
        }
    }

    /// Returns the pause after the suspect has answered once more, which is twice as long each time, and how often it has
    /// answered.
    pub(crate) fn answered(&mut self, wait: Duration) -> (Duration, u32) {
        self.answers += 1;
        let times = 1u32 << self.answers.min(6);
        (wait.saturating_mul(times).min(LONGEST), self.answers)
    }

    /// Records that the suspect's anchor is gone. Returns the last target, with the revision of its challenge if that is
    /// known.
    pub(crate) fn has_gone(&mut self) -> Option<(Target, Option<i64>)> {
        let last = self.take_target();
        self.gone = last.as_ref().map(|(target, _)| target.announced.clone());
        self.progress = Progress::Gone;
        last
    }

    /// Records that the deletion of the key was sent, unless one is in flight already.
    pub(crate) fn begin_deletion(&mut self, key: &Arc<[u8]>) -> bool {
        self.deleting.insert(Arc::clone(key))
    }

    /// Records that the deletion of the key was answered, with any result.
    pub(crate) fn deletion_answered(&mut self, key: &[u8]) {
        self.deleting.remove(key);
    }

    /// Takes the target, and returns it with the revision of its challenge, if that is known.
    pub(crate) fn take_target(&mut self) -> Option<(Target, Option<i64>)> {
        Some((self.target.take()?, self.progress.written()))
    }

    /// Sets the key by which the suspect is challenged, unless one is known or the suspect is gone.
    pub(crate) fn name_target(&mut self, target: Target) {
        if matches!(self.progress, Progress::Idle { .. }) && self.target.is_none() {
            self.target = Some(target);
        }
    }

    /// Makes the next challenge due now, if it waits only because the suspect has answered or a request has failed.
    pub(crate) fn hurry(&mut self, now: Time) {
        if let Progress::Idle { not_before } = &mut self.progress {
            *not_before = now;
        }
    }

    /// Returns true if the suspect is no longer ahead of a candidate of this session, and no answer about it is awaited.
    pub(crate) fn is_over(&self) -> bool {
        let is_awaited = match self.progress {
            Progress::Challenging(_) | Progress::Condemning { .. } => true,
            Progress::Idle { .. } | Progress::Counting { .. } | Progress::Gone => false,
        };
        self.has_left && !is_awaited && self.deleting.is_empty()
    }

    /// Starts again, because what was known of the challenge may no longer hold.
    pub(crate) fn start_again(&mut self, not_before: Time) {
        if self.progress != Progress::Gone {
            self.progress = Progress::Idle { not_before };
        }
    }

    // ---- checks of debug builds

    /// Checks that the request is the one whose answer decides.
    pub(crate) fn check_answer(&self, request: RequestId) {
        debug_assert!(
            self.progress.awaits(request),
            "a challenge is judged by its own answer"
        );
    }

    /// Checks that a suspect that has answered is not challenged again before that time.
    pub(crate) fn check_pause(&self, until: Time) {
        debug_assert!(
            matches!(self.progress, Progress::Idle { not_before } if until <= not_before),
            "a suspect that has answered is left alone for as long as a challenge takes"
        );
    }
}

/// All sessions that are suspected, by their leases.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    by_lease: BTreeMap<i64, Suspect>,
}

impl Suspects {
    pub(crate) fn get(&mut self, lease: i64) -> Option<&mut Suspect> {
        self.by_lease.get_mut(&lease)
    }

    /// Adds a suspect; returns false if it is one already.
    pub(crate) fn add(&mut self, lease: i64) -> bool {
        let is_new = !self.by_lease.contains_key(&lease);
        self.by_lease.entry(lease).or_insert_with(Suspect::new);
        is_new
    }

    pub(crate) fn remove(&mut self, lease: i64) -> Option<Suspect> {
        self.by_lease.remove(&lease)
    }

    /// Records that the session is ahead of a candidate of this one, or is no longer.
    pub(crate) fn set_left(&mut self, lease: i64, has_left: bool) {
        if let Some(suspect) = self.by_lease.get_mut(&lease) {
            suspect.has_left = has_left;
        }
    }

    /// Returns the anchors that this session challenges.
    pub(crate) fn challenged(&self) -> impl Iterator<Item = &Arc<[u8]>> {
        let targets = self.by_lease.values().filter_map(|s| s.target.as_ref());
        targets.map(|target| &target.announced.anchor)
    }

    pub(crate) fn leases(&self) -> Vec<i64> {
        self.by_lease.keys().copied().collect()
    }

    /// Forgets all challenges, which went with the lease of this session.
    pub(super) fn lease_lost(&mut self) {
        for suspect in self.by_lease.values_mut() {
            suspect.start_again(Time::ZERO);
            suspect.target = None;
            suspect.deleting.clear();
        }
    }
}

//! Puts a candidate's key exactly once, even if answers are lost.

use std::sync::Arc;

use super::Candidacy;
use crate::action::{Admission, Class, RequestError};
use crate::candidate::config::{level_below, miscount};
use crate::candidate::phase::Phase;
use crate::ids::RequestId;
use crate::kv::{Entry, Header, is_elected};
use crate::pause::{LONGEST_PAUSE, Pace, pause};
use crate::queue::{Own, excludes};
use crate::reason::EndReason;
use crate::time::Time;

/// The time of the next join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JoinDue {
    No,
    At(Time),
    Now,
}

/// The result of a join.
#[derive(Debug)]
pub(crate) enum JoinOutcome {
    /// The candidate's key stands.
    Stands(Stood),
    /// The candidate has left meanwhile: a key that exists must be deleted.
    Unwanted { create_revision: Option<i64> },
    /// A key at its path, created at that revision, blocks the candidate and serves nobody.
    Blocked { create_revision: i64 },
    /// No key was put: others stand that the join does not allow beside it.
    NotAdmitted,
}

/// A key that stands from now on.
#[derive(Debug)]
pub(crate) struct Stood {
    pub(crate) own: Own,
    /// No key of it stood before.
    pub(crate) first_time: bool,
    /// The key has the value that the candidate announces.
    pub(crate) same_value: bool,
    /// Its key of an earlier lease, which somebody wrote over.
    pub(crate) left: Option<Entry>,
}

/// The next step when a join was not admitted.
#[derive(Debug)]
pub(crate) enum NotAdmitted {
    /// The candidate is refused for good.
    Refused(RequestError),
    /// Others stand who will go.
    Retry,
    /// All permits are taken.
    Taken,
    /// A permit was free: it joins again at once.
    Again,
}

impl Candidacy {
    /// Decides when its next join is sent, if everything else that it needs is there.
    pub(crate) fn join_due(&self, now: Time) -> JoinDue {
        let Phase::Joining {
            request: None,
            not_before,
        } = self.phase
        else {
            return JoinDue::No;
        };
        if self.held {
            return JoinDue::No;
        }
        if now < not_before {
            return JoinDue::At(not_before);
        }
        JoinDue::Now
    }

    /// Returns the conditions of its join.
    pub fn admission(&self) -> Admission {
        let family = self.family().map(|(family, _)| Arc::clone(family));
        let is_clear = self.config.lock && self.free_at > 0;
        let at_once = self.config.at_once;
        Admission {
            none_after: (at_once || is_clear).then_some(self.free_at),
            nothing_else_in: family,
            only_locks: self.config.lock && !is_clear,
        }
    }

    /// The join was sent, with a key of that lease. `known` is the newest revision that was known before.
    pub(crate) fn join_sent(&mut self, (request, lease): (RequestId, i64), known: i64) {
        debug_assert!(
            self.wanted && !self.held,
            "only a candidate that wants to stand joins"
        );
        self.view.join_begun(request);
        if !self.uncertain {
            self.joins_after = known;
        }
        if let Phase::Joining { not_before, .. } = self.phase {
            self.enter(Phase::Joining {
                request: Some((request, lease)),
                not_before,
            });
        }
    }

    /// The request is answered, whatever became of it: the view awaits nothing from it any more.
    pub(crate) fn join_over(&mut self, request: RequestId) {
        self.view.join_over(request);
    }

    /// Records the answer to that join. Returns the lease that it used, if the candidate waits for it. The lease is the
    /// session's present one: its loss ends every wait for a join.
    pub(crate) fn join_answered(&mut self, request: RequestId, now: Time) -> Option<i64> {
        let Phase::Joining {
            request: Some((awaited, lease)),
            ..
        } = self.phase
        else {
            return None;
        };
        if awaited != request {
            return None;
        }
        self.join_at(now);
        Some(lease)
    }

    /// No attempt before this.
    pub(super) fn join_at(&mut self, not_before: Time) {
        self.enter(Phase::Joining {
            request: None,
            not_before,
        });
    }

    /// Applies the answer to a join by that `key` under `lease`: true if the key was `created`, and the prefix's `entries`.
    pub(crate) fn joined(
        &mut self,
        now: Time,
        (key, lease): (Arc<[u8]>, i64),
        (header, created): (Header, bool),
        entries: &[Entry],
        closing: bool,
    ) -> JoinOutcome {
        self.failures = 0;
        let standing = entries.iter().find(|e| e.key == key);
        if !self.wanted {
            let create_revision = standing.map(|e| e.create_revision);
            self.enter(Phase::Leaving {
                reason: left(closing),
            });
            return JoinOutcome::Unwanted { create_revision };
        }
        let (create_revision, same_value, ours) = match standing {
            // The announced value may have changed since the join was sent.
            Some(e) if created => (header.revision, e.value == *self.value(), true),
            None if created => (header.revision, true, true),
            // The key is from a join of ours whose answer was lost. A key from before these joins is not: a restored store may
            // bring a key back that we asked to delete, or by which we led.
            Some(e) => (
                e.create_revision,
                e.value == *self.value(),
                e.lease == lease && self.uncertain && e.create_revision > self.joins_after,
            ),
            None => return JoinOutcome::NotAdmitted,
        };
        if !ours {
            return JoinOutcome::Blocked { create_revision };
        }
        let adopted = standing.filter(|_| !created);
        debug_assert!(
            adopted.is_none_or(|e| e.lease == lease),
            "an adopted key is bound to our lease"
        );
        debug_assert!(
            adopted.is_none() || self.uncertain,
            "a key is adopted only after a join whose answer was lost"
        );
        debug_assert!(
            adopted.is_none() || self.joins_after < create_revision,
            "an adopted key is younger than the joins that may have put it"
        );
        self.announced_at = adopted.map_or(header.revision, |e| e.mod_revision);
        self.uncertain = false;
        let own = Own {
            key,
            create_revision,
            lease,
        };
        self.stood_at = now;
        self.enter(Phase::Waiting { own: own.clone() });
        let former = self.former.take();
        let left = former.and_then(|f| {
            let stands = |e: &&Entry| e.key == f.key && e.lease != f.lease;
            entries.iter().find(stands).cloned()
        });
        let first_time = !std::mem::replace(&mut self.registered, true);
        JoinOutcome::Stands(Stood {
            own,
            first_time,
            same_value,
            left,
        })
    }

    /// How many of those that stand exclude its key of that lease.
    pub(crate) fn excluded_by(&self, entries: &[Entry], lease: i64) -> usize {
        let key = self.key(lease);
        let excluding = entries.iter().filter(|entry| excludes(&entry.key, &key));
        excluding.count()
    }

    /// Why a lock may not join where these stand, if it may not.
    pub(crate) fn elected(&self, entries: &[Entry]) -> Option<RequestError> {
        let known = entries.iter().any(|entry| is_elected(&entry.value));
        (self.config.lock && known).then(|| {
            let prefix = String::from_utf8_lossy(&self.prefix);
            let message =
                format!("candidates of an election stand below {prefix}, so it cannot be a lock");
            RequestError::new(Class::Elected, message, "")
        })
    }

    /// At `revision` so many stand under the prefix that exclude it, or a key that is not allowed beside it.
    pub(crate) fn not_admitted(
        &mut self,
        revision: i64,
        standing: usize,
        (other, elected): (Option<Arc<[u8]>>, Option<RequestError>),
    ) -> NotAdmitted {
        let refused = elected.or_else(|| other.and_then(|other| self.mismatch(&other)));
        if let Some(error) = refused {
            self.error = Some(error.clone());
            NotAdmitted::Refused(error)
        } else if self.config.lock && !self.config.at_once {
            // The keys that keep it out are deeper, and do not count; the transaction sees any join before ours.
            self.free_at = revision;
            NotAdmitted::Again
        } else if !self.config.at_once {
            NotAdmitted::Retry
        } else if standing >= self.capacity() {
            NotAdmitted::Taken
        } else {
            // It may hold beside those who stood then; whoever joins before us is seen by the transaction.
            self.free_at = revision;
            NotAdmitted::Again
        }
    }

    /// Returns true if a key of it may exist that it does not know of.
    pub(crate) fn is_uncertain(&self) -> bool {
        self.uncertain
    }

    /// The path at which a key of it may stand, under `lease`, that it does not know of.
    pub(crate) fn unknown_key(&self, lease: Option<i64>) -> Option<Arc<[u8]>> {
        match self.phase {
            Phase::Joining {
                request: Some((_, lease)),
                ..
            } => Some(self.key(lease)),
            Phase::Joining { .. } if self.uncertain => lease.map(|lease| self.key(lease)),
            _ => None,
        }
    }

    /// Returns true if a key of it was ever in etcd.
    pub(crate) fn is_registered(&self) -> bool {
        self.registered
    }

    /// Returns true if it joins again after a term.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// A join failed. Whether the candidate still wants to stand.
    pub(crate) fn join_failed(&mut self, error: &RequestError) -> bool {
        self.uncertain |= error.ambiguous;
        self.wanted
    }

    /// The next join follows after a pause. When.
    pub(crate) fn retry_join(&mut self, now: Time, class: Class, pace: Pace) -> Time {
        self.failures += 1;
        let not_before = now.after(pace.pause(self.failures, class));
        debug_assert!(
            now < not_before || self.failures == 1,
            "joins that fail again and again are paced"
        );
        self.join_at(not_before);
        not_before
    }

    /// Returns true if a candidate that never had a key is to leave with this error, instead of waiting for its end.
    ///
    /// `accepted`: a key of this session was put before, so etcd has taken the user, and had space. A change since then may be
    /// undone: only a candidate that asks once, and does not wait, receives the error.
    pub(crate) fn is_refused(&mut self, error: &RequestError, accepted: bool) -> bool {
        let waits = self.config.persistent || (accepted && !self.config.at_once);
        let hopeless = match error.class {
            Class::Denied | Class::Invalid | Class::Mismatch | Class::Miscount | Class::Elected => {
                true
            }
            Class::Auth | Class::Backoff => !waits,
            Class::Retry
            | Class::Stale
            | Class::Compacted
            | Class::LeaseTaken
            | Class::Proxy
            | Class::Certificate
            | Class::LeaseGone => false,
        };
        let joining = matches!(self.phase, Phase::Joining { .. });
        if self.registered || !hopeless || !joining {
            return false;
        }
        self.error = Some(error.clone());
        true
    }

    /// Sets if it is held back from joining: its node is unhealthy, or its work goes on. Returns true if it waits to join.
    pub(crate) fn hold_back(&mut self, held: bool) -> bool {
        self.held = held;
        matches!(self.phase, Phase::Joining { request: None, .. })
    }

    /// Its key is given up, and it joins again when it is not held back any more. The key.
    pub(crate) fn step_aside(&mut self, now: Time) -> Option<Own> {
        let Phase::Waiting { own } = self.phase.clone() else {
            return None;
        };
        self.held = true;
        self.join_at(now);
        Some(own)
    }

    /// Its key is given up, and it joins again at the back. The key.
    pub(crate) fn step_back(&mut self, now: Time) -> Option<Own> {
        let Phase::Waiting { own } = self.phase.clone() else {
            return None;
        };
        self.join_at(now);
        Some(own)
    }

    /// Returns true if it does not join again until [`Self::come_back`] or [`Self::hold_back`] permits it.
    pub(crate) fn is_held_back(&self) -> bool {
        self.held
    }

    /// The reason for which it was held back is over.
    pub(crate) fn come_back(&mut self) {
        self.held = false;
    }

    /// Returns true if it stepped aside, and joins when it comes back.
    pub(crate) fn is_aside(&self) -> bool {
        self.held && matches!(self.phase, Phase::Joining { .. })
    }

    /// The key was lost while it waited: when to join again. A key that is lost each time soon after it stood is put
    /// ever more slowly, whatever takes it away.
    pub(super) fn rejoin_at(&mut self, now: Time) -> Time {
        let short = now.since(self.stood_at) < LONGEST_PAUSE;
        self.short_stays = if short { self.short_stays + 1 } else { 0 };
        now.after(pause(self.short_stays, LONGEST_PAUSE))
    }

    /// Below that prefix all use the same number.
    fn family(&self) -> Option<(&Arc<[u8]>, usize)> {
        let partitions = self.config.partitions.as_ref();
        let partitions =
            partitions.map(|partitions| (&partitions.family, partitions.count as usize));
        let permit = self.config.permit.as_ref();
        partitions.or(permit.map(|permit| (&permit.family, permit.capacity)))
    }

    /// Returns the error for a candidate that asks for another number than others, one of whose keys is `other`.
    fn mismatch(&self, other: &[u8]) -> Option<RequestError> {
        let (family, ours) = self.family()?;
        let (class, message) = if self.is_member() {
            (Class::Miscount, miscount(family, ours, other))
        } else {
            let (theirs, key) = (level_below(family, other), String::from_utf8_lossy(other));
            let message = format!(
                "capacity {ours} was requested, but others hold or await permits of capacity {theirs}, as the key {key}"
            );
            (Class::Mismatch, message)
        };
        Some(RequestError::new(class, message, ""))
    }
}

/// Why a candidate has left that does not want to stand any more.
pub(super) fn left(closing: bool) -> EndReason {
    if closing {
        EndReason::SessionClosed
    } else {
        EndReason::Left
    }
}

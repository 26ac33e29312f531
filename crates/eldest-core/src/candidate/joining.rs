//! Puts a candidate's key exactly once, even if answers are lost.

use std::sync::Arc;

use super::Candidacy;
use super::config::{level_below, miscount};
use super::phase::Phase;
use super::seat::Seat;
use crate::action::{
    Admission, Answer, Ask, CandidateAction, Class, Join, Joined, Note, RequestError,
};
use crate::ids::RequestId;
use crate::kv::{Entry, Header, is_elected};
use crate::purpose::Purpose;
use crate::queue::{Own, excludes};
use crate::reason::EndReason;
use crate::timers::Timer;

impl Seat<'_> {
    /// Sends the join, or waits until fewer are in flight.
    pub(crate) fn queue_join(&mut self) {
        if self.joins.enter(self.slot) && self.start_join() {
            self.joins.sent();
        }
    }

    /// Sends the join if everything that it needs exists; otherwise, the arrival of the missing part calls this again.
    pub(crate) fn start_join(&mut self) -> bool {
        let Some(lease) = self.lease.trusted_id() else {
            return false;
        };
        let Phase::Joining {
            request: None,
            not_before,
        } = self.me.phase
        else {
            return false;
        };
        let is_barred = self.me.needs_clean_reads() && self.challenges.reads.is_barred();
        if self.me.held || is_barred || self.challenges.anchor.holds_joins() {
            return false;
        }
        if self.now < not_before {
            self.out.set_timer(not_before, Timer::Slot(self.slot));
            return false;
        }
        let key = self.me.key(lease);
        if self.removals.wait(&key, self.slot) {
            return false;
        }
        self.check_join(&key);
        let ask = Ask::Join(Join {
            key,
            value: self.challenges.announce(self.me.value()),
            lease,
            prefix: Arc::clone(&self.me.prefix),
            admission: admission(self.me),
        });
        if !self.me.uncertain {
            self.me.joins_after = self.out.known_revision();
        }
        self.renew_view();
        // The watch is sent together with the join, so that it costs no round trip of its own.
        self.watch();
        let request = self.out.ask(Purpose::Join { slot: self.slot }, ask);
        self.me.view.join_begun(request);
        debug_assert!(
            !self.me.view.is_current(),
            "a view waits for the read of its join"
        );
        self.me.enter(Phase::Joining {
            request: Some((request, lease)),
            not_before,
        });
        self.want_clean_read();
        true
    }

    /// Applies the answer to a join, if the candidate waits for it. The lease of that join is the session's present
    /// one: its loss ends every wait for a join. Returns true if the key exists from now on.
    pub(crate) fn joined(&mut self, request: RequestId, answer: Answer) -> bool {
        self.me.view.join_over(request);
        let lease = match self.me.phase {
            Phase::Joining {
                request: Some((awaited, lease)),
                ..
            } if awaited == request => lease,
            _ => return false,
        };
        self.me.join_at(self.now);
        match answer {
            Answer::Joined(joined) => return self.join_done(request, lease, joined),
            Answer::Failed(error) => self.join_failed(&error),
            _ => {}
        }
        false
    }

    /// Judges the key at the candidate's path under `lease`. Returns true if it is the candidate's.
    fn join_done(&mut self, request: RequestId, lease: i64, joined: Joined) -> bool {
        let Joined {
            header,
            created,
            entries,
            other,
        } = joined;
        self.me.failures = 0;
        let key = self.me.key(lease);
        let standing = entries.iter().find(|e| e.key == key);
        if !self.me.wanted {
            // The candidate has left while the join was in flight.
            let create_revision = standing.map(|e| e.create_revision);
            let reason = left(self.closing);
            self.me.enter(Phase::Leaving { reason });
            debug_assert!(
                self.removals.is_held_by(&key, self.slot),
                "the path of a join under way is held for the candidate that left"
            );
            self.remove(&key, create_revision, Some(self.slot));
            return false;
        }
        let (create_revision, ours) = match standing {
            _ if created => (header.revision, true),
            // The key is from a join of ours whose answer was lost. An older key is not: a restored store may bring
            // back a key that we asked to delete, or by which we led.
            Some(e) => (
                e.create_revision,
                e.lease == lease && self.me.uncertain && e.create_revision > self.me.joins_after,
            ),
            None => {
                self.not_admitted(header.revision, &key, &entries, other.as_deref());
                return false;
            }
        };
        if !ours {
            // The key blocks the candidate and serves no other.
            self.remove(&key, Some(create_revision), Some(self.slot));
            return false;
        }
        let own = Own {
            key,
            create_revision,
            lease,
        };
        self.join_confirmed(request, &own, (header, created), entries);
        true
    }

    /// Handles the candidate's new key, which the answer to the join `request` shows.
    fn join_confirmed(
        &mut self,
        request: RequestId,
        own: &Own,
        (header, created): (Header, bool),
        entries: Vec<Entry>,
    ) {
        let (slot, standing) = (self.slot, entries.iter().find(|e| e.key == own.key));
        let adopted = standing.filter(|_| !created);
        self.check_adopted(own, adopted);
        self.me.announced_at = adopted.map_or(header.revision, |e| e.mod_revision);
        // The announced value may have changed since the join was sent.
        let announced = self.challenges.announce(self.me.value());
        let same_value = standing.is_none_or(|e| e.value == announced);
        self.me.uncertain = false;
        self.me.stood_at = self.now;
        self.me.enter(Phase::Waiting { own: own.clone() });
        // The key of an earlier lease would block the queue for ever if another program overwrote it.
        let former = self.me.former.take();
        let left = former.and_then(|f| {
            let stands = |e: &&Entry| e.key == f.key && e.lease != f.lease;
            entries.iter().find(stands).cloned()
        });
        let first_time = !std::mem::replace(&mut self.me.registered, true);
        *self.stood_once = true;
        self.out.note(Note::Joined {
            slot,
            key: Arc::clone(&own.key),
            create_revision: own.create_revision,
            again: !first_time,
        });
        // Without another key, this one is read to verify renewals: we certainly have the permission.
        self.lease.may_read(&own.key);
        if first_time {
            self.out
                .notify_candidate(CandidateAction::Registered { slot });
        }
        if !same_value {
            self.me.announcements().owe();
            self.announce();
        }
        debug_assert!(
            same_value || self.me.is_writing(),
            "what was announced while the join was under way is written into the key"
        );
        debug_assert!(
            !self.me.uncertain,
            "a key that stands is the one that may have been put unknown"
        );
        if let Some(left) = left {
            self.remove(&left.key, Some(left.create_revision), None);
        }
        self.take_snapshot((request, true), header.revision, entries);
    }

    /// Checks that the session may be a candidate by this key, and that an `adopted` key is from a join of this
    /// candidate.
    fn check_adopted(&self, own: &Own, adopted: Option<&Entry>) {
        debug_assert_eq!(
            Some(own.lease),
            self.lease.id(),
            "a candidate stands by a key of the session's lease"
        );
        let Some(entry) = adopted else {
            return;
        };
        debug_assert!(
            !self.out.was_asked_to_go(&own.key, own.create_revision),
            "a key that was asked to go is never adopted"
        );
        debug_assert_eq!(
            entry.lease, own.lease,
            "an adopted key is bound to our lease"
        );
        debug_assert!(
            self.me.uncertain,
            "a key is adopted only after a join whose answer was lost"
        );
        debug_assert!(
            self.me.joins_after < own.create_revision,
            "an adopted key is younger than the joins that may have put it"
        );
    }

    /// Handles a join that put no `key`: at `revision`, keys exist beside which the join is not allowed.
    fn not_admitted(&mut self, revision: i64, key: &[u8], entries: &[Entry], other: Option<&[u8]>) {
        let config = &self.me.config;
        let excluding = entries.iter().filter(|entry| excludes(&entry.key, key));
        let refused =
            elected(self.me, entries).or_else(|| other.and_then(|other| mismatch(self.me, other)));
        if let Some(error) = refused {
            self.me.error = Some(error.clone());
            let slot = self.slot;
            self.out.note(Note::JoinFailed { slot, error });
            self.leave(EndReason::Refused);
        } else if config.lock && !config.at_once {
            // The keys that prevented the join are deeper, and do not count; the transaction detects any join before
            // ours.
            self.me.free_at = revision;
            self.queue_join();
        } else if !config.at_once {
            self.retry_join(Class::Retry);
        } else if excluding.count() >= self.me.capacity() {
            self.leave(EndReason::Taken);
        } else {
            // The permit may be free beside the keys that existed then; the transaction detects a candidate that joins
            // before us.
            self.me.free_at = revision;
            self.queue_join();
        }
    }

    fn join_failed(&mut self, error: &RequestError) {
        if error.ambiguous {
            self.lease.suspect();
        }
        self.me.uncertain |= error.ambiguous;
        debug_assert!(
            self.me.uncertain || !error.ambiguous,
            "the key of a join that may have been done may stand"
        );
        debug_assert!(
            self.lease.is_suspicious() || !error.ambiguous,
            "after a join that may have been done, the lease's keys are swept"
        );
        self.out.note(Note::JoinFailed {
            slot: self.slot,
            error: error.clone(),
        });
        if error.class == Class::LeaseGone {
            self.lease.set_gone();
        } else if !self.me.wanted {
            self.leave(left(self.closing));
        } else if !self.refuse_if_new(error) {
            self.retry_join(error.class);
        }
    }

    fn retry_join(&mut self, class: Class) {
        self.me.failures += 1;
        let not_before = self.now.after(self.pace.pause(self.me.failures, class));
        debug_assert!(
            self.now < not_before || self.me.failures == 1,
            "joins that fail again and again are paced"
        );
        self.me.join_at(not_before);
        self.out.set_timer(not_before, Timer::Slot(self.slot));
    }

    /// Makes a candidate that never had a key leave with this error, instead of waiting, if the error is not expected
    /// to pass.
    ///
    /// An earlier key of this session shows that etcd accepted the user, and had space. A change since then may be
    /// undone, so only a candidate that does not wait receives the error.
    pub(crate) fn refuse_if_new(&mut self, error: &RequestError) -> bool {
        let config = &self.me.config;
        let waits = config.persistent || (*self.stood_once && !config.at_once);
        let hopeless = match error.class {
            Class::Denied | Class::Invalid | Class::Mismatch | Class::Miscount | Class::Elected => {
                true
            }
            Class::Auth | Class::Backoff | Class::Full => !waits,
            Class::Retry
            | Class::Stale
            | Class::Compacted
            | Class::LeaseTaken
            | Class::Proxy
            | Class::Certificate
            | Class::Outdated
            | Class::LeaseGone => false,
        };
        let joining = matches!(self.me.phase, Phase::Joining { .. });
        if self.me.registered || !hopeless || !joining {
            return false;
        }
        self.me.error = Some(error.clone());
        self.leave(EndReason::Refused);
        true
    }
}

/// Returns the conditions of a candidate's join.
fn admission(me: &Candidacy) -> Admission {
    let is_clear = me.config.lock && me.free_at > 0;
    let at_once = me.config.at_once;
    Admission {
        none_after: (at_once || is_clear).then_some(me.free_at),
        nothing_else_in: family(me).map(|(family, _)| Arc::clone(family)),
        only_locks: me.config.lock && !is_clear,
    }
}

/// Returns the prefix below which all keys must name the same number, and that number.
fn family(me: &Candidacy) -> Option<(&Arc<[u8]>, usize)> {
    let partitions = me.config.partitions.as_ref();
    let partitions = partitions.map(|partitions| (&partitions.family, partitions.count as usize));
    let permit = me.config.permit.as_ref();
    partitions.or(permit.map(|permit| (&permit.family, permit.capacity)))
}

/// Returns the error for a candidate whose number differs from the number of others, whose key is `other`.
fn mismatch(me: &Candidacy, other: &[u8]) -> Option<RequestError> {
    let (family, ours) = family(me)?;
    let (class, message) = if me.is_member() {
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

/// Returns the error for a lock if candidates of an election prevent it.
fn elected(me: &Candidacy, entries: &[Entry]) -> Option<RequestError> {
    let known = entries.iter().any(|entry| is_elected(&entry.value));
    (me.config.lock && known).then(|| {
        let prefix = String::from_utf8_lossy(&me.prefix);
        let message =
            format!("candidates of an election stand below {prefix}, so it cannot be a lock");
        RequestError::new(Class::Elected, message, "")
    })
}

/// Returns the reason for the end of a candidate that no longer wants to join.
pub(super) fn left(closing: bool) -> EndReason {
    if closing {
        EndReason::SessionClosed
    } else {
        EndReason::Left
    }
}

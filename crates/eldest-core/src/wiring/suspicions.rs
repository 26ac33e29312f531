//! Challenges the sessions that this one suspects, condemns those that do not answer, and deletes the keys of those that
//! are condemned.

use std::sync::Arc;

use super::Core;
use super::hall::Hall;
use super::lease::Tenure;
use super::slots::Rooms;
use crate::action::{Answer, Ask, ChallengeNote, Class, RequestError, RequestId};
use crate::candidate::Candidacy;
use crate::challenge::{
    Announced, LONGEST, Progress, Suspect, Target, challenge, challenge_key, condemn,
    delete_by_absence, is_challenge_by, lead_of,
};
use crate::ids::SlotId;
use crate::kv::Entry;
use crate::purpose::{Concern, Purpose};
use crate::queue::excludes;
use crate::time::Time;
use crate::timers::Timer;
use crate::txn::Transacted;

/// The inputs of challenges, at one time.
pub struct Challenging<'a> {
    core: &'a mut Core,
    now: Time,
}

impl Challenging<'_> {
    pub(super) fn new(core: &mut Core, now: Time) -> Challenging<'_> {
        Challenging { core, now }
    }

    /// Records that the watchdog, or a check past the deadline, saw the end of the time for which clean reads let the
    /// session lead.
    pub fn lead_no_longer(self) {
        self.core.tenure(self.now).lead_no_longer();
    }

    /// Suspects the session of that lease to be silent. The suspicion may be wrong.
    pub fn suspect(self, lease: i64) {
        self.core.expire(self.now);
        let mut hall = self.core.hall(self.now);
        hall.set_silent(lease, true);
        hall.suspect(lease);
    }

    /// Suspects the session that holds this key, for which no candidate of this session waits yet. A node that waits in
    /// two sessions for two sessions of another node challenges both at once by this.
    pub fn suspect_holder(self, held: &Entry) {
        self.core.expire(self.now);
        self.core.hall(self.now).suspect_holder(held);
    }

    /// Ends the suspicion of that session, and deletes the challenge.
    pub fn trust_again(self, lease: i64) {
        self.core.expire(self.now);
        let mut hall = self.core.hall(self.now);
        hall.set_silent(lease, false);
        hall.end_suspicion(lease);
        self.core.close_if_done(self.now);
    }

    /// Stops allowing challenges. The session's terms end. It then gives up its lease, because its keys announce the
    /// anchor, and joins again under a lease by which alone it leads.
    pub fn withdraw(self) {
        self.core.expire(self.now);
        self.core.rooms.challenges.withdraw();
        if self.core.rooms.challenges.is_withdrawing() {
            self.core.tenure(self.now).lead_no_longer();
        }
        self.core.close_if_done(self.now);
    }
}

impl Tenure<'_> {
    /// Applies the answer to a request about a suspect.
    pub(super) fn suspect_answered(&mut self, suspect: i64, request: RequestId, answer: Answer) {
        match answer {
            Answer::Transacted(result) => self.hall().suspect_shown(suspect, request, &result),
            Answer::Failed(error) => {
                if error.class == Class::LeaseGone {
                    self.rooms.lease.set_gone();
                    self.end_if_gone();
                }
                self.hall().suspect_failed(suspect, request, error);
            }
            _ => {}
        }
        self.hall().end_if_left(suspect);
    }
}

impl Hall<'_> {
    fn of(&mut self, lease: i64) -> Option<&mut Suspect> {
        self.rooms.challenges.suspects.get(lease)
    }

    pub(super) fn suspect(&mut self, lease: i64) {
        let makes = self.rooms.challenges.config().is_some();
        if makes && self.rooms.challenges.suspects.add(lease) {
            let note = ChallengeNote::Suspects { lease };
            self.rooms.out.note_challenge(note);
            self.challenge(lease);
        }
    }

    fn suspect_holder(&mut self, held: &Entry) {
        let lease = held.lease;
        let Some(announced) = self.rooms.challenges.announced_by(held) else {
            return;
        };
        if self.rooms.lease.id() == Some(lease) {
            return;
        }
        self.suspect(lease);
        if let Some(suspect) = self.of(lease) {
            suspect.name_target(Target {
                slot: None,
                key: Arc::clone(&held.key),
                create_revision: held.create_revision,
                announced,
            });
            self.challenge(lease);
        }
    }

    fn end_suspicion(&mut self, lease: i64) {
        if let Some(mut suspect) = self.forget(lease) {
            self.clear_challenge(suspect.take_target());
        }
    }

    fn forget(&mut self, lease: i64) -> Option<Suspect> {
        let suspect = self.rooms.challenges.suspects.remove(lease)?;
        let note = ChallengeNote::Trusts { lease };
        self.rooms.out.note_challenge(note);
        Some(suspect)
    }

    /// Ends the suspicion with the target, if no candidate of this session waits for a key of the suspect.
    fn leave_if_unawaited(&mut self, lease: i64, target: Option<&Target>) {
        let challenges = &mut self.rooms.challenges;
        let is_awaited = challenges.elders.contains(lease);
        if target.is_some_and(|target| target.slot.is_none()) && !is_awaited {
            challenges.suspects.set_left(lease, true);
        }
    }

    /// Ends the suspicion of a session that is no longer ahead, once no answer about it is awaited.
    pub(super) fn end_if_left(&mut self, lease: i64) {
        if self.of(lease).is_some_and(|suspect| suspect.is_over()) {
            self.end_suspicion(lease);
        }
    }

    /// Challenges the suspect without a further pause, because etcd shows that it does not renew its lease.
    pub(super) fn challenge_now(&mut self, lease: i64) {
        let now = self.now;
        if let Some(suspect) = self.of(lease) {
            suspect.hurry(now);
            self.challenge(lease);
        }
    }

    /// Deletes the challenge of a target, which was written at that revision or may have been put unknown.
    fn clear_challenge(&mut self, target: Option<(Target, Option<i64>)>) {
        if let Some(((target, written), lease)) = target.zip(self.rooms.lease.id()) {
            let key = challenge_key(&target.announced.anchor, lease);
            self.remove(&key, written, None);
        }
    }

    /// Returns the key of the suspect for which that candidate of ours waits, if the view shows one that announces an
    /// anchor of its own lease.
    fn target_in(&self, slot: SlotId, suspect: i64) -> Option<Target> {
        // The lease may have been granted to this session after it was suspected.
        if self.rooms.lease.id() == Some(suspect) {
            return None;
        }
        let candidate = self.slots.candidate(slot)?;
        waits_for(candidate, suspect).into_iter().find_map(|entry| {
            Some(Target {
                slot: Some(slot),
                key: Arc::clone(&entry.key),
                create_revision: entry.create_revision,
                announced: self.rooms.challenges.announced_by(entry)?,
            })
        })
    }

    /// Sends the next challenge of that suspect, if it is time and a key of the suspect is known.
    fn challenge(&mut self, suspect: i64) {
        let mut known = self.of(suspect).and_then(|s| s.target.clone());
        if known.is_none() {
            let mut slots = self.slots.ids().into_iter();
            known = slots.find_map(|slot| self.target_in(slot, suspect));
        }
        let now = self.now;
        let Rooms {
            challenges,
            lease,
            removals,
            out,
            ..
        } = &mut *self.rooms;
        let (Some(suspected), Some(own), Some(target)) =
            (challenges.suspects.get(suspect), lease.trusted_id(), known)
        else {
            return;
        };
        let Progress::Idle { not_before } = suspected.progress else {
            return;
        };
        // A challenge of an earlier suspicion must be gone: a new one is put again.
        let is_going = removals.contains(&challenge_key(&target.announced.anchor, own));
        if now < not_before || is_going {
            let at = not_before.max(now.after(RETRY));
            out.set_timer(at, Timer::Suspect(suspect));
            return;
        }
        debug_assert_ne!(own, suspect, "no session challenges itself");
        debug_assert!(
            !removals.contains(&challenge_key(&target.announced.anchor, own)),
            "no challenge uses the path of one that must go"
        );
        let request = out.ask(
            Purpose::Challenges(Concern::Suspect { suspect }),
            challenge(&target, own),
        );
        suspected.target = Some(target);
        suspected.progress = Progress::Challenging(request);
        // The challenge may be put later or twice, when nothing waits for it any more.
        lease.suspect();
    }

    /// Handles a due time of a suspect: to challenge or to condemn it.
    pub(super) fn suspect_due(&mut self, suspect: i64) {
        let now = self.now;
        let Some(suspected) = self.of(suspect) else {
            return;
        };
        match suspected.progress {
            Progress::Idle { .. } => self.challenge(suspect),
            Progress::Counting { written, until } if now >= until => {
                self.condemn(suspect, written);
            }
            Progress::Gone => self.delete_all_absent(suspect),
            _ => {}
        }
    }

    /// Condemns the suspect. A suspicion ends, or looks for another key, when no candidate of ours waits for its key any more.
    fn condemn(&mut self, suspect: i64, written: i64) {
        let target = self.of(suspect).and_then(|s| s.target.clone());
        let (Some(target), Some(own)) = (target, self.rooms.lease.id()) else {
            return;
        };
        let ask = condemn(&target, own, written);
        let request = self
            .rooms
            .out
            .ask(Purpose::Challenges(Concern::Suspect { suspect }), ask);
        if let Some(suspected) = self.of(suspect) {
            suspected.progress = Progress::Condemning { request, written };
        }
    }

    /// Deletes the challenge of a key that has gone, and looks for another key of the suspect, which is challenged not
    /// before that time.
    fn drop_target(&mut self, suspect: i64, not_before: Time) {
        let Some(suspected) = self.of(suspect) else {
            return;
        };
        let target = suspected.take_target();
        suspected.start_again(not_before);
        self.leave_if_unawaited(suspect, target.as_ref().map(|(target, _)| target));
        self.clear_challenge(target);
        self.challenge(suspect);
    }

    /// Does the same for a key that our view still shows. A challenge of this key fails too, until the watch catches up.
    fn drop_outdated_target(&mut self, suspect: i64, earlier: u32) {
        let failures = earlier + 1;
        if let Some(suspected) = self.of(suspect) {
            suspected.failures = failures;
        }
        let pause = self.rooms.pace.pause(failures, Class::Retry);
        self.drop_target(suspect, self.now.after(pause));
    }

    /// Applies what a challenge or a condemnation has done or read.
    fn suspect_shown(&mut self, suspect: i64, request: RequestId, result: &Transacted) {
        let (now, trust) = (self.now, self.rooms.challenges.config().map(|c| c.trust));
        let (Some(suspected), Some(trust)) = (self.rooms.challenges.suspects.get(suspect), trust)
        else {
            return;
        };
        if !suspected.progress.awaits(request) {
            return;
        }
        let was_condemned = matches!(suspected.progress, Progress::Condemning { .. });
        suspected.check_answer(request);
        let failures = std::mem::take(&mut suspected.failures);
        let Some(target) = suspected.target.clone() else {
            return;
        };
        if was_condemned && result.held {
            self.gone(suspect, true);
            return;
        }
        // The challenge was put, or all three keys were read.
        let anchor = result.entry(usize::from(!result.held));
        let written = if result.held {
            Some(result.header.revision)
        } else {
            result.entry(0).map(|challenge| challenge.mod_revision)
        };
        let stands = |key: Option<&Entry>| {
            key.is_some_and(|key| key.create_revision == target.create_revision)
        };
        let anchor = anchor.filter(|a| a.create_revision == target.announced.create_revision);
        let Some(anchor) = anchor else {
            self.gone(suspect, false);
            return;
        };
        if !result.held && !stands(result.entry(2)) {
            self.drop_outdated_target(suspect, failures);
            return;
        }
        let wait = lead_of(&anchor.value).map(|lead| trust.outlasts(lead));
        match (written, wait) {
            (Some(written), Some(wait)) if !was_condemned => {
                let until = now.after(wait);
                suspected.progress = Progress::Counting { written, until };
                self.rooms.out.set_timer(until, Timer::Suspect(suspect));
                let lease = suspect;
                let note = ChallengeNote::Challenges { lease, wait };
                self.rooms.out.note_challenge(note);
            }
            // Only etcd shows that it lives, and its answer has done so.
            (None, _) if self.rooms.challenges.elders.is_unheard(suspect) => {
                self.forget(suspect);
            }
            // The suspect has answered, or its anchor does not say for how long it may lead.
            _ => {
                let (pause, times) = suspected.answered(wait.unwrap_or(LONGEST));
                let at = now.after(pause);
                suspected.start_again(at);
                suspected.check_pause(now.after(wait.unwrap_or(LONGEST).min(LONGEST)));
                let lease = suspect;
                let note = ChallengeNote::Refuted { lease, times };
                self.rooms.out.note_challenge(note);
                self.rooms.out.set_timer(at, Timer::Suspect(suspect));
            }
        }
    }

    fn suspect_failed(&mut self, suspect: i64, request: RequestId, error: RequestError) {
        let (now, pace) = (self.now, self.rooms.pace);
        let Some(suspected) = self.rooms.challenges.suspects.get(suspect) else {
            return;
        };
        if !suspected.progress.awaits(request) {
            return;
        }
        suspected.failures += 1;
        let at = now.after(pace.pause(suspected.failures, error.class));
        suspected.start_again(at);
        let anchor = suspected
            .target
            .as_ref()
            .map(|t| Arc::clone(&t.announced.anchor));
        let out = &mut self.rooms.out;
        out.note_failure("challenge", &anchor.unwrap_or_default(), error);
        out.set_timer(at, Timer::Suspect(suspect));
    }

    /// Deletes the suspect's keys, because its anchor is gone. If this session has condemned it, its lease is revoked
    /// too, as a courtesy to those who may not delete its keys.
    fn gone(&mut self, suspect: i64, is_condemned: bool) {
        let last = self.of(suspect).and_then(Suspect::has_gone);
        self.leave_if_unawaited(suspect, last.as_ref().map(|(target, _)| target));
        if is_condemned {
            let ask = Ask::Revoke { lease: suspect };
            let purpose = Purpose::Challenges(Concern::Revoke);
            self.rooms.out.ask(purpose, ask);
            let note = ChallengeNote::Condemns { lease: suspect };
            self.rooms.out.note_challenge(note);
        } else {
            self.clear_challenge(last);
        }
        self.delete_all_absent(suspect);
    }

    fn delete_all_absent(&mut self, suspect: i64) {
        for slot in self.slots.ids() {
            self.delete_absent(slot, suspect);
        }
    }

    /// Deletes the keys of a condemned session for which that candidate of ours waits.
    fn delete_absent(&mut self, slot: SlotId, suspect: i64) {
        let Rooms {
            challenges, out, ..
        } = &mut *self.rooms;
        let (Some(candidate), Some(suspected)) =
            (self.slots.candidate(slot), challenges.suspects.get(suspect))
        else {
            return;
        };
        let Some(announced) = suspected.gone.clone() else {
            return;
        };
        for entry in waits_for(candidate, suspect) {
            let key = &entry.key;
            if suspected.begin_deletion(key) {
                let target = Target {
                    slot: Some(slot),
                    key: Arc::clone(key),
                    create_revision: entry.create_revision,
                    announced: announced.clone(),
                };
                let key = Arc::clone(key);
                let purpose = Purpose::Challenges(Concern::Absence { suspect, key });
                out.ask(purpose, delete_by_absence(&target));
            }
        }
    }

    /// Applies the answer to the deletion of a key of a condemned session.
    pub(super) fn deleted_by_absence(&mut self, suspect: i64, key: &[u8], answer: Answer) {
        self.absence_answered(suspect, key, answer);
        self.end_if_left(suspect);
    }

    fn absence_answered(&mut self, suspect: i64, key: &[u8], answer: Answer) {
        let now = self.now;
        let Some(suspected) = self.rooms.challenges.suspects.get(suspect) else {
            return;
        };
        suspected.deletion_answered(key);
        match answer {
            Answer::Transacted(result) => {
                let is_back = |announced: &Announced| {
                    let anchor = result.entry(0);
                    anchor.is_some_and(|a| a.create_revision == announced.create_revision)
                };
                // The store was restored: the suspect is challenged again.
                if suspected.gone.as_ref().is_some_and(is_back) {
                    self.rooms.challenges.suspects.remove(suspect);
                    self.suspect(suspect);
                }
            }
            Answer::Failed(error) => {
                suspected.failures += 1;
                let at = now.after(self.rooms.pace.pause(suspected.failures, error.class));
                let out = &mut self.rooms.out;
                out.note_failure("delete", key, error);
                out.set_timer(at, Timer::Suspect(suspect));
            }
            _ => {}
        }
    }

    /// Reviews the suspects after a change of what that candidate of ours waits for.
    pub(super) fn review_suspects(&mut self, slot: SlotId) {
        for suspect in self.rooms.challenges.suspects.leases() {
            let Some(suspected) = self.rooms.challenges.suspects.get(suspect) else {
                continue;
            };
            match (&suspected.progress, &suspected.target) {
                (Progress::Gone, _) => self.delete_absent(slot, suspect),
                // The answer decides: a condemnation deletes the key before it arrives.
                (Progress::Challenging(_) | Progress::Condemning { .. }, _) => {}
                (_, Some(target)) if target.slot == Some(slot) => {
                    let target = target.clone();
                    let candidate = self.slots.candidate(slot);
                    let is_current = candidate.is_none_or(|c| c.view.is_current());
                    if is_current && self.target_in(slot, suspect).as_ref() != Some(&target) {
                        self.drop_target(suspect, self.now);
                    }
                }
                (Progress::Idle { .. }, _) => self.challenge(suspect),
                _ => {}
            }
        }
    }

    /// Returns true if the key is a challenge by this session that no suspicion needs.
    pub(super) fn is_stray_challenge(&self, key: &[u8], own: i64) -> bool {
        is_challenge_by(key, own) && !self.rooms.challenges.is_needed(key, own)
    }

    /// Counts again for every challenge: the connection broke, so the store may have been restored since, and then no
    /// challenge stands for as long as it seems.
    pub(super) fn restart_suspicions(&mut self) {
        for suspect in self.rooms.challenges.suspects.leases() {
            let now = self.now;
            if let Some(suspected) = self.of(suspect) {
                suspected.start_again(now);
                self.rooms.out.set_timer(now, Timer::Suspect(suspect));
            }
        }
    }
}

/// The pause before the removal of an earlier challenge is checked again.
const RETRY: std::time::Duration = std::time::Duration::from_millis(50);

/// Returns the keys of that session for which the candidate waits: older ones that exclude it, or for a member all.
fn waits_for(candidate: &Candidacy, lease: i64) -> Vec<&Entry> {
    let Some(own) = candidate.own() else {
        return Vec::new();
    };
    let mut keys = candidate.view.of_lease(lease);
    if candidate.leads() {
        keys.retain(|entry| {
            entry.create_revision < own.create_revision && excludes(&entry.key, &own.key)
        });
    } else if !candidate.has_neighbours() {
        keys.clear();
    }
    keys
}

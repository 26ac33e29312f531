//! Puts the session's anchor, reads cleanly while the session leads or may lead next, and answers challenges.

use std::sync::Arc;

use super::hall::Hall;
use super::lease::Tenure;
use super::slots::{Rooms, Slot};
use crate::action::{Action, Answer, ChallengeNote, Class, RequestError, RequestId};
use crate::candidate::{Candidacy, End, is_near_lead};
use crate::challenge::{CHALLENGED, answer, challenger, challenges_of, clean_read, put_anchor};
use crate::kv::Change;
use crate::purpose::{Concern, Purpose};
use crate::reason::LostReason;
use crate::time::Time;
use crate::timers::Timer;
use crate::txn::Transacted;

impl Tenure<'_> {
    /// Ends every term whose time is over: all of them if the lease is no longer trusted, or if no clean read lets the
    /// session lead any more.
    pub(super) fn expire(&mut self) {
        if self.rooms.lease.deadlines().is_trust_over(self.now) {
            self.distrust();
        }
        if self.rooms.lease.deadlines().is_lead_over(self.now) {
            self.lead_no_longer();
        }
    }

    /// Ends all terms, because no clean read lets the session lead any more. Its keys and its lease stay.
    pub(super) fn lead_no_longer(&mut self) {
        if !self.rooms.lease.deadlines_mut().lead_no_longer() {
            return;
        }
        for slot in self.slots.ids() {
            if let Some(mut seat) = self.hall().seat(slot) {
                seat.end_term(LostReason::LeaseExpiring, End::Lapsed);
                seat.report_status();
            }
        }
        debug_assert!(
            self.slots.candidates().all(|(_, c)| !c.is_leading()),
            "nobody leads when no clean read lets the session lead"
        );
        self.rooms.out.act(Action::LeadNoLonger);
    }

    /// Applies the answer to a request about challenges.
    pub(super) fn challenges_concerned(
        &mut self,
        concern: Concern,
        request: RequestId,
        answer: Answer,
    ) {
        match concern {
            Concern::Anchor { anchor } => self.anchor_answered(request, anchor, answer),
            Concern::CleanRead => self.read_cleanly(request, answer),
            Concern::Answer => self.challenges_answered(request, answer),
            Concern::Suspect { suspect } => self.suspect_answered(suspect, request, answer),
            Concern::Absence { suspect, key } => {
                self.hall().deleted_by_absence(suspect, &key, answer);
            }
            Concern::Elder { lease } => self.hall().elder_read(lease, request, answer),
            Concern::Revoke => {}
        }
    }

    /// Applies the answer to the put of the anchor.
    fn anchor_answered(&mut self, request: RequestId, anchor: Arc<[u8]>, answer: Answer) {
        if !self.rooms.challenges.anchor.awaits(request) {
            return;
        }
        match answer {
            Answer::Transacted(result) => {
                let lease = self.rooms.lease.id();
                let found = result.entry(0);
                let created = match found {
                    None if result.held => result.header.revision,
                    Some(entry) if Some(entry.lease) == lease => entry.create_revision,
                    // Another program has put the key: only another lease has a free path.
                    _ => {
                        self.lose_lease(LostReason::LeaseLost);
                        return;
                    }
                };
                self.rooms.challenges.anchor.put(anchor, created);
                self.hall().watch_challenges();
                for slot in self.slots.ids() {
                    self.hall().review_candidate(slot);
                }
            }
            Answer::Failed(error) => self.anchor_failed(&anchor, &error),
            _ => {}
        }
    }

    fn anchor_failed(&mut self, anchor: &[u8], error: &RequestError) {
        if error.class == Class::LeaseGone {
            self.lose_lease(LostReason::LeaseLost);
            return;
        }
        let Rooms {
            challenges,
            pace,
            out,
            ..
        } = &mut *self.rooms;
        let pause = pace.pause(challenges.anchor.failed(), error.class);
        let not_before = self.now.after(pause);
        challenges.anchor.again(not_before);
        out.set_timer(not_before, Timer::Anchor);
        out.note_failure("put anchor", anchor, error.clone());
        self.refuse_new(error);
    }

    /// Applies the result of a clean read, or of an answer to challenges.
    fn read_cleanly(&mut self, request: RequestId, answer: Answer) {
        let Some(sent) = self.rooms.challenges.reads.answered(request) else {
            return;
        };
        match answer {
            Answer::Transacted(result) => self.judge_read(sent, &result),
            Answer::Failed(error) => {
                let anchor = self.rooms.challenges.anchor.known();
                let anchor = anchor.map(|own| Arc::clone(&own.anchor));
                let out = &mut self.rooms.out;
                out.note_failure("read anchor", &anchor.unwrap_or_default(), error.clone());
                self.hall().read_again();
                if error.class == Class::Denied {
                    self.lead_refused(Some(&error));
                } else {
                    self.rooms.challenges.reads.unanswered();
                }
            }
            _ => {}
        }
    }

    /// Lets the session lead by a read that shows its anchor and no challenge. A session whose anchor is gone gives up
    /// its lease.
    fn judge_read(&mut self, sent: Time, result: &Transacted) {
        let challenges = &mut self.rooms.challenges;
        let Some(own) = challenges.anchor.known() else {
            return;
        };
        let anchor = result.entry(0);
        if anchor.is_none_or(|entry| entry.create_revision != own.create_revision) {
            self.condemned();
            return;
        }
        let revision = result.header.revision;
        if result.found.get(1).is_some_and(Vec::is_empty) {
            challenges.reads.unchallenged(revision);
            self.lead_since(sent);
        } else {
            challenges.reads.challenged(revision);
            self.hall().answer_challenges();
        }
    }

    /// Gives up the lease of a session whose anchor is gone.
    fn condemned(&mut self) {
        self.rooms.out.note_challenge(ChallengeNote::Condemned);
        self.lose_lease(LostReason::LeaseLost);
    }

    /// Applies the result of an answer to challenges. While the anchor exists, its success is a clean read.
    fn challenges_answered(&mut self, request: RequestId, answer: Answer) {
        let Answer::Transacted(result) = answer else {
            self.read_cleanly(request, answer);
            return;
        };
        let Some(sent) = self.rooms.challenges.reads.answered(request) else {
            return;
        };
        if !result.held {
            self.condemned();
            return;
        }
        self.rooms.out.note_challenge(ChallengeNote::Answered);
        let reads = &mut self.rooms.challenges.reads;
        reads.unchallenged(result.header.revision);
        if reads.is_challenged() {
            self.hall().answer_challenges();
        }
        self.lead_since(sent);
    }

    /// Gives up the lease of a session that no longer allows challenges, once none of its terms is left.
    pub(super) fn withdraw_if_done(&mut self) {
        if !self.rooms.challenges.is_withdrawing() {
            return;
        }
        let acts = |c: &Candidacy| c.is_leading() || c.ending().is_some_and(|(_, stands)| stands);
        if self.slots.candidates().any(|(_, c)| acts(c)) {
            return;
        }
        if self.rooms.lease.lease().is_some() {
            self.lose_lease(LostReason::LeaseLost);
        } else {
            self.challenges_lost();
        }
    }

    /// Forgets the anchor, and all challenges, which went with the lease. A session that was withdrawing leads by its
    /// lease alone from now on, whatever ended the last one.
    pub(super) fn challenges_lost(&mut self) {
        if let Some(watch) = self.rooms.challenges.lease_lost() {
            self.rooms.watches.close(watch, &mut self.rooms.out);
        }
        if !self.rooms.challenges.are_allowed() {
            self.rooms.lease.deadlines_mut().lead_by_lease();
        }
        debug_assert_eq!(
            self.rooms.challenges.are_allowed(),
            self.rooms.lease.deadlines().need_clean_reads(),
            "a session leads by clean reads while it allows challenges"
        );
        debug_assert!(
            self.rooms.challenges.anchor.known().is_none(),
            "an anchor goes with its lease"
        );
        debug_assert!(
            self.rooms.challenges.suspects.challenged().next().is_none(),
            "a challenge goes with the lease of its author"
        );
    }

    /// Lets the session lead by a clean read that was sent then.
    fn lead_since(&mut self, sent: Time) {
        let Rooms {
            challenges,
            lease,
            out,
            ..
        } = &mut *self.rooms;
        let Some(config) = challenges.config().filter(|_| !challenges.is_withdrawing()) else {
            return;
        };
        let before = lease.deadlines().leads_until();
        let deadline = config.trust.deadline(sent, config.lead);
        lease.lead(self.now, deadline, out);
        if lease.deadlines().leads_until().is_none() {
            self.lead_refused(None);
            return;
        }
        let was_barred = challenges.reads.accepted();
        debug_assert!(
            !challenges.reads.is_barred(),
            "a session that may lead is not barred"
        );
        if before.is_none() || was_barred {
            for slot in self.slots.ids() {
                self.hall().review_candidate(slot);
            }
        }
    }

    /// Makes the session's candidates step back, if etcd has answered for so long and no answer has let the session lead.
    fn lead_refused(&mut self, error: Option<&RequestError>) {
        let Rooms {
            challenges,
            lease,
            out,
            ..
        } = &mut *self.rooms;
        let Some(config) = challenges.config() else {
            return;
        };
        let Some(lease) = lease.trusted_id() else {
            // Without trust in the lease, no answer could let the session lead.
            challenges.reads.unanswered();
            return;
        };
        let (most, was_barred) = (config.lead * 2, challenges.reads.is_barred());
        if !challenges.reads.refused(self.now, most) {
            return;
        }
        if !was_barred {
            let is_denied = error.is_some();
            out.note_challenge(ChallengeNote::StepsBack { lease, is_denied });
        }
        debug_assert!(
            self.rooms.lease.deadlines().leads_until().is_none(),
            "a session that may lead lets no other lead first"
        );
        if let Some(error) = error {
            self.refuse_new(error);
        }
        for slot in self.slots.ids() {
            if let Some(mut seat) = self.hall().seat(slot) {
                seat.make_way();
            }
        }
    }
}

impl Hall<'_> {
    /// Puts the anchor of a lease that is trusted, if the session allows challenges.
    pub(super) fn put_anchor(&mut self) {
        let Rooms {
            challenges,
            lease,
            out,
            ..
        } = &mut *self.rooms;
        let (Some(config), Some(lease)) = (challenges.config(), lease.trusted_id()) else {
            return;
        };
        match challenges.anchor.not_before() {
            Some(not_before) if self.now < not_before => {
                out.set_timer(not_before, Timer::Anchor);
            }
            Some(_) => {
                let at = (&*config.sessions, lease);
                let (anchor, ask) = put_anchor(at, config.lead, &config.address);
                let request = out.ask(Purpose::Challenges(Concern::Anchor { anchor }), ask);
                challenges.anchor.sent(request);
            }
            None => {}
        }
    }

    /// Sends the clean read that is due, if a candidate leads or may lead next, or if the session may be challenged; the
    /// following one is due an interval later.
    pub(super) fn clean_read_due(&mut self) {
        let near = |slot: &Slot| slot.candidate().is_some_and(is_near_lead);
        let Rooms {
            challenges, out, ..
        } = &mut *self.rooms;
        if !challenges.reads.take_due(self.now)
            || !(challenges.reads.is_challenged()
                || challenges.reads.is_barred()
                || self.slots.values().any(near))
        {
            return;
        }
        let Some(own) = challenges.anchor.known() else {
            return;
        };
        let request = out.ask(Purpose::Challenges(Concern::CleanRead), clean_read(own));
        challenges.reads.sent(self.now, request);
        self.read_again();
    }

    /// Makes another clean read due, an interval after the last one.
    fn read_again(&mut self) {
        let Rooms {
            challenges, out, ..
        } = &mut *self.rooms;
        challenges.want_read(self.now, false, out);
    }

    /// Deletes all challenges of the session, unless such a request was sent a moment ago.
    fn answer_challenges(&mut self) {
        let Rooms {
            challenges, out, ..
        } = &mut *self.rooms;
        let (Some(config), Some(own)) = (challenges.config(), challenges.anchor.known()) else {
            return;
        };
        if !challenges.reads.is_answering(self.now, config.interval) {
            let request = out.ask(Purpose::Challenges(Concern::Answer), answer(own));
            challenges.reads.answer_sent(self.now, request);
        }
    }

    /// Watches the session's challenges, unless it does already or the stream is down. A session that leads would find
    /// them by its reads; one that waits reads nothing.
    pub(super) fn watch_challenges(&mut self) {
        let Rooms {
            challenges,
            watches,
            out,
            ..
        } = &mut *self.rooms;
        let Some(own) = challenges.anchor.known() else {
            return;
        };
        if challenges.reads.watch().is_none() {
            let below = challenges_of(&own.anchor);
            let watch = watches.open(CHALLENGED, below, true, out);
            challenges.reads.set_watch(watch.map(|watch| watch.id));
        }
    }

    /// Records that the watch of the session's challenges exists since `revision`. Earlier challenges are read.
    pub(super) fn challenges_watched(&mut self, revision: i64) {
        self.rooms.challenges.reads.challenged(revision);
        self.read_again();
    }

    /// Answers the challenges that the watch shows.
    pub(super) fn challenges_changed(&mut self, changes: &[Change]) {
        let puts = changes.iter().filter(|c| matches!(c, Change::Put(_)));
        for by in puts.clone().filter_map(|put| challenger(put.key())) {
            let note = ChallengeNote::Challenged { by };
            self.rooms.out.note_challenge(note);
        }
        if let Some(revision) = puts.map(Change::revision).max() {
            self.rooms.challenges.reads.challenged(revision);
            self.answer_challenges();
            self.read_again();
        }
    }
}

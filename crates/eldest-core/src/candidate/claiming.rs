//! Confirms, before a candidate that requires versions leads, that no newer version has led its election.
//!
//! The election's mark names the newest version that led. A candidate whose turn has come compares the mark and its own
//! key in one transaction, which raises the mark to the candidate's version if the mark is older. The candidate leads
//! once the transaction has held, and never while the mark names a newer version.
//!
//! Why this is enough, whatever the watches show: at the revision of the transaction, the candidate's key exists and is
//! the eldest, because no older key can appear. A leader of a newer version raised the mark while its own key existed.
//! If that key was older, it is gone, so the mark was raised before this transaction, which therefore fails. If the key
//! is younger, its candidate leads only after the present key is gone. So a leader whose key exists never finds a mark
//! above its own version, and needs no rule for one: after another client has deleted the leader's key, the ordinary
//! rules end its term.

use std::sync::Arc;

use super::claim::State;
use super::phase::Phase;
use super::seat::Seat;
use crate::action::{Answer, Ask, Class, Note};
use crate::evacuation::{Mark, version_key};
use crate::ids::RequestId;
use crate::kv::{Entry, Header};
use crate::purpose::Purpose;
use crate::queue::{Own, View};
use crate::timers::Timer;
use crate::txn::{Op, Transacted, Txn, When};
use crate::version::Version;

impl Seat<'_> {
    /// Returns the mark of the candidate's election, as last seen, or as a claim found or left it. The session may not see
    /// the marks, or see them late: a leader knows at least the mark that its own claim has left.
    pub(super) fn mark(&self) -> Mark {
        let found = self.me.claim.mark(self.me.own());
        if found.written > self.evacuation.seen_at() {
            found
        } else {
            self.seen_mark()
        }
    }

    fn seen_mark(&self) -> Mark {
        self.evacuation.mark_of(self.me.prefix())
    }

    /// Returns the version that the mark names, if it is newer than the candidate's.
    fn newer_version(&self, mark: Mark) -> Option<Version> {
        let required = self.me.config.required.as_ref()?;
        mark.version.filter(|newest| *newest > required.version)
    }

    /// Returns true if the candidate waits, and its version is older than the newest that led.
    pub(super) fn is_too_old(&self) -> bool {
        let waits = matches!(self.me.phase, Phase::Waiting { .. });
        waits && self.newer_version(self.mark()).is_some()
    }

    /// Returns true if the mark lets the other candidate lead. A candidate that requires no version counts one that names
    /// none: nothing holds that one back.
    pub(super) fn is_new_enough(&self, other: &Entry) -> bool {
        let version = (self.evacuation.homes().version)(&other.value);
        let is_free = version.is_none() && !self.me.requires_versions();
        is_free || version >= self.mark().version
    }

    /// Reports, once for each version, that a newer version than the candidate's led.
    pub(super) fn note_newer_version(&mut self) {
        if matches!(
            self.me.phase,
            Phase::Leading { .. } | Phase::Ending { .. } | Phase::Leaving { .. }
        ) {
            return;
        }
        let newest = self.newer_version(self.mark());
        let before = std::mem::replace(&mut self.me.claim.reported, newest);
        let required = self.me.config.required.as_ref();
        if let (Some(newest), Some(required)) = (newest.filter(|_| before != newest), required) {
            let (slot, version) = (self.slot, required.version);
            self.out.note(Note::HoldsBack {
                slot,
                version,
                newest,
            });
        }
    }

    /// Returns true if the candidate may lead by that key, which is the eldest, for all that versions say. Otherwise the
    /// candidate claims the lead, unless it waits for an answer, for a pause to end, or for the mark to be removed. A mark
    /// that only a claim found is claimed against again, because the session may not see that it is removed.
    pub(super) fn is_admitted(&mut self, own: &Own) -> bool {
        if !self.me.requires_versions() || self.me.claim.is_won_by(own) {
            return true;
        }
        let waits = self.me.claim.waits(self.now);
        let seen = self.seen_mark();
        if !waits && self.newer_version(seen).is_none() {
            self.claim(own, seen);
        }
        false
    }

    /// Sends the transaction that confirms the mark or raises it. Each branch reads or writes, so that etcd applies the
    /// transaction linearizably.
    fn claim(&mut self, own: &Own, mark: Mark) {
        let Some(required) = &self.me.config.required else {
            return;
        };
        let marks = &self.evacuation.homes().marks;
        let key: Arc<[u8]> = version_key(marks, self.me.prefix()).into();
        let confirms = if mark.version == Some(required.version) {
            Op::Read(Arc::clone(&key))
        } else {
            Op::Put {
                key: Arc::clone(&key),
                value: Arc::clone(&required.mark),
                lease: 0,
            }
        };
        debug_assert!(
            mark.version <= Some(required.version),
            "a mark is only ever raised"
        );
        let ask = Ask::Transact(Txn {
            when: vec![
                When::Written(Arc::clone(&key), mark.written),
                When::Created(Arc::clone(&own.key), own.create_revision),
            ],
            then: vec![confirms],
            otherwise: vec![Op::Read(key)],
        });
        let slot = self.slot;
        let request = self.out.ask(Purpose::Claim { slot }, ask);
        self.me.claim.state = State::Sent {
            request,
            written: mark.written,
            created: own.create_revision,
        };
    }

    /// Applies the answer to a claim. Returns true if the candidate's place must be reviewed.
    pub(crate) fn claimed(&mut self, request: RequestId, answer: Answer) -> bool {
        let State::Sent {
            request: sent,
            written,
            created,
        } = self.me.claim.state
        else {
            return false;
        };
        if sent != request {
            return false;
        }
        self.me.claim.state = State::Unmade;
        let own = self.me.own().cloned();
        let Some(own) = own.filter(|own| own.create_revision == created) else {
            return true;
        };
        match answer {
            Answer::Read { header, entry } => {
                let mark = self.mark_at(header, entry.as_ref());
                self.me.claim.state = State::Won { created, mark };
                self.me.claim.failures = 0;
                return true;
            }
            Answer::Transacted(won @ Transacted { held: true, .. }) => {
                let mark = self.mark_at(won.header, won.entry(0));
                self.me.claim.state = State::Won { created, mark };
                self.me.claim.failures = 0;
                self.me.claim.found = Mark::default();
                return true;
            }
            Answer::Transacted(found) => {
                let mark = self.evacuation.mark(found.entry(0));
                self.me.claim.found = mark;
                let ours = self.me.config.required.as_ref();
                if mark.written != written && mark.version <= ours.map(|ours| ours.version) {
                    self.claim(&own, mark);
                } else {
                    // A newer version led, so that the candidate may have to give way, or the key is gone.
                    self.pause_claim(Class::Retry);
                    return true;
                }
            }
            Answer::Failed(error) => {
                let class = error.class;
                self.out.note_failure("claim", &self.me.prefix, error);
                self.pause_claim(class);
                if matches!(class, Class::Denied | Class::Auth) && self.me.requires_versions() {
                    self.let_another_claim(&own);
                    return true;
                }
            }
            _ => {}
        }
        false
    }

    /// Returns the election's mark at the revision of an answer that read this entry. A claim that has held and read none
    /// wrote the mark; a leader without a version learns that there is none.
    fn mark_at(&self, header: Header, entry: Option<&Entry>) -> Mark {
        let read = self.evacuation.mark(entry);
        if read.written > 0 {
            return read;
        }
        let ours = self.me.config.required.as_ref();
        Mark {
            version: ours.map(|ours| ours.version),
            written: header.revision,
        }
    }

    /// Returns true if the candidate leads without a version, and must read the mark before it gives way to this one, which
    /// may hold back: the session may see the marks late. One read is enough for a term, because no mark is raised while
    /// the leader's key exists.
    pub(super) fn must_read_mark(&self, own: &Own, next: &Entry) -> bool {
        let is_free = self.me.is_leading() && !self.me.requires_versions();
        let may_hold_back = || (self.evacuation.homes().version)(&next.value).is_some();
        is_free && !self.me.claim.is_won_by(own) && may_hold_back()
    }

    /// Reads the mark, unless the leader waits for the answer already, or for a pause to end.
    pub(super) fn read_mark(&mut self) {
        let created = self.me.own().map(|own| own.create_revision);
        let Some(created) = created.filter(|_| !self.me.claim.waits(self.now)) else {
            return;
        };
        let marks = &self.evacuation.homes().marks;
        let key = version_key(marks, self.me.prefix()).into();
        let slot = self.slot;
        let request = self.out.ask(Purpose::Claim { slot }, Ask::Find { key });
        self.me.claim.state = State::Sent {
            request,
            written: 0,
            created,
        };
    }

    /// Steps behind the others if one of them may lead, because etcd refuses this candidate's claims. The pause before the
    /// next claim separates its moves. One refusal alone may have been for an outdated token.
    fn let_another_claim(&mut self, own: &Own) {
        if self.me.claim.failures < 2 {
            return;
        }
        let View::Prefix(view) = &self.me.view else {
            self.follow_everyone();
            return;
        };
        let may_lead = |entry: &Entry| {
            let is_behind = entry.create_revision > own.create_revision;
            is_behind && entry.lease != 0 && self.is_new_enough(entry)
        };
        if view.is_synced() && view.roster().in_order().any(may_lead) {
            self.step_back();
        }
    }

    /// Claims the lead again, after an answer that does not count.
    pub(crate) fn claim_again(&mut self, request: RequestId) {
        if matches!(self.me.claim.state, State::Sent { request: sent, .. } if sent == request) {
            self.pause_claim(Class::Retry);
        }
    }

    fn pause_claim(&mut self, class: Class) {
        let claim = &mut self.me.claim;
        claim.failures += 1;
        let until = self.now.after(self.pace.pause(claim.failures, class));
        claim.state = State::Paused(until);
        self.out.set_timer(until, Timer::Slot(self.slot));
    }
}

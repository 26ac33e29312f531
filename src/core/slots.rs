//! Hides what happens to one candidate or onlooker: joining, its place, its term and how that ends.

use std::sync::Arc;

use super::action::{
    Action, Answer, Ask, Class, Note, RequestId, SlotId, TermId, Trouble, WatchId,
};
use super::candidacy::{Afterwards, Candidacy, Follow, LONG_QUEUE, Phase, Purpose, Turn, new_view};
use super::lease::Lease;
use super::machine::{Machine, Onlooker, Slot, Timer};
use super::reason::{EndReason, LostReason};
use super::time::Time;
use super::view::{Fate, Own, Place, PredecessorView, PrefixView, View};
use crate::facts::{Change, Entry};

/// How a term ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The key stands and may be believed in until the frozen deadline.
    Fading,
    /// The key is no longer ours, or the leader says that its work is done.
    Void,
}

/// `<prefix><lease in lower-case hex>`, as in etcd's own election recipe.
pub(crate) fn key_of(prefix: &[u8], lease: i64) -> Arc<[u8]> {
    let mut key = prefix.to_vec();
    key.extend_from_slice(format!("{lease:x}").as_bytes());
    key.into()
}

impl Machine {
    fn candidate(&mut self, slot: SlotId) -> Option<&mut Candidacy> {
        match self.slots.get_mut(&slot) {
            Some(Slot::Candidate(candidate)) => Some(candidate),
            _ => None,
        }
    }

    // ---- commands

    /// Whether that candidacy still counts as one: it has not left, and is not about to.
    pub(crate) fn stands(&self, slot: SlotId) -> bool {
        matches!(self.slots.get(&slot), Some(Slot::Candidate(c)) if c.looks() && (c.wanted || c.own().is_some()))
    }

    /// Stands as a candidate.
    pub(crate) fn campaign(
        &mut self,
        now: Time,
        slot: SlotId,
        prefix: Arc<[u8]>,
        value: Arc<[u8]>,
        follow: Follow,
        persistent: bool,
    ) {
        self.expire(now);
        if self.closing {
            self.act(Action::Ended {
                slot,
                reason: EndReason::SessionClosed,
                trouble: None,
            });
            return;
        }
        let candidate = Candidacy::new(prefix, value, follow, persistent);
        self.slots
            .insert(slot, Slot::Candidate(Box::new(candidate)));
        self.keep_lease(now);
        self.queue_join(slot, now);
        self.tell(slot);
    }

    /// Looks on.
    pub(crate) fn observe(&mut self, now: Time, slot: SlotId, prefix: Arc<[u8]>) {
        self.expire(now);
        if self.closing {
            return;
        }
        let onlooker = Onlooker {
            view: PrefixView::onlooker(Arc::clone(&prefix)),
            prefix,
            failures: 0,
            not_before: now,
            shown: 0,
        };
        self.slots.insert(slot, Slot::Onlooker(Box::new(onlooker)));
        self.watch_slot(slot);
        self.want_read(slot, now);
        self.probe_later(now);
    }

    /// Nobody looks on any more.
    pub(crate) fn unobserve(&mut self, slot: SlotId) {
        if matches!(self.slots.get(&slot), Some(Slot::Onlooker(_))) {
            self.forget(slot);
        }
    }

    /// The candidate gives up its place. A term that runs is not ended; it will not be followed by another.
    pub(crate) fn leave(&mut self, now: Time, slot: SlotId, reason: EndReason) {
        self.expire(now);
        let lease = self.lease().map(Lease::id);
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        candidate.wanted = false;
        match candidate.phase().clone() {
            Phase::Joining { request: None, .. } => {
                let uncertain = candidate.uncertain;
                let key = lease.map(|lease| key_of(&candidate.prefix, lease));
                candidate.enter(Phase::Leaving { reason });
                match key {
                    // It may stand, or the one before it is not gone yet.
                    Some(key) if uncertain || self.removals.contains_key(&key) => {
                        self.remove(now, &key, None, Some(slot));
                    }
                    _ => self.finish(slot, now),
                }
            }
            Phase::Waiting { own } => {
                candidate.enter(Phase::Leaving { reason });
                self.remove(now, &own.key, Some(own.create_revision), Some(slot));
            }
            // The answer decides; until then the key may or may not stand, and nobody else may join by it.
            Phase::Joining {
                request: Some((_, lease)),
                ..
            } => {
                let key = key_of(&candidate.prefix, lease);
                self.hold(key);
            }
            Phase::Leading { .. } | Phase::Leaving { .. } => {}
            Phase::Ending {
                own,
                term,
                reason: lost,
                cutoff,
                next: _,
            } => {
                candidate.enter(Phase::Ending {
                    own,
                    term,
                    reason: lost,
                    cutoff,
                    next: Afterwards::Leave(reason),
                });
            }
        }
        self.tell(slot);
    }

    /// The leader ends its term: resigning (its work is done) or shutting down (its work winds up).
    pub(crate) fn end_by_leader(
        &mut self,
        now: Time,
        slot: SlotId,
        term: TermId,
        reason: LostReason,
    ) {
        self.expire(now);
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let leads = matches!(candidate.phase(), Phase::Leading { term: t, .. } if *t == term);
        if !leads {
            return;
        }
        candidate.wanted = false;
        let end = if reason == LostReason::Resigned {
            End::Void
        } else {
            End::Fading
        };
        self.end_term(slot, now, reason, end);
    }

    /// The term's work has ended, or the leadership was dropped: now its key may go.
    pub(crate) fn work_joined(&mut self, now: Time, slot: SlotId, term: TermId) {
        self.end_by_leader(now, slot, term, LostReason::Resigned);
        let closing = self.closing;
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let Phase::Ending {
            own,
            term: ending,
            next,
            ..
        } = candidate.phase().clone()
        else {
            return;
        };
        if ending != term {
            return;
        }
        match next {
            Afterwards::Rejoin if candidate.wanted && !closing => {
                candidate.enter(Phase::Joining {
                    request: None,
                    not_before: now,
                });
                if let Some(own) = own {
                    self.remove(now, &own.key, Some(own.create_revision), Some(slot));
                } else {
                    self.queue_join(slot, now);
                }
            }
            next => {
                let reason = match next {
                    Afterwards::Leave(reason) => reason,
                    Afterwards::Rejoin if closing => EndReason::SessionClosed,
                    Afterwards::Rejoin => EndReason::Left,
                };
                candidate.enter(Phase::Leaving { reason });
                if let Some(own) = own {
                    self.remove(now, &own.key, Some(own.create_revision), Some(slot));
                } else {
                    self.leave_when_removed(slot, now);
                }
            }
        }
        self.tell(slot);
    }

    /// The key was released before the work ended; wait for the release if it is still under way.
    fn leave_when_removed(&mut self, slot: SlotId, now: Time) {
        let lease = self.lease().map(Lease::id);
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let prefix = Arc::clone(&candidate.prefix);
        let waits = lease.is_some_and(|lease| self.awaits_removal(&key_of(&prefix, lease), slot));
        if !waits {
            self.finish(slot, now);
        }
    }

    /// Replaces what the candidate announces, now and after every rejoin.
    pub(crate) fn proclaim(&mut self, slot: SlotId, value: Arc<[u8]>, ticket: u64) {
        let Some(candidate) = self.candidate(slot) else {
            self.act(Action::Proclaimed {
                ticket,
                result: Ok(false),
            });
            return;
        };
        candidate.value = Arc::clone(&value);
        match candidate.own().cloned() {
            Some(own) => self.send_proclaim(&own, value, Some(ticket)),
            // It will be announced with the key.
            None => self.act(Action::Proclaimed {
                ticket,
                result: Ok(true),
            }),
        }
    }

    fn send_proclaim(&mut self, own: &Own, value: Arc<[u8]>, ticket: Option<u64>) {
        let ask = Ask::Proclaim {
            key: Arc::clone(&own.key),
            create_revision: own.create_revision,
            lease: own.lease,
            value,
        };
        self.ask(Purpose::Proclaim { ticket }, ask);
    }

    pub(crate) fn proclaimed(&mut self, ticket: Option<u64>, answer: Answer) {
        let result = match answer {
            Answer::Proclaimed { held } => Ok(held),
            Answer::Failed(trouble) => Err(trouble),
            _ => return,
        };
        match (ticket, result) {
            (Some(ticket), result) => self.act(Action::Proclaimed { ticket, result }),
            (None, Err(trouble)) => self.fail_request("proclaim", trouble),
            (None, Ok(_)) => {}
        }
    }

    /// Ends every term, leaves every election and gives the lease back.
    pub(crate) fn close(&mut self, now: Time) {
        self.expire(now);
        if self.closing {
            return;
        }
        self.closing = true;
        // By then the lease has expired by itself, whatever could not be confirmed.
        self.timers
            .set(now.after(self.config.ttl * 2), Timer::GiveUp);
        for slot in self.slot_ids() {
            match self.slots.get(&slot) {
                Some(Slot::Onlooker(_)) => self.forget(slot),
                Some(Slot::Candidate(candidate)) => match candidate.phase() {
                    Phase::Leading { .. } => {
                        self.end_term(slot, now, LostReason::SessionClosed, End::Fading);
                        self.leave(now, slot, EndReason::SessionClosed);
                    }
                    // Waiting keys go with the lease, in one request.
                    Phase::Waiting { .. } => {
                        if let Some(candidate) = self.candidate(slot) {
                            candidate.enter(Phase::Leaving {
                                reason: EndReason::SessionClosed,
                            });
                        }
                        self.finish(slot, now);
                    }
                    _ => self.leave(now, slot, EndReason::SessionClosed),
                },
                None => {}
            }
        }
        self.close_if_done(now);
    }

    /// While closing: when every term has ended, the lease goes, and then the session is closed.
    pub(crate) fn close_if_done(&mut self, now: Time) {
        if !self.closing {
            return;
        }
        let busy = self.slots.values().any(|slot| match slot {
            Slot::Candidate(c) => match c.phase() {
                Phase::Ending { own, .. } => own.is_some(),
                _ => true,
            },
            Slot::Onlooker(_) => false,
        });
        if busy || !self.removals.is_empty() {
            return;
        }
        match std::mem::replace(&mut self.holding, super::machine::Holding::Closed) {
            super::machine::Holding::Held(lease) => {
                self.act(Action::HangUp);
                self.trusted = None;
                self.revoke(now, lease.id(), lease.ttl(), now);
            }
            granting @ super::machine::Holding::Granting => self.holding = granting,
            super::machine::Holding::None { .. } | super::machine::Holding::Closed => {
                if self.revocations().is_empty() {
                    self.set_closed();
                }
            }
        }
    }

    /// The candidacy is over and nothing of it is left.
    pub(crate) fn finish(&mut self, slot: SlotId, now: Time) {
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let Phase::Leaving { reason } = *candidate.phase() else {
            return;
        };
        let trouble = candidate.trouble.take();
        self.tell(slot);
        self.forget(slot);
        self.act(Action::Ended {
            slot,
            reason,
            trouble,
        });
        self.close_if_done(now);
    }

    // ---- joining

    /// Sends the join if everything it needs is there; otherwise whatever is missing will call again.
    pub(crate) fn start_join(&mut self, slot: SlotId, now: Time) -> bool {
        let Some(lease) = self.trusted_lease().map(Lease::id) else {
            return false;
        };
        let Some(candidate) = self.candidate(slot) else {
            return false;
        };
        let Phase::Joining {
            request: None,
            not_before,
        } = *candidate.phase()
        else {
            return false;
        };
        if now < not_before {
            self.timers.set(not_before, Timer::Slot(slot));
            return false;
        }
        let prefix = Arc::clone(&candidate.prefix);
        let value = Arc::clone(&candidate.value);
        let key = key_of(&prefix, lease);
        if self.awaits_removal(&key, slot) {
            return false;
        }
        self.renew_view(slot);
        // The watch goes out beside the join, so that it costs no round trip of its own.
        self.watch_slot(slot);
        let request = self.ask(
            Purpose::Join { slot },
            Ask::Join {
                key,
                value,
                lease,
                prefix,
            },
        );
        if let Some(candidate) = self.candidate(slot) {
            candidate.enter(Phase::Joining {
                request: Some((request, lease)),
                not_before,
            });
        }
        true
    }

    /// A new key has a new place: what the old one's neighbours do is of no interest.
    fn renew_view(&mut self, slot: SlotId) {
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let View::Predecessor(view) = &candidate.view else {
            return;
        };
        let watchers = view.watchers();
        candidate.view = new_view(&candidate.prefix, candidate.follow);
        for watch in watchers {
            self.unwatch(watch);
        }
    }

    pub(crate) fn joined(&mut self, now: Time, slot: SlotId, request: RequestId, answer: Answer) {
        let current = self.lease().map(Lease::id);
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let Phase::Joining {
            request: Some((awaited, lease)),
            ..
        } = *candidate.phase()
        else {
            return;
        };
        if awaited != request || Some(lease) != current {
            return;
        }
        candidate.enter(Phase::Joining {
            request: None,
            not_before: now,
        });
        match answer {
            Answer::Joined {
                header,
                created,
                entries,
            } => {
                candidate.failures = 0;
                let key = key_of(&candidate.prefix, lease);
                let standing = entries.iter().find(|e| e.key == key);
                if !candidate.wanted {
                    let reason = if self.closing {
                        EndReason::SessionClosed
                    } else {
                        EndReason::Left
                    };
                    let create_revision = standing.map(|e| e.create_revision);
                    if let Some(candidate) = self.candidate(slot) {
                        candidate.enter(Phase::Leaving { reason });
                    }
                    self.remove(now, &key, create_revision, Some(slot));
                    return;
                }
                let (create_revision, same_value, ours) = match standing {
                    // What is announced may have changed since the join was sent.
                    Some(e) if created => (header.revision, e.value == candidate.value, true),
                    None if created => (header.revision, true, true),
                    // No handle holds this key and we never asked to delete it: it is from a join
                    // of ours whose answer was lost.
                    Some(e) => (
                        e.create_revision,
                        e.value == candidate.value,
                        e.lease == lease,
                    ),
                    None => {
                        self.retry_join(slot, now, Class::Retry);
                        return;
                    }
                };
                if !ours {
                    // Somebody else's at our path: it blocks us and serves nobody.
                    self.remove(now, &key, Some(create_revision), Some(slot));
                    return;
                }
                candidate.uncertain = false;
                let own = Own {
                    key,
                    create_revision,
                    lease,
                };
                candidate.enter(Phase::Waiting { own: own.clone() });
                let former = candidate.former.take();
                let left = former.and_then(|f| {
                    let stands = |e: &&Entry| e.key == f.key && e.lease != f.lease;
                    entries.iter().find(stands).cloned()
                });
                let first_time = !std::mem::replace(&mut candidate.registered, true);
                let value = Arc::clone(&candidate.value);
                self.note(Note::Joined {
                    slot,
                    key: Arc::clone(&own.key),
                    create_revision,
                    again: !first_time,
                });
                // When no key stands, this one is read to verify renewals: here we are known to be permitted.
                self.config.probe_key = Arc::clone(&own.key);
                if first_time {
                    self.act(Action::Registered { slot });
                }
                if !same_value {
                    self.send_proclaim(&own, value, None);
                }
                if let Some(left) = left {
                    // It would sit in the queue for ever.
                    self.remove(now, &left.key, Some(left.create_revision), None);
                }
                self.take_snapshot(slot, header.revision, entries, true, now);
            }
            Answer::Failed(trouble) => self.join_failed(slot, now, &trouble),
            _ => {}
        }
    }

    fn join_failed(&mut self, slot: SlotId, now: Time, trouble: &Trouble) {
        if trouble.ambiguous {
            self.suspicion.get_or_insert(0);
        }
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        candidate.uncertain |= trouble.ambiguous;
        let class = trouble.class;
        self.note(Note::JoinFailed {
            slot,
            trouble: trouble.clone(),
        });
        if class == Class::LeaseGone {
            self.lose_lease(now, LostReason::LeaseLost);
            return;
        }
        let wanted = self.candidate(slot).is_some_and(|c| c.wanted);
        if !wanted {
            let reason = if self.closing {
                EndReason::SessionClosed
            } else {
                EndReason::Left
            };
            self.leave(now, slot, reason);
            return;
        }
        if !self.refuse_if_new(slot, trouble, now) {
            self.retry_join(slot, now, class);
        }
    }

    fn retry_join(&mut self, slot: SlotId, now: Time, class: Class) {
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        candidate.failures += 1;
        let failures = candidate.failures;
        let not_before = now.after(self.pause(failures, class));
        if let Some(candidate) = self.candidate(slot) {
            candidate.enter(Phase::Joining {
                request: None,
                not_before,
            });
        }
        self.timers.set(not_before, Timer::Slot(slot));
    }

    /// A candidate that never stood is told what is wrong instead of waiting for it to go away.
    pub(crate) fn refuse_if_new(&mut self, slot: SlotId, trouble: &Trouble, now: Time) -> bool {
        let Some(candidate) = self.candidate(slot) else {
            return false;
        };
        let hopeless = match trouble.class {
            Class::Denied | Class::Invalid => true,
            Class::Auth | Class::Backoff => !candidate.persistent,
            Class::Retry | Class::LeaseGone => false,
        };
        let joining = matches!(candidate.phase(), Phase::Joining { .. });
        if candidate.registered || !hopeless || !joining {
            return false;
        }
        candidate.trouble = Some(trouble.clone());
        self.leave(now, slot, EndReason::Refused);
        true
    }

    pub(crate) fn slot_due(&mut self, slot: SlotId, now: Time) {
        match self.slots.get(&slot) {
            Some(Slot::Candidate(candidate)) => match candidate.phase().clone() {
                Phase::Joining { request: None, .. } => self.queue_join(slot, now),
                Phase::Ending {
                    own: Some(own),
                    term,
                    reason,
                    cutoff,
                    next,
                } if now >= cutoff => {
                    // The work ignores its token; the key does not wait for it.
                    if let Some(candidate) = self.candidate(slot) {
                        candidate.enter(Phase::Ending {
                            own: None,
                            term,
                            reason,
                            cutoff,
                            next,
                        });
                    }
                    self.remove(now, &own.key, Some(own.create_revision), None);
                    self.close_if_done(now);
                }
                Phase::Waiting { .. } | Phase::Leading { .. } => self.want_read(slot, now),
                _ => {}
            },
            Some(Slot::Onlooker(_)) => self.want_read(slot, now),
            None => {}
        }
    }

    // ---- the place in the queue

    /// Looks again at where the candidate stands; what is missing is asked for.
    pub(crate) fn look(&mut self, slot: SlotId, now: Time) {
        let may_lead = self.trusted.is_some() && !self.closing;
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        match candidate.phase().clone() {
            Phase::Joining { request: None, .. } => self.queue_join(slot, now),
            Phase::Waiting { own } => match candidate.view.place(&own) {
                Place::First if may_lead => self.lead(slot, own),
                Place::Lost(fate) => self.key_lost(slot, fate, now),
                _ => {}
            },
            Phase::Leading { own, .. } | Phase::Ending { own: Some(own), .. } => {
                if let Place::Lost(fate) = candidate.view.place(&own) {
                    self.key_lost(slot, fate, now);
                }
            }
            _ => {}
        }
        self.watch_slot(slot);
        self.want_read(slot, now);
        self.tell(slot);
    }

    fn tell(&mut self, slot: SlotId) {
        if let Some(standing) = self.candidate(slot).and_then(Candidacy::news) {
            self.act(Action::Standing { slot, standing });
        }
    }

    fn lead(&mut self, slot: SlotId, own: Own) {
        let term = self.next_id();
        let key = Arc::clone(&own.key);
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        if let Turn::Elected { term, token } = candidate.enter(Phase::Leading { own, term }) {
            self.act(Action::Elected {
                slot,
                term,
                key,
                token,
            });
        }
    }

    /// Ends the slot's term, if it leads.
    pub(crate) fn end_term(&mut self, slot: SlotId, now: Time, reason: LostReason, end: End) {
        let fading = self.last_deadline;
        let void = now.after(self.config.grace).min(fading.max(now));
        let closing = self.closing;
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let Phase::Leading { own, term } = candidate.phase().clone() else {
            return;
        };
        let cutoff = match end {
            End::Fading => fading,
            End::Void => void,
        };
        let gone = matches!(
            reason,
            LostReason::KeyDeleted | LostReason::LeaseLost | LostReason::StoreChanged
        );
        let own = (!gone).then_some(own);
        let next = match reason {
            LostReason::Resigned => Afterwards::Leave(EndReason::Resigned),
            LostReason::Shutdown => Afterwards::Leave(EndReason::Shutdown),
            LostReason::SessionClosed => Afterwards::Leave(EndReason::SessionClosed),
            _ if closing => Afterwards::Leave(EndReason::SessionClosed),
            _ => Afterwards::Rejoin,
        };
        let turn = candidate.enter(Phase::Ending {
            own,
            term,
            reason,
            cutoff,
            next,
        });
        if let Turn::TermEnded {
            term,
            reason,
            cutoff,
        } = turn
        {
            self.timers.set(cutoff, Timer::Slot(slot));
            self.act(Action::TermEnded {
                slot,
                term,
                reason,
                cutoff,
                valid: end == End::Fading,
            });
            self.tell(slot);
        }
    }

    /// Our key is gone, or no longer ours.
    fn key_lost(&mut self, slot: SlotId, fate: Fate, now: Time) {
        let reason = match fate {
            Fate::Ours => return,
            Fate::Gone => LostReason::KeyDeleted,
            Fate::Overwritten => LostReason::KeyOverwritten,
        };
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        match candidate.phase().clone() {
            Phase::Leading { .. } => self.end_term(slot, now, reason, End::Void),
            Phase::Waiting { own } => {
                candidate.enter(Phase::Joining {
                    request: None,
                    not_before: now,
                });
                if fate == Fate::Overwritten {
                    // It would sit in the queue for ever.
                    self.remove(now, &own.key, Some(own.create_revision), Some(slot));
                } else {
                    self.queue_join(slot, now);
                }
            }
            Phase::Ending {
                own: Some(_),
                term,
                reason,
                cutoff,
                next,
            } if fate == Fate::Gone => {
                candidate.enter(Phase::Ending {
                    own: None,
                    term,
                    reason,
                    cutoff,
                    next,
                });
                self.void_term(slot, term, reason, cutoff);
                self.close_if_done(now);
            }
            _ => {}
        }
        self.tell(slot);
    }

    /// A term that was valid until its work had ended has lost its key before that.
    fn void_term(&mut self, slot: SlotId, term: TermId, reason: LostReason, cutoff: Time) {
        self.act(Action::TermEnded {
            slot,
            term,
            reason,
            cutoff,
            valid: false,
        });
    }

    /// The lease is gone, and this candidate's key with it.
    pub(crate) fn lease_lost(&mut self, slot: SlotId, reason: LostReason, now: Time) {
        if let Some(candidate) = self.candidate(slot) {
            candidate.former = candidate.own().cloned().or(candidate.former.take());
        }
        self.end_term(slot, now, reason, End::Void);
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        candidate.uncertain = false;
        match candidate.phase().clone() {
            Phase::Joining { .. } | Phase::Waiting { .. } if candidate.wanted => {
                candidate.enter(Phase::Joining {
                    request: None,
                    not_before: now,
                });
            }
            Phase::Joining { .. } | Phase::Waiting { .. } => {
                candidate.enter(Phase::Leaving {
                    reason: EndReason::Left,
                });
                self.finish(slot, now);
            }
            Phase::Ending {
                own,
                term,
                reason,
                cutoff,
                next,
            } => {
                // Written over by somebody it does not go with the lease.
                let own = own.filter(|_| reason == LostReason::KeyOverwritten);
                candidate.enter(Phase::Ending {
                    own,
                    term,
                    reason,
                    cutoff,
                    next,
                });
                self.void_term(slot, term, reason, cutoff);
            }
            Phase::Leaving { .. } | Phase::Leading { .. } => {}
        }
        self.tell(slot);
    }

    /// What the verifying read said about one of our keys.
    pub(crate) fn own_key_read(
        &mut self,
        slot: SlotId,
        create_revision: i64,
        entry: Option<&Entry>,
        now: Time,
    ) {
        let own = self.candidate(slot).and_then(|c| c.own().cloned());
        if let Some(own) = own.filter(|own| own.create_revision == create_revision) {
            self.key_lost(slot, own.read(entry), now);
        }
    }

    // ---- watching and reading

    /// Opens the watches that the slot's view needs and does not have.
    pub(crate) fn watch_slot(&mut self, slot: SlotId) {
        let (prefix, needs) = match self.slots.get(&slot) {
            Some(Slot::Onlooker(o)) => (Arc::clone(&o.prefix), o.view.watcher.is_none()),
            Some(Slot::Candidate(c)) if c.looks() => match &c.view {
                View::Prefix(view) => (Arc::clone(&c.prefix), view.watcher.is_none()),
                View::Predecessor(_) => {
                    self.watch_neighbours(slot);
                    return;
                }
            },
            _ => return,
        };
        if !needs {
            return;
        }
        let watcher = self.watch(slot, prefix, true);
        match self.slots.get_mut(&slot) {
            Some(Slot::Onlooker(o)) => o.view.watcher = watcher,
            Some(Slot::Candidate(c)) => {
                if let View::Prefix(view) = &mut c.view {
                    view.watcher = watcher;
                }
            }
            None => {}
        }
    }

    fn watch_neighbours(&mut self, slot: SlotId) {
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let own = candidate.own().map(|own| Arc::clone(&own.key));
        let View::Predecessor(view) = &mut candidate.view else {
            return;
        };
        let discarded = std::mem::take(&mut view.discarded);
        let own = own.filter(|_| view.own.is_none());
        let neighbour = view
            .predecessor
            .as_ref()
            .filter(|p| p.watcher.is_none())
            .map(|p| Arc::clone(&p.key));
        for watch in discarded {
            self.unwatch(watch);
        }
        let own = own.and_then(|key| self.watch(slot, key, false));
        let neighbour = neighbour.and_then(|key| self.watch(slot, key, false));
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        if let View::Predecessor(view) = &mut candidate.view {
            view.own = view.own.or(own);
            if let Some(predecessor) = &mut view.predecessor {
                predecessor.watcher = predecessor.watcher.or(neighbour);
            }
        }
    }

    /// What was read so far was another store's.
    pub(crate) fn forget_store(&mut self, slot: SlotId) {
        match self.slots.get_mut(&slot) {
            Some(Slot::Onlooker(o)) => {
                o.view = PrefixView::onlooker(Arc::clone(&o.prefix));
                o.shown = 0;
            }
            Some(Slot::Candidate(c)) => c.view = new_view(&c.prefix, c.follow),
            None => {}
        }
    }

    /// The stream broke: what the slot knows may be old.
    pub(crate) fn slot_unwatched(&mut self, slot: SlotId) {
        match self.slots.get_mut(&slot) {
            Some(Slot::Onlooker(o)) => o.view.unwatched(),
            Some(Slot::Candidate(c)) => match &mut c.view {
                View::Prefix(view) => view.unwatched(),
                View::Predecessor(view) => view.unwatched(),
            },
            None => {}
        }
    }

    pub(crate) fn slot_watched(&mut self, slot: SlotId, watch: WatchId, revision: i64, now: Time) {
        match self.slots.get_mut(&slot) {
            Some(Slot::Onlooker(o)) => {
                o.view.created(revision);
                self.show(slot);
                self.want_read(slot, now);
            }
            Some(Slot::Candidate(c)) => {
                match &mut c.view {
                    View::Prefix(view) => view.created(revision),
                    View::Predecessor(view) => view.created(watch, revision),
                }
                self.look(slot, now);
            }
            None => {}
        }
    }

    pub(crate) fn slot_changed(&mut self, slot: SlotId, changes: Vec<Change>, now: Time) {
        match self.slots.get_mut(&slot) {
            Some(Slot::Onlooker(o)) => {
                let mut shown = Vec::new();
                o.view.changes(changes, |roster| {
                    shown.push((roster.revision(), roster.in_order().cloned().collect()));
                });
                if let Some((revision, _)) = shown.last() {
                    o.shown = *revision;
                }
                for (revision, entries) in shown {
                    self.act(Action::Observed {
                        slot,
                        revision,
                        entries,
                    });
                }
            }
            Some(Slot::Candidate(c)) => {
                // Our own key is judged on every event, even while a gap is being closed.
                let fate = c.own().and_then(|own| {
                    changes
                        .iter()
                        .map(|change| own.fate(change))
                        .find(|fate| *fate != Fate::Ours)
                });
                match &mut c.view {
                    View::Prefix(view) => view.changes(changes, |_| {}),
                    View::Predecessor(view) => view.changes(&changes),
                }
                if let Some(fate) = fate {
                    self.key_lost(slot, fate, now);
                }
                self.look(slot, now);
            }
            None => {}
        }
    }

    /// Tells an onlooker what is known, once it is known without a gap.
    fn show(&mut self, slot: SlotId) {
        let Some(Slot::Onlooker(o)) = self.slots.get_mut(&slot) else {
            return;
        };
        let roster = o.view.roster();
        if o.view.is_synced() && roster.revision() > o.shown {
            o.shown = roster.revision();
            let revision = roster.revision();
            let entries = roster.in_order().cloned().collect();
            self.act(Action::Observed {
                slot,
                revision,
                entries,
            });
        }
    }

    pub(crate) fn want_read(&mut self, slot: SlotId, now: Time) {
        let wants = match self.slots.get(&slot) {
            Some(Slot::Onlooker(o)) => o.view.wants_list(),
            Some(Slot::Candidate(c)) => match (c.phase(), &c.view) {
                // A join under way reads the prefix anyway.
                (Phase::Joining { .. } | Phase::Leaving { .. }, _) => false,
                (_, View::Prefix(view)) => view.wants_list(),
                (_, View::Predecessor(view)) => c.own().is_some() && view.wants_read(),
            },
            None => false,
        };
        if wants {
            self.queue_list(slot, now);
        }
    }

    pub(crate) fn start_list(&mut self, slot: SlotId, now: Time) -> bool {
        let ask = match self.slots.get(&slot) {
            Some(Slot::Onlooker(o)) if o.view.wants_list() => {
                if now < o.not_before {
                    let at = o.not_before;
                    self.timers.set(at, Timer::Slot(slot));
                    return false;
                }
                Ask::List {
                    prefix: Arc::clone(&o.prefix),
                }
            }
            Some(Slot::Candidate(c)) => match (&c.view, c.own()) {
                (View::Prefix(view), _) if view.wants_list() => Ask::List {
                    prefix: Arc::clone(&c.prefix),
                },
                (View::Predecessor(view), Some(own)) if view.wants_read() => Ask::Older {
                    prefix: Arc::clone(&c.prefix),
                    create_revision: own.create_revision,
                },
                _ => return false,
            },
            _ => return false,
        };
        let request = self.ask(Purpose::List { slot }, ask);
        self.set_list(slot, Some(request));
        true
    }

    fn set_list(&mut self, slot: SlotId, request: Option<RequestId>) {
        match self.slots.get_mut(&slot) {
            Some(Slot::Onlooker(o)) => o.view.list = request,
            Some(Slot::Candidate(c)) => match &mut c.view {
                View::Prefix(view) => view.list = request,
                View::Predecessor(view) => view.read = request,
            },
            None => {}
        }
    }

    pub(crate) fn listed(&mut self, now: Time, slot: SlotId, request: RequestId, answer: Answer) {
        // A read begun before the watch broke proves nothing about the watch that stands now. A refusal still
        // proves that looking is not permitted, and is what refused the watch too.
        let refused = matches!(self.slots.get(&slot), Some(Slot::Onlooker(_)))
            && matches!(&answer, Answer::Failed(trouble) if trouble.class == Class::Denied);
        if self.list_of(slot) != Some(request) && !refused {
            return;
        }
        match answer {
            Answer::Listed { header, entries } => {
                self.set_list(slot, None);
                self.take_snapshot(slot, header.revision, entries, false, now);
            }
            Answer::Failed(trouble) => self.list_failed(slot, now, request, trouble),
            _ => {}
        }
    }

    fn list_failed(&mut self, slot: SlotId, now: Time, request: RequestId, trouble: Trouble) {
        if matches!(trouble.class, Class::Denied | Class::Invalid)
            && let Some(Slot::Onlooker(_)) = self.slots.get(&slot)
        {
            self.act(Action::ObserveFailed { slot, trouble });
            self.forget(slot);
            return;
        }
        let class = trouble.class;
        self.fail_request("list", trouble);
        let failures = match self.slots.get_mut(&slot) {
            Some(Slot::Onlooker(o)) => {
                o.failures += 1;
                o.failures
            }
            Some(Slot::Candidate(c)) => {
                c.failures += 1;
                c.failures
            }
            None => return,
        };
        let not_before = now.after(self.pause(failures, class));
        if let Some(Slot::Onlooker(o)) = self.slots.get_mut(&slot) {
            o.not_before = not_before;
        }
        // The list stays 'under way' until then, so that nothing else starts it.
        self.timers.set(not_before, Timer::Relist(slot, request));
    }

    /// The pause after a failed list is over.
    pub(crate) fn relist(&mut self, slot: SlotId, request: RequestId, now: Time) {
        if self.list_of(slot) == Some(request) {
            self.set_list(slot, None);
            self.want_read(slot, now);
        }
    }

    fn list_of(&self, slot: SlotId) -> Option<RequestId> {
        match self.slots.get(&slot)? {
            Slot::Onlooker(o) => o.view.list,
            Slot::Candidate(c) => match &c.view {
                View::Prefix(view) => view.list,
                View::Predecessor(view) => view.read,
            },
        }
    }

    fn take_snapshot(
        &mut self,
        slot: SlotId,
        revision: i64,
        entries: Vec<Entry>,
        joined: bool,
        now: Time,
    ) {
        match self.slots.get_mut(&slot) {
            Some(Slot::Onlooker(o)) => {
                o.failures = 0;
                o.view.snapshot(revision, entries);
                self.show(slot);
                self.want_read(slot, now);
            }
            Some(Slot::Candidate(c)) => {
                c.failures = 0;
                let own = c.own().cloned();
                let mut dropped = None;
                if let (Some(own), View::Prefix(view)) = (&own, &c.view)
                    && joined
                    && c.follow == Follow::Auto
                    && ahead(&entries, own) > LONG_QUEUE
                {
                    dropped = view.watcher.map(|w| w.id);
                    c.view = View::Predecessor(PredecessorView::new(Arc::clone(&c.prefix)));
                }
                // A read that shows our key first is proof by itself: nothing older can come to be.
                let first = own.as_ref().is_some_and(|own| {
                    own.read(entries.iter().find(|e| e.key == own.key)) == Fate::Ours
                        && ahead(&entries, own) == 0
                });
                match (&mut c.view, &own) {
                    (View::Prefix(view), _) => view.snapshot(revision, entries),
                    (View::Predecessor(view), Some(own)) => view.snapshot(revision, &entries, own),
                    (View::Predecessor(_), None) => {}
                }
                if let Some(watch) = dropped {
                    self.unwatch(watch);
                }
                let may_lead = first && self.trusted.is_some() && !self.closing;
                if may_lead
                    && let Some(Phase::Waiting { own }) =
                        self.candidate(slot).map(|c| c.phase().clone())
                {
                    self.lead(slot, own);
                }
                self.look(slot, now);
            }
            None => {}
        }
    }
}

fn ahead(entries: &[Entry], own: &Own) -> usize {
    entries
        .iter()
        .filter(|e| e.create_revision < own.create_revision)
        .count()
}

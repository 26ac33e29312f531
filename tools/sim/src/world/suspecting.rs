//! Decides which sessions a node suspects, counts what comes of it, and checks that no session is condemned while it
//! leads.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::challenging::{SESSIONS, anchor_of};
use super::cluster::ELECTIONS;
use super::promise::Invariant;
use super::step::Step;
use super::store::Key;
use super::{Node, Stop, World};
use eldest_core::action::{Answer, Ask};
use eldest_core::kv::Entry;
use eldest_core::time::Time;
use eldest_core::txn::{Op, Transacted, Txn};

/// How many times its lead a session may be the first in a queue without leading there, until others suspect it.
const IDLE: u32 = 2;

/// How often each node checks whether the other sessions are silent.
const EVERY: Duration = Duration::from_millis(100);

impl World {
    /// Makes every node suspect the silent sessions from now on.
    pub(crate) fn watch_for_silence(&mut self) {
        self.after(EVERY, |w| {
            for node in 0..w.nodes.len() {
                w.note_idleness(node);
            }
            for node in 0..w.nodes.len() {
                w.review_doubts(node);
            }
            w.watch_for_silence();
        });
    }

    /// Returns true if that node hears nothing of the session of that lease: its process is dead or stopped, or messages
    /// between them are lost; or the session gives no sign of life, because it reads nothing from etcd or does not lead
    /// though it could.
    fn is_silent(&self, lease: i64, node: usize) -> bool {
        let Some(owner) = self.nodes.iter().position(|n| n.lease() == Some(lease)) else {
            return true;
        };
        let deaf = self.nodes[node].link.deaf.get(&owner);
        let n = &self.nodes[owner];
        let is_cut = n.link.requests_lost || n.link.answers_lost;
        let patience = if self.plan.by_reads {
            n.settings.lead / 3
        } else {
            n.settings.lead * IDLE
        };
        let is_idle = |since: Time| self.now >= since.after(patience);
        n.paused
            || n.closed()
            || deaf.is_some_and(|until| self.now < *until)
            || (is_cut && !self.plan.by_reads)
            || n.doubts.idle_since.is_some_and(is_idle)
    }

    /// Records whether the node's session is the first in the queue of an election, and does not lead there.
    fn note_idleness(&mut self, node: usize) {
        let n = &self.nodes[node];
        let idles = n.lease().is_some_and(|lease| {
            ELECTIONS.iter().any(|election| {
                let eldest = self.store.eldest(election);
                eldest.is_some_and(|e| e.lease == lease) && n.valid(election, self.now).is_none()
            })
        });
        let since = n.doubts.idle_since.unwrap_or(self.now);
        self.nodes[node].doubts.idle_since = idles.then_some(since);
    }

    /// Keeps the signs of life of one node from another for a while.
    pub(crate) fn deafen(&mut self, node: usize, to: usize, lasts: Duration) {
        let until = self.now.after(lasts);
        self.nodes[node].link.deaf.insert(to, until);
    }

    fn review_doubts(&mut self, node: usize) {
        let n = &self.nodes[node];
        if n.paused || n.closed() {
            return;
        }
        let known = self.store.leases().keys().copied();
        let known = known.chain(n.doubts.suspected.iter().copied());
        let others: BTreeSet<_> = known.filter(|lease| n.lease() != Some(*lease)).collect();
        for lease in others {
            let falsely = self.nodes[node].doubts.falsely.get(&lease);
            let is_doubted = falsely.is_some_and(|until| self.now < *until);
            let is_known = self.store.leases().contains_key(&lease);
            let suspects = is_known && (is_doubted || self.is_silent(lease, node));
            let doubts = &mut self.nodes[node].doubts;
            if suspects && doubts.suspected.insert(lease) {
                self.command(node, move |w| {
                    w.give(node, |m, now| m.challenges(now).suspect(lease));
                    w.suspect_as_holder(node, lease);
                });
            } else if !suspects && doubts.suspected.remove(&lease) {
                self.command(node, move |w| {
                    w.give(node, |m, now| m.challenges(now).trust_again(lease));
                });
            }
        }
    }

    /// Makes a node without a term challenge every other session by a key for which the node may not wait.
    fn suspect_as_holder(&mut self, node: usize, lease: i64) {
        if self.nodes[node].valid_terms(self.now).next().is_some() {
            return;
        }
        let holds = |entry: &Entry| entry.lease == lease && !entry.key.starts_with(SESSIONS);
        let held = self.store.entries().find(holds);
        if let Some(held) = held.filter(|_| lease % 2 == 0) {
            self.give(node, |m, now| m.challenges(now).suspect_holder(&held));
        }
    }

    /// Makes a node suspect the session of that lease for a while, whether it is silent or not.
    pub(crate) fn suspect_falsely(&mut self, node: usize, lease: i64, lasts: Duration) {
        let until = self.now.after(lasts);
        self.nodes[node].doubts.falsely.insert(lease, until);
        self.review_doubts(node);
    }

    /// Makes all nodes suspect one session, drawn by the number, for a while. Returns the session's node and lease.
    pub(crate) fn suspect_one_that_answers(
        &mut self,
        number: u64,
        lasts: Duration,
    ) -> Option<(usize, i64)> {
        let allows = |n: &Node| !n.closed() && !n.settings.lead.is_zero() && !n.doubts.withdrawn;
        let living = self.nodes.iter().enumerate().filter(|(_, n)| allows(n));
        let living = living.filter_map(|(node, n)| Some((node, n.lease()?)));
        // A session whose anchor another client has deleted is condemned already.
        let deleted = &self.anchors.deleted;
        let living: Vec<_> = living
            .filter(|(_, lease)| !deleted.contains_key(lease))
            .collect();
        let suspect = *living.get(number as usize % living.len().max(1))?;
        for node in 0..self.nodes.len() {
            self.suspect_falsely(node, suspect.1, lasts);
        }
        Some(suspect)
    }

    /// Checks that the suspicion of a session that answers has cost that session nothing.
    pub(crate) fn check_answered(&mut self, (node, lease): (usize, i64)) {
        if self.nodes[node].lease() != Some(lease) {
            let what = format!("node {node} has answered, and lost the lease {lease:x}");
            self.broken(Invariant::Answered, what);
        }
    }

    /// Makes the node's session allow no challenges any more.
    pub(crate) fn withdraw(&mut self, node: usize) {
        self.nodes[node].doubts.withdrawn = true;
        self.command(node, move |w| {
            w.give(node, |m, now| m.challenges(now).withdraw());
        });
    }

    /// Stops the node when it has sent a request at which it is to be stopped, or later.
    pub(super) fn stop_at(&mut self, node: usize, ask: &Ask) {
        let stops = |stop: &Stop| stop.node == node && (stop.what)(ask);
        if let Some(at) = self.stops.iter().position(stops) {
            let Stop { wait, lasts, .. } = self.stops.remove(at);
            let stop = move |w: &mut World| {
                if !w.nodes[node].paused {
                    w.pause(node, lasts);
                }
            };
            if wait.is_zero() {
                stop(self);
            } else {
                self.in_life(node, wait, stop);
            }
        }
    }

    /// Lets etcd apply a transaction, and checks whose keys it deletes.
    pub(crate) fn transact(&mut self, node: usize, ask: &Ask) -> Answer {
        let of_delete = |op: &Op| match op {
            Op::Delete(key) => Some(Arc::clone(key)),
            _ => None,
        };
        let deleted: Vec<(Key, i64)> = match ask {
            Ask::Transact(Txn { then, .. }) => {
                let keys = then.iter().filter_map(of_delete);
                let entries = keys.filter_map(|key| self.store.entry(&key));
                entries
                    .map(|e| (Arc::clone(&e.key), e.create_revision))
                    .collect()
            }
            _ => Vec::new(),
        };
        self.check_parties(node, ask);
        let answer = self.store.perform(self.now, ask, None);
        let Answer::Transacted(Transacted { held, header, .. }) = answer else {
            return answer;
        };
        let effect = match (Step::of(ask), held) {
            (Some(Step::Challenge), true) => Some("challenges"),
            (Some(Step::Answer), true) => Some("answers"),
            (Some(Step::Condemn), true) => Some("condemned"),
            // The suspect had answered.
            (Some(Step::Condemn), false) => Some("refuted"),
            (Some(Step::Absence), true) => Some("deleted by absence"),
            _ => None,
        };
        if let Some(effect) = effect {
            self.tally.add(effect, 1);
        }
        if held {
            self.note_anchor(ask, header.revision);
            self.check_challenged(node, ask);
            self.check_condemned(node, &deleted);
        }
        answer
    }

    /// Checks that a challenge is put only while the suspect's anchor exists.
    fn check_challenged(&mut self, node: usize, ask: &Ask) {
        if let (Some(Step::Challenge), Ask::Transact(txn)) = (Step::of(ask), ask)
            && let [Op::Put { .. }, Op::Read(anchor)] = &txn.then[..]
            && !self.stands(anchor)
        {
            let anchor = String::from_utf8_lossy(anchor);
            let what = format!("node {node} challenges {anchor}, which is gone");
            self.broken(Invariant::Challenged, what);
        }
    }

    /// Checks that a node which revokes the lease of another session does so after the anchor of that session has gone.
    pub(super) fn check_revocation(&mut self, node: usize, ask: &Ask) {
        let Ask::Revoke { lease } = ask else {
            return;
        };
        let is_own = self.nodes[node].leases.contains(lease);
        if !is_own && self.store.contains(&anchor_of(*lease)) {
            let what = format!("node {node} sends {}", super::trace::ask(ask));
            self.broken(Invariant::Proof, what);
        }
    }

    /// Checks that no term is valid under a key that another session has just deleted, and that no clean read lets a
    /// session lead whose anchor was deleted with it.
    fn check_condemned(&mut self, node: usize, deleted: &[(Key, i64)]) {
        if self.nodes.iter().any(Node::beyond) {
            return;
        }
        let acts = |(key, created): &(Key, i64)| {
            let may_lead = |node: usize| {
                let (n, until) = (&self.nodes[node], self.leads_until(node));
                n.clean_under(key) && until.is_some_and(|until| n.local(self.now) < until)
            };
            let leads = |n: &Node| {
                let mut terms = n.valid_terms(self.now);
                let term = terms.find(|t| t.key == *key && t.token == *created);
                term.is_some_and(|term| !self.was_touched(term.prize, term.token))
            };
            self.nodes.iter().any(leads) || (0..self.nodes.len()).any(may_lead)
        };
        if let Some((key, created)) = deleted.iter().find(|deleted| acts(deleted)) {
            let key = String::from_utf8_lossy(key);
            let what = format!("node {node} deletes {key}@{created}, whose session leads");
            self.broken(Invariant::Overlap, what);
        }
    }
}

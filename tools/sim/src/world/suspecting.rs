//! Decides which sessions a node suspects, counts what comes of it, and checks that no session is condemned while it
//! leads.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::promise::Invariant;
use super::store::Key;
use super::{Node, Stop, World};
use eldest_core::action::{Answer, Ask};
use eldest_core::txn::{Op, Transacted, Txn, When};

/// How often each node checks whether the other sessions are silent.
const EVERY: Duration = Duration::from_millis(100);

/// The step of the protocol that a transaction makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Anchor,
    Read,
    Answer,
    Challenge,
    Condemn,
    Absence,
}

impl Step {
    pub(crate) fn of(ask: &Ask) -> Option<Self> {
        let Ask::Transact(Txn { when, then, .. }) = ask else {
            return None;
        };
        Some(match (&when[..], &then[..]) {
            ([], _) => Step::Read,
            (_, [Op::DeleteBelow(_)]) => Step::Answer,
            (_, [Op::Put { .. }]) => Step::Anchor,
            (_, [Op::Put { .. }, ..]) => Step::Challenge,
            ([When::NotCreated(..), ..], _) => Step::Absence,
            _ => Step::Condemn,
        })
    }
}

impl World {
    /// Makes every node suspect the silent sessions from now on.
    pub(crate) fn watch_for_silence(&mut self) {
        self.after(EVERY, |w| {
            for node in 0..w.nodes.len() {
                w.review_doubts(node);
            }
            w.watch_for_silence();
        });
    }

    /// Returns true if the session of that lease answers no other: its process is dead, stopped or cut off.
    fn is_silent(&self, lease: i64) -> bool {
        let owner = self.nodes.iter().find(|n| n.lease() == Some(lease));
        owner.is_none_or(|n| n.paused || n.link.requests_lost || n.link.answers_lost || n.closed())
    }

    fn review_doubts(&mut self, node: usize) {
        let n = &self.nodes[node];
        if n.paused || n.closed() {
            return;
        }
        let known = self.store.leases.keys().copied();
        let known = known.chain(n.doubts.suspected.iter().copied());
        let others: BTreeSet<_> = known.filter(|lease| n.lease() != Some(*lease)).collect();
        for lease in others {
            let falsely = self.nodes[node].doubts.falsely.get(&lease);
            let is_doubted = falsely.is_some_and(|until| self.now < *until);
            let is_known = self.store.leases.contains_key(&lease);
            let suspects = is_known && (is_doubted || self.is_silent(lease));
            let doubts = &mut self.nodes[node].doubts;
            if suspects && doubts.suspected.insert(lease) {
                self.command(node, move |w| {
                    w.give(node, |m, now| m.challenges(now).suspect(lease));
                });
            } else if !suspects && doubts.suspected.remove(&lease) {
                self.command(node, move |w| {
                    w.give(node, |m, now| m.challenges(now).trust_again(lease));
                });
            }
        }
    }

    /// Makes a node suspect the session of that lease for a while, whether it is silent or not.
    pub(crate) fn suspect_falsely(&mut self, node: usize, lease: i64, lasts: Duration) {
        let until = self.now.after(lasts);
        self.nodes[node].doubts.falsely.insert(lease, until);
        self.review_doubts(node);
    }

    /// Makes the node's session allow no challenges any more.
    pub(crate) fn withdraw(&mut self, node: usize) {
        self.nodes[node].doubts.withdrawn = true;
        self.command(node, move |w| {
            w.give(node, |m, now| m.challenges(now).withdraw());
        });
    }

    /// Stops the node after it has sent a request at which it is to be stopped.
    pub(super) fn stop_at(&mut self, node: usize, ask: &Ask) {
        let stops = |stop: &Stop| stop.node == node && (stop.what)(ask);
        if let Some(at) = self.stops.iter().position(stops) {
            let lasts = self.stops.remove(at).lasts;
            if !self.nodes[node].paused {
                self.pause(node, lasts);
            }
        }
    }

    /// Lets etcd apply a transaction, and checks whose keys it deletes.
    pub(super) fn transact(&mut self, node: usize, ask: &Ask) -> Answer {
        let of_delete = |op: &Op| match op {
            Op::Delete(key) => Some(Arc::clone(key)),
            _ => None,
        };
        let deleted: Vec<(Key, i64)> = match ask {
            Ask::Transact(Txn { then, .. }) => {
                let keys = then.iter().filter_map(of_delete);
                let entries = keys.filter_map(|key| self.store.keys.get(&key));
                entries
                    .map(|e| (Arc::clone(&e.key), e.create_revision))
                    .collect()
            }
            _ => Vec::new(),
        };
        let answer = self.store.perform(self.now, ask, None);
        let Answer::Transacted(Transacted { held, .. }) = answer else {
            return answer;
        };
        let counts = &mut self.happened.challenged;
        match (Step::of(ask), held) {
            (Some(Step::Challenge), true) => counts.challenges += 1,
            (Some(Step::Answer), true) => counts.answers += 1,
            (Some(Step::Condemn), true) => counts.condemned += 1,
            (Some(Step::Condemn), false) => counts.refuted += 1,
            (Some(Step::Absence), true) => counts.by_absence += 1,
            _ => {}
        }
        if held {
            self.check_condemned(node, &deleted);
        }
        answer
    }

    /// Checks that no term is valid under a key that another session has just deleted.
    fn check_condemned(&mut self, node: usize, deleted: &[(Key, i64)]) {
        if self.nodes.iter().any(Node::beyond) {
            return;
        }
        let acts = |(key, created): &(Key, i64)| {
            let leads = |n: &Node| {
                let mut terms = n.valid_terms(self.now);
                terms.any(|t| t.key == *key && t.token == *created)
            };
            let touched = self.touched.contains(&(*created, Arc::clone(key)));
            !touched && self.nodes.iter().any(leads)
        };
        if let Some((key, created)) = deleted.iter().find(|deleted| acts(deleted)) {
            let key = String::from_utf8_lossy(key);
            let what = format!("node {node} deletes {key}@{created}, whose session leads");
            self.broken(Invariant::Overlap, what);
        }
    }
}

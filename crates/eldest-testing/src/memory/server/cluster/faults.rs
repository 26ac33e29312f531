//! Breaks members and the links between them, and repairs them.

use std::time::Duration;

use super::Cluster;
use super::state::pair;

impl Cluster {
    /// Kills the member's process.
    pub fn kill(&self, member: usize) {
        self.with(|state| {
            // The member begins as a follower when it runs again.
            state.leader.take_if(|leader| *leader == member);
            let member = &mut state.members[member];
            member.up = false;
            member.frozen = false;
            member.deposed = None;
            member.catches_up = None;
        });
    }

    /// Starts the member's process again, with the state that it had applied.
    pub fn boot(&self, member: usize) {
        let now = self.now();
        self.with(|state| {
            let member = &mut state.members[member];
            member.up = true;
            member.heard = now;
        });
    }

    /// Stops the member's process: it neither answers nor receives anything.
    pub fn freeze(&self, member: usize) {
        self.with(|state| state.members[member].frozen = true);
    }

    /// Continues the member's process. With `revokes`, it proposes to revoke the leases that it then considers expired,
    /// and the others agree, as real etcds sometimes do.
    pub fn thaw(&self, member: usize, revokes: bool) {
        let now = self.now();
        self.with(|state| {
            let within = state.draw(Duration::ZERO, self.options.stale);
            let member = &mut state.members[member];
            member.frozen = false;
            member.revokes_on_thaw = revokes;
            if let Some(deposed) = &mut member.deposed {
                deposed.until = now + within;
            }
        });
    }

    /// Lets every replaced leader learn of its replacement now.
    pub fn learn(&self) {
        let now = self.now();
        self.with(|state| {
            for member in &mut state.members {
                if let Some(deposed) = &mut member.deposed {
                    deposed.until = deposed.until.min(now);
                }
            }
        });
    }

    /// Cuts the link between two members; clients are not affected.
    pub fn cut(&self, one: usize, other: usize) {
        self.with(|state| state.cut.insert(pair(one, other)));
    }

    /// Restores all links between members.
    pub fn join(&self) {
        self.with(|state| state.cut.clear());
    }

    /// Takes at most so many operations in a transaction from now on, as etcd's `--max-txn-ops` says (128 by default).
    pub fn limit_operations(&self, most: usize) {
        self.with(|state| state.most_operations = most);
    }

    /// Watches through that member receive nothing while `stalled`; everything else continues.
    pub fn stall_watches(&self, member: usize, stalled: bool) {
        self.with(|state| state.members[member].stalled_watches = stalled);
    }

    /// Refuses all writes while `full`.
    pub fn no_space(&self, full: bool) {
        self.with(|state| state.no_space = full);
    }

    /// Answers writes as if they had timed out, with that probability.
    pub fn lose_answers(&self, probability: f64) {
        self.with(|state| state.lose_answers = probability);
    }

    /// Compacts all but the last so many revisions.
    pub fn compact(&self, keep: i64) {
        self.with(|state| {
            let revision = state.store.revision() - keep;
            if revision > state.store.compacted() {
                // The revision lies between both, so it is not refused.
                let _ = state.store.compact(revision);
            }
        });
    }

    /// Revokes a lease as an operator would.
    pub fn revoke(&self, lease: i64) {
        self.with(|state| {
            // A lease that does not exist needs no revoking.
            let _ = state.store.revoke(lease);
            state.committed();
        });
    }
}

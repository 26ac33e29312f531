//! Breaks members and what lies between them, and mends them again.

use std::time::Duration;

use super::Cluster;
use super::state::pair;

impl Cluster {
    /// The member's process is dead.
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

    /// The member's process runs again, with what it had applied.
    pub fn boot(&self, member: usize) {
        let now = self.now();
        self.with(|state| {
            let member = &mut state.members[member];
            member.up = true;
            member.heard = now;
        });
    }

    /// Stops the member's process: it answers nothing and hears nothing.
    pub fn freeze(&self, member: usize) {
        self.with(|state| state.members[member].frozen = true);
    }

    /// Lets it go on. `revokes`: what it takes for expired by then it proposes to revoke, and is listened to, as was
    /// seen of real etcds now and then.
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

    /// Every leader that was replaced learns of it now.
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

    /// Both do not hear each other; clients are not concerned.
    pub fn cut(&self, one: usize, other: usize) {
        self.with(|state| state.cut.insert(pair(one, other)));
    }

    /// All members hear each other again.
    pub fn join(&self) {
        self.with(|state| state.cut.clear());
    }

    /// Takes at most so many operations in a transaction from now on, as etcd's `--max-txn-ops` says (128 by default).
    pub fn limit_operations(&self, most: usize) {
        self.with(|state| state.most_operations = most);
    }

    /// Watches through that member receive nothing, while everything else goes on.
    pub fn stall_watches(&self, member: usize, stalled: bool) {
        self.with(|state| state.members[member].stalled_watches = stalled);
    }

    /// Nothing more may be written.
    pub fn no_space(&self, full: bool) {
        self.with(|state| state.no_space = full);
    }

    /// With that probability what was written is answered as if it had timed out.
    pub fn lose_answers(&self, probability: f64) {
        self.with(|state| state.lose_answers = probability);
    }

    /// Forgets all but the last so many revisions.
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
            state.expiry.remove(&lease);
            // Nothing to revoke is fine.
            let _ = state.store.revoke(lease);
            state.committed();
        });
    }
}

//! Lets other sessions take over from a session that answers nothing, before its lease ends.
//!
//! A session that allows challenges puts one key for each lease, its *anchor*, and announces the anchor with its create
//! revision. It leads only until a short time after its last *clean read*: a linearizable read that shows the anchor
//! with that create revision, and no challenge of it. The anchor is never put again, so after it was deleted, no read is
//! clean.
//!
//! A session that suspects another one puts a *challenge* below its anchor. If the challenge still stands after the
//! longest time for which an earlier clean read can let the suspect lead, the challenger *condemns* the suspect: it
//! deletes the anchor together with the suspect's key and the challenge. A session without its announced anchor is
//! condemned, so any session deletes such keys. The suspect *answers* by deleting all challenges.
//!
//! At most one session leads as long as the clocks of *all* sessions keep the stated bound: a challenger whose clock runs
//! too fast condemns too early. Without challenges, only the leader's own clock counts.
//!
//! Each part owns one state: `anchor` the session's own anchor, `reads` the clean reads and answers, `elders` the sessions
//! ahead, `suspects` what is under way against others. `requests` has the transactions.
//! The deadline that follows from a clean read is the lease's second deadline, beside the trust in the lease.

mod anchor;
mod config;
mod elders;
mod reads;
mod requests;
mod suspects;

pub(crate) use anchor::Anchor;
pub use config::{Announced, ChallengeConfig, read_timeout};
pub use elders::Elder;
pub(crate) use elders::{Elders, Standing};
pub(crate) use reads::CleanReads;
pub(crate) use requests::{
    answer, challenge, challenge_key, challenger, challenges_of, clean_read, condemn,
    delete_by_absence, is_below_sessions, is_challenge_by, lead_of, put_anchor,
};
pub(crate) use suspects::{LONGEST, Progress, Suspect, Suspects, Target};

use std::sync::Arc;

use crate::ids::{SlotId, WatchId};
use crate::kv::Entry;
use crate::outbox::Outbox;
use crate::time::Time;
use crate::timers::Timer;

/// The slot of the watch of the session's own challenges. No handle has that number.
pub(crate) const CHALLENGED: SlotId = u64::MAX - 1;

/// The state of a session's challenges: what it needs to be challenged, and the sessions that it suspects.
#[derive(Debug)]
pub(crate) struct Challenges {
    config: Option<ChallengeConfig>,
    pub(crate) anchor: Anchor,
    pub(crate) reads: CleanReads,
    pub(crate) elders: Elders,
    pub(crate) suspects: Suspects,
    withdrawal: Withdrawal,
}

impl Challenges {
    pub(crate) fn new(config: Option<ChallengeConfig>) -> Self {
        Self {
            anchor: Anchor::new(config.is_some()),
            reads: CleanReads::default(),
            elders: Elders::default(),
            suspects: Suspects::default(),
            withdrawal: Withdrawal::None,
            config,
        }
    }

    /// Returns the settings, if the session allows challenges.
    pub(crate) fn config(&self) -> Option<&ChallengeConfig> {
        self.config.as_ref()
    }

    /// Returns the value that a candidate's key announces: the given one, with the session's anchor if there is one.
    pub(crate) fn announce(&self, value: &Arc<[u8]>) -> Arc<[u8]> {
        match (&self.config, self.anchor.known()) {
            (Some(config), Some(anchor)) => (config.announce)(value, anchor),
            _ => Arc::clone(value),
        }
    }

    /// Returns the anchor that a key announces, if it is the anchor of the key's own session. An announcement that
    /// another client has copied names the lease of its author.
    pub(crate) fn announced_by(&self, entry: &Entry) -> Option<Announced> {
        let announced = (self.config.as_ref()?.announced)(&entry.value)?;
        let name = format!("/{:x}", entry.lease);
        let is_own = announced.anchor.ends_with(name.as_bytes());
        is_own.then_some(announced)
    }

    /// Returns true if the key is a challenge by the session of that lease, and a suspicion needs it.
    pub(crate) fn is_needed(&self, key: &[u8], own: i64) -> bool {
        let mut needed = self.suspects.challenged();
        needed.any(|anchor| *challenge_key(anchor, own) == *key)
    }

    /// Makes a clean read due: now if it is wanted `at_once`, and otherwise one interval after the last one.
    pub(crate) fn want_read(&mut self, now: Time, at_once: bool, out: &mut Outbox) {
        if let Some(config) = &self.config
            && let Some(at) = self.reads.want(now, config.interval, at_once)
        {
            out.set_timer(at, Timer::CleanRead);
        }
    }

    /// Begins to withdraw the anchor. It stays while a key of the session announces it: without the anchor, others
    /// would delete that key.
    pub(crate) fn withdraw(&mut self) {
        if self.config.is_some() && self.withdrawal == Withdrawal::None {
            self.withdrawal = Withdrawal::Begun;
        }
    }

    /// Returns true if the session must give up its lease to withdraw its anchor.
    pub(crate) fn is_withdrawing(&self) -> bool {
        self.withdrawal == Withdrawal::Begun
    }

    /// Returns true if the session is challenged and leads by clean reads, under the present lease or the next one.
    pub(crate) fn are_allowed(&self) -> bool {
        self.config.is_some() && self.withdrawal != Withdrawal::Done
    }

    /// Forgets everything that went with the lease. Returns a watch to be closed.
    pub(crate) fn lease_lost(&mut self) -> Option<WatchId> {
        if self.is_withdrawing() {
            self.withdrawal = Withdrawal::Done;
        }
        self.anchor.lease_lost(self.are_allowed());
        self.suspects.lease_lost();
        self.reads.clear()
    }
}

/// The withdrawal of a session that no longer allows challenges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Withdrawal {
    None,
    /// The session begins no term, and gives up its lease when its terms are over.
    Begun,
    /// The session leads by its lease alone.
    Done,
}

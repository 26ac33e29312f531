//! Lets other sessions take over from a session that answers nothing, before its lease ends.
//!
//! A session that allows challenges puts one key for each lease, its *anchor*, and announces the anchor with its create
//! revision. It leads only until a short time after its last *clean read*: a linearizable read that shows the anchor
//! with that create revision, and no challenge of it. The anchor is never put again, so after it was deleted, no read is
//! clean.
//!
//! Each part owns one state: `anchor` the session's own anchor, `reads` the clean reads.
//! The deadline that follows from a clean read is the lease's second deadline, beside the trust in the lease.

mod anchor;
mod config;
mod reads;
mod requests;

pub(crate) use anchor::{Anchor, Joins};
pub use config::{Announced, ChallengeConfig};
pub(crate) use reads::CleanReads;
pub(crate) use requests::{clean_read, is_below_sessions, put_anchor};

use std::sync::Arc;

/// What a session needs to be challenged: its anchor, and its clean reads.
#[derive(Debug)]
pub(crate) struct Challenges {
    config: Option<ChallengeConfig>,
    pub(crate) anchor: Anchor,
    pub(crate) reads: CleanReads,
}

impl Challenges {
    pub(crate) fn new(config: Option<ChallengeConfig>) -> Self {
        Self {
            anchor: Anchor::new(config.is_some()),
            reads: CleanReads::default(),
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

    /// Forgets everything that went with the lease.
    pub(crate) fn lease_lost(&mut self) {
        self.anchor.lease_lost(self.config.is_some());
        self.reads.clear();
    }
}

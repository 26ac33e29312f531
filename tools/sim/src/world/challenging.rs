//! Configures sessions that allow challenges, and checks by the store's own state that none of them leads without a
//! recent clean read.

use std::sync::Arc;
use std::time::Duration;

use super::anchors::{announce, announced};
use super::promise::Invariant;
use super::settings::Settings;
use super::store::Key;
use super::{Node, World};
use eldest_core::action::Ask;
use eldest_core::challenge::ChallengeConfig;
use eldest_core::lease::Trust;
use eldest_core::time::Time;
use eldest_core::txn::Op;

/// The prefix of the anchors.
const SESSIONS: &[u8] = b"~session/";

/// The longest time from one clean read to the next.
const INTERVAL: Duration = Duration::from_millis(300);

impl Settings {
    /// Returns the settings of challenges, if there are any.
    pub(super) fn challenges(&self) -> Option<ChallengeConfig> {
        (!self.lead.is_zero()).then(|| ChallengeConfig {
            sessions: SESSIONS.into(),
            lead: self.lead,
            trust: self.lead_trust(),
            grace: self.lead_grace(),
            interval: (self.lead / 3).min(INTERVAL),
            address: (*b"10.0.0.1:7").into(),
            announce,
            announced,
        })
    }

    pub(crate) fn lead_trust(&self) -> Trust {
        Trust {
            margin: self.lead / 20,
            drift_ppm: self.drift_ppm,
        }
    }

    pub(super) fn lead_grace(&self) -> Duration {
        self.lead / 10
    }
}

/// Returns the anchor of a lease.
fn anchor_of(lease: i64) -> Key {
    [SESSIONS, format!("{lease:x}").as_bytes()].concat().into()
}

impl World {
    /// Returns true if a clock beyond the promised drift may harm that node's terms: its own, or that of any session that
    /// can condemn it too early.
    pub(super) fn is_beyond(&self, node: &Node) -> bool {
        let is_challenged = !node.settings.lead.is_zero();
        node.beyond() || (is_challenged && self.nodes.iter().any(Node::beyond))
    }

    /// Returns the anchor in etcd of a node's session, if the session allows challenges.
    pub(super) fn anchor(&self, node: &Node) -> Option<Key> {
        let lease = node.lease().filter(|_| !node.settings.lead.is_zero())?;
        let anchor = anchor_of(lease);
        self.store.keys.contains_key(&anchor).then_some(anchor)
    }

    /// Records a request that was sent then and that etcd has just applied, if it reads a node's anchor while no
    /// challenge stands.
    pub(super) fn note_clean(&mut self, node: usize, ask: &Ask, sent: Time) {
        let Ask::Transact(txn) = ask else {
            return;
        };
        let Some(anchor) = self.anchor(&self.nodes[node]) else {
            return;
        };
        let below = [&anchor, &b"/challenges/"[..]].concat();
        let reads = txn.then.iter().any(|op| match op {
            Op::ReadBelow(prefix) | Op::DeleteBelow(prefix) => **prefix == *below,
            _ => false,
        });
        let stands = |key: &Key| key.starts_with(&below);
        if reads && !self.store.keys.keys().any(stands) {
            let local = self.nodes[node].local(sent);
            let clean = &mut self.nodes[node].clean;
            let key = clean.as_ref().filter(|(of, _)| *of == anchor);
            let last = key.map_or(local, |(_, last)| (*last).max(local));
            *clean = Some((anchor, last));
        }
    }

    /// Checks that a node whose term is valid has sent a clean read not long ago.
    pub(super) fn check_clean(&mut self, node: usize) {
        let n = &self.nodes[node];
        if n.settings.lead.is_zero() || n.doubts.withdrawn {
            return;
        }
        let lasts = |(_, sent): &(Arc<[u8]>, Time)| {
            n.settings.lead_trust().deadline(*sent, n.settings.lead)
        };
        let until = n.clean.as_ref().map(lasts);
        let now = n.local(self.now);
        if until.is_none_or(|until| until <= now) {
            let what = format!("node {node} leads at {now:?}, and may lead until {until:?}");
            self.broken(Invariant::Unread, what);
        }
    }
}

//! Configures sessions that allow challenges, and checks by the store's own state that none of them leads without a
//! recent clean read.

use std::sync::Arc;
use std::time::Duration;

use super::anchors::{announce, announced};
use super::node::Term;
use super::promise::Invariant;
use super::settings::Settings;
use super::step::Step;
use super::store::Key;
use super::{Node, World};
use eldest_core::action::{Action, Ask};
use eldest_core::challenge::ChallengeConfig;
use eldest_core::kv::Entry;
use eldest_core::lease::Trust;
use eldest_core::time::Time;
use eldest_core::txn::{Op, When};

/// The prefix of the anchors.
pub(crate) const SESSIONS: &[u8] = b"~session/";

/// The folder of an anchor's challenges.
const CHALLENGES: &[u8] = b"/challenges/";

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
            margin: if self.tight {
                Duration::ZERO
            } else {
                self.lead / 20
            },
            drift_ppm: self.drift_ppm,
        }
    }

    pub(super) fn lead_grace(&self) -> Duration {
        self.lead / 10
    }
}

/// Returns the anchor of a lease.
pub(super) fn anchor_of(lease: i64) -> Key {
    [SESSIONS, format!("{lease:x}").as_bytes()].concat().into()
}

impl World {
    /// Returns true if a clock beyond the promised drift may harm that node's terms: its own, or that of any session that
    /// can condemn it too early.
    pub(super) fn is_beyond(&self, node: &Node) -> bool {
        let is_challenged = !node.settings.lead.is_zero();
        node.beyond() || (is_challenged && self.nodes.iter().any(Node::beyond))
    }

    /// Sets how long a clean read lets a node lead that has not begun yet: zero for a session that allows no challenges.
    pub(crate) fn set_lead(&mut self, node: usize, lead: Duration) {
        let n = &mut self.nodes[node];
        if n.settings.lead != lead {
            let settings = Settings { lead, ..n.settings };
            let recording = n.recording;
            *n = Node::new(settings, n.seed);
            n.recording = recording;
        }
    }

    /// Returns the anchor in etcd of a node's session, if the session allows challenges. A key that was put in place of
    /// a deleted anchor is none.
    pub(super) fn anchor(&self, node: &Node) -> Option<Key> {
        let lease = node.lease().filter(|_| !node.settings.lead.is_zero())?;
        let anchor = anchor_of(lease);
        self.stands(&anchor).then_some(anchor)
    }

    pub(super) fn stands(&self, anchor: &[u8]) -> bool {
        let first = self.anchors.put.get(anchor);
        let is_first = |key: Entry| first.is_none_or(|first| *first == key.create_revision);
        self.store.entry(anchor).is_some_and(is_first)
    }

    /// Returns true if another client has put the key in place of an anchor.
    pub(super) fn is_copy_of_anchor(&self, key: &Entry) -> bool {
        let first = self.anchors.put.get(&key.key);
        first.is_some_and(|first| *first != key.create_revision)
    }

    /// Records that etcd has put an anchor at that revision. Only the first one counts.
    pub(super) fn note_anchor(&mut self, ask: &Ask, revision: i64) {
        if let (Some(Step::Anchor), Ask::Transact(txn)) = (Step::of(ask), ask)
            && let [Op::Put { key, .. }] = &txn.then[..]
        {
            self.anchors.put.entry(Arc::clone(key)).or_insert(revision);
        }
    }

    /// Deletes the anchor of a node's session as another client does, which may put a copy in its place. Until the last
    /// clean read is too old, the session may lead beside another one.
    pub(crate) fn delete_anchor(&mut self, node: usize, copies: bool) {
        let n = &self.nodes[node];
        let Some((anchor, lease)) = self.anchor(n).zip(n.lease()) else {
            return;
        };
        let until = self.leads_until(node).filter(|_| n.clean_under(&anchor));
        let until = until.map_or(self.now, |until| n.world(until));
        self.anchors.deleted.insert(lease, until);
        self.says(None, || format!("the anchor of {lease:x} is deleted"));
        let copy = self.store.entry(&anchor).filter(|_| copies);
        self.store.delete(&anchor);
        match copy {
            // The revision of the first anchor shows that the copy is another key.
            Some(copy) => {
                self.store.put(&anchor, &copy.value, lease);
            }
            None => {
                self.anchors.put.remove(&anchor);
            }
        }
        self.publish();
    }

    /// Returns true if another client has deleted the anchor of that term's session, and the last clean read before
    /// that still lets the session lead.
    pub(super) fn lost_its_anchor(&self, prize: usize, token: i64) -> bool {
        let lost = |term: &Term| {
            let until = self.anchors.deleted.get(&term.lease);
            let is_meant = term.prize == prize && term.token == token;
            is_meant && until.is_some_and(|until| self.now < *until)
        };
        let mut nodes = self.nodes.iter();
        !self.anchors.deleted.is_empty() && nodes.any(|n| n.terms.iter().any(lost))
    }

    /// Records a request that was sent then and that etcd has just applied, if it reads a node's anchor while no
    /// challenge stands.
    pub(super) fn note_clean(&mut self, node: usize, ask: &Ask, sent: Time) {
        let Ask::Transact(txn) = ask else {
            return;
        };
        let mut ops = txn.then.iter();
        let below = ops.find_map(|op| match op {
            Op::ReadBelow(prefix) | Op::DeleteBelow(prefix) => Some(prefix),
            _ => None,
        });
        let anchor = below.and_then(|below| below.strip_suffix(CHALLENGES));
        let (Some(below), Some(anchor)) = (below, anchor) else {
            return;
        };
        let challenges = |entry: Entry| entry.key.starts_with(below);
        if self.stands(anchor) && !self.store.entries().any(challenges) {
            let anchor = Key::from(anchor);
            let local = self.nodes[node].local(sent);
            let clean = &mut self.nodes[node].clean;
            let key = clean.as_ref().filter(|(of, _)| *of == anchor);
            let last = key.map_or(local, |(_, last)| (*last).max(local));
            *clean = Some((anchor, last));
        }
    }

    /// Returns the time of its own clock until which a node's last clean read lets it lead.
    pub(super) fn leads_until(&self, node: usize) -> Option<Time> {
        let n = &self.nodes[node];
        let (_, sent) = n.clean.as_ref()?;
        Some(n.settings.lead_trust().deadline(*sent, n.settings.lead))
    }

    /// Checks that a node whose term is valid has sent a clean read not long ago.
    pub(super) fn check_clean(&mut self, node: usize) {
        let n = &self.nodes[node];
        if n.settings.lead.is_zero() || n.doubts.withdrawn {
            return;
        }
        let now = n.local(self.now);
        let until = self.leads_until(node);
        if until.is_none_or(|until| until <= now) {
            let what = format!("node {node} leads at {now:?}, and may lead until {until:?}");
            self.broken(Invariant::Unread, what);
        }
    }

    /// Checks that a node extends the time of its terms no further than its last clean read allows.
    pub(super) fn check_lead(&mut self, node: usize, action: &Action) {
        let Action::Lead { deadline, .. } = action else {
            return;
        };
        let until = self.leads_until(node);
        if until.is_none_or(|until| until < *deadline) {
            let what = format!("node {node} leads until {deadline:?}, and may until {until:?}");
            self.broken(Invariant::Unread, what);
        }
    }

    /// Checks that a key which a node is about to write announces the anchor of its session.
    pub(super) fn check_announcement(&mut self, node: usize, ask: &Ask) {
        let (lease, value) = match ask {
            Ask::Join(join) => (join.lease, &join.value),
            Ask::Proclaim { own, value, .. } => (own.lease, value),
            _ => return,
        };
        let n = &self.nodes[node];
        let is_excused = n.doubts.withdrawn || self.anchors.deleted.contains_key(&lease);
        if n.settings.lead.is_zero() || is_excused {
            return;
        }
        let anchor = anchor_of(lease);
        let put = self.anchors.put.get(&anchor).copied();
        let announced = announced(value).filter(|announced| announced.anchor == anchor);
        if put.is_none() || announced.map(|announced| announced.create_revision) != put {
            let what = format!("node {node} sends {}", super::trace::ask(ask));
            self.broken(Invariant::Announces, what);
        }
    }

    /// Returns true if a request reads, writes or deletes an anchor or a challenge. The revocation of a
    /// lease needs permission for all of its keys.
    pub(super) fn is_about_sessions(&self, ask: &Ask) -> bool {
        let is_below = |key: &Key| key.starts_with(SESSIONS);
        match ask {
            Ask::Transact(_) => Step::of(ask).is_some(),
            Ask::Revoke { lease } => self.store.keys_of(*lease).iter().any(is_below),
            Ask::Delete { key, .. } | Ask::Find { key } => is_below(key),
            Ask::Release { keys } => keys.iter().any(|(key, _)| is_below(key)),
            _ => false,
        }
    }

    /// Checks that neither the node nor the suspect of a step against another session is one without challenges.
    pub(super) fn check_parties(&mut self, node: usize, ask: &Ask) {
        let (Some(Step::Challenge | Step::Condemn | Step::Absence), Ask::Transact(txn)) =
            (Step::of(ask), ask)
        else {
            return;
        };
        let is_plain = |n: &Node| n.settings.lead.is_zero();
        let suspect = txn.when.iter().find_map(|when| match when {
            When::Created(key, created) if !key.starts_with(SESSIONS) => {
                let entry = self.store.entry(key);
                entry.filter(|entry| entry.create_revision == *created)
            }
            _ => None,
        });
        let of_suspect = |n: &&Node| {
            suspect
                .as_ref()
                .is_some_and(|key| n.lease() == Some(key.lease))
        };
        let mut suspects = self.nodes.iter().filter(of_suspect);
        if is_plain(&self.nodes[node]) || suspects.any(is_plain) {
            let what = format!("node {node} sends {}", super::trace::ask(ask));
            self.broken(Invariant::Plain, what);
        }
    }
}

impl Node {
    /// Returns true if its last clean read was one of that anchor.
    pub(super) fn clean_under(&self, anchor: &Key) -> bool {
        let clean = self.clean.as_ref();
        clean.is_some_and(|(of, _)| of == anchor)
    }
}

//! Marks data centres as evacuated, and checks at rest that whoever is there lets others lead and own partitions.

use std::sync::Arc;
use std::time::Duration;

use super::World;
use super::cluster::ELECTIONS;
use super::home::{Home, MARKS, home};
use super::promise::Invariant;
use super::store::Key;
use eldest_core::action::Ask;
use eldest_core::kv::{Entry, Reach};
use eldest_core::partitions::{KeyKind, kind_of};

/// Leases of marks are numbered from here; no session draws such numbers.
const LEASES: i64 = -1000;

impl World {
    /// An operator marks a data centre, for a while by a lease of the mark's own.
    pub(crate) fn evacuate(&mut self, home: Home, lasts: Option<Duration>) {
        let Some(key) = home.mark().filter(|_| self.store.headless.is_none()) else {
            return;
        };
        self.says(None, || format!("{home:?} is evacuated for {lasts:?}"));
        let before = self.store.keys.get(&key).map_or(0, |entry| entry.lease);
        let lease = lasts.map_or(0, |ttl| {
            let lease = LEASES - self.store.revision;
            self.store
                .perform(self.now, &Ask::Grant { ttl }, Some(lease));
            lease
        });
        self.store.put(&key, b"", lease);
        self.store.revoke(before);
        self.publish();
    }

    /// An operator lifts the mark.
    pub(crate) fn lift(&mut self, home: Home) {
        let Some(key) = home.mark().filter(|_| self.store.headless.is_none()) else {
            return;
        };
        self.says(None, || format!("{home:?} is evacuated no more"));
        let lease = self.store.keys.get(&key).map_or(0, |entry| entry.lease);
        self.store.delete(&key);
        self.store.revoke(lease);
        self.publish();
    }

    /// Whether an operator has marked the data centre.
    pub(crate) fn is_evacuated(&self, home: Home) -> bool {
        let mark = home.mark();
        mark.is_some_and(|key| self.store.keys.contains_key(&key))
    }

    /// The marks and their leases, which are nobody's.
    pub(super) fn marks(&self) -> Vec<Entry> {
        self.store
            .state(MARKS, Reach::Everything)
            .into_values()
            .collect()
    }

    /// Whether the key is that of somebody whose data centre is evacuated.
    fn is_away(&self, entry: &Entry) -> bool {
        let mark = home(&entry.value).map(|name| Key::from([MARKS, &name].concat()));
        mark.is_some_and(|key| self.store.keys.contains_key(&key))
    }

    /// Nobody leads or owns a partition in an evacuated data centre, unless all who could are there.
    pub(super) fn all_give_way(&self) -> Result<(), (Invariant, String)> {
        for election in ELECTIONS {
            let queue = self.store.queue(election);
            let outsider = |entry: &&Entry| entry.lease != 0 && !self.is_away(entry);
            let leads = queue.first().filter(|first| self.is_away(first));
            if let (Some(first), Some(other)) = (leads, queue.iter().find(outsider)) {
                let who = super::trace::keys(&[first.clone(), other.clone()]);
                let what = format!("one in an evacuated data centre leads beside another: {who}");
                return Err((Invariant::Evacuated, what));
            }
        }
        let Some(prefix) = self.prefix_of_partitions() else {
            return Ok(());
        };
        let keys = self.store.children(&prefix);
        let member =
            |entry: &&Entry| matches!(kind_of(&prefix, &entry.key), Some(KeyKind::Member { .. }));
        let members = || keys.iter().filter(member);
        let away: Vec<_> = members()
            .filter(|entry| self.is_away(entry))
            .map(|e| e.lease)
            .collect();
        if away.len() == members().count() {
            return Ok(());
        }
        let owns = |entry: &&Entry| {
            matches!(kind_of(&prefix, &entry.key), Some(KeyKind::Partition(_)))
                && away.contains(&entry.lease)
        };
        match keys.iter().find(owns) {
            Some(entry) => {
                let key = super::trace::keys(std::slice::from_ref(entry));
                let what = format!("one in an evacuated data centre owns {key}");
                Err((Invariant::Evacuated, what))
            }
            None => Ok(()),
        }
    }

    /// Below this are the members and the partitions that they share.
    fn prefix_of_partitions(&self) -> Option<Key> {
        let key = self.store.keys.keys().find(|key| key.starts_with(b"p/"))?;
        let end = key.iter().rposition(|byte| *byte == b'/')?;
        Some(key[..=end].into())
    }

    /// What a node announces, with where it is.
    pub(super) fn tagged(&self, node: usize, value: &str) -> Key {
        let tag = self.nodes[node].home.tag();
        Arc::from(format!("{tag}{value}").into_bytes())
    }
}

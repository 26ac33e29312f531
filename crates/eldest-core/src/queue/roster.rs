//! Keeps the candidates of an election in order, eldest first: the keys one level below the election's prefix.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::entries::{Queue, age};
use crate::kv::{Change, Entry, Reach};

/// The number of entries up to which one sorted list is used. Searching a longer list would cost more than trees do.
const FEW: usize = 8;

/// The candidates of one election at one revision, in order of their create revision.
#[derive(Debug, Clone, Default)]
pub struct Roster {
    prefix: Arc<[u8]>,
    reach: Reach,
    revision: i64,
    /// The entries, eldest first. Empty while there are many.
    few: Vec<Entry>,
    /// Made when there are more than [`FEW`] entries. A session may be a candidate in thousands of elections, most of
    /// which have one candidate, and a tree's node has room for eleven.
    many: Option<Box<Many>>,
}

#[derive(Debug, Clone, Default)]
struct Many {
    entries: BTreeMap<Arc<[u8]>, Arc<Entry>>,
    order: Queue,
}

impl Many {
    fn get(&self, key: &[u8]) -> Option<&Entry> {
        self.entries.get(key).map(|entry| &**entry)
    }

    fn insert(&mut self, entry: Entry) {
        let entry = Arc::new(entry);
        let old = self
            .entries
            .insert(Arc::clone(&entry.key), Arc::clone(&entry));
        if let Some(old) = old {
            self.order.remove(&old);
        }
        self.order.insert(entry);
    }

    fn remove(&mut self, key: &Arc<[u8]>) {
        if let Some(old) = self.entries.remove(key) {
            self.order.remove(&old);
        }
    }
}

impl Roster {
    /// Makes an empty roster, older than every revision.
    pub fn new(prefix: Arc<[u8]>, reach: Reach) -> Self {
        Self {
            prefix,
            reach,
            ..Self::default()
        }
    }

    /// Returns the prefix of the keys.
    pub fn prefix(&self) -> &Arc<[u8]> {
        &self.prefix
    }

    /// Returns the revision that the roster shows.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Returns `true` if a full read of the prefix at that revision cannot come from the same store: a key that did not
    /// change after this roster's revision differs in the read, or both have one revision and differ.
    pub fn contradicts(&self, revision: i64, entries: &[Entry]) -> bool {
        let unknown = |entry: &Entry| {
            let known = self.get(&entry.key);
            known.is_none_or(|known| known.mod_revision != entry.mod_revision)
        };
        let unchanged = |entry: &&Entry| entry.mod_revision <= self.revision;
        match revision.cmp(&self.revision) {
            Ordering::Less => false,
            Ordering::Equal if entries.len() != self.len() => true,
            _ => entries.iter().filter(unchanged).any(unknown),
        }
    }

    /// Replaces everything by a full read of the prefix. A key that the read does not have is deleted.
    pub fn replace(&mut self, revision: i64, entries: impl IntoIterator<Item = Entry>) {
        self.few.clear();
        self.many = None;
        self.revision = revision;
        for entry in entries {
            self.insert(entry);
        }
    }

    /// Applies one event. An event that is not newer than the roster is ignored, because the roster includes it. Events
    /// of one revision belong together, so only [`Roster::reached`] moves the revision.
    pub fn apply(&mut self, change: Change) -> bool {
        if change.revision() <= self.revision || !self.reach.covers(&self.prefix, change.key()) {
            return false;
        }
        debug_assert!(
            self.revision < change.revision(),
            "a roster applies each event once"
        );
        match change {
            Change::Put(entry) => self.insert(entry),
            Change::Delete { key, .. } => self.remove(&key),
        }
        true
    }

    /// Records that every event up to `revision` has been applied.
    pub fn reached(&mut self, revision: i64) {
        self.revision = self.revision.max(revision);
    }

    /// Returns the eldest, which leads: the entry with the smallest create revision.
    pub fn eldest(&self) -> Option<&Entry> {
        self.in_order().next()
    }

    /// Returns the entry under `key`.
    pub fn get(&self, key: &[u8]) -> Option<&Entry> {
        match &self.many {
            Some(many) => many.get(key),
            None => self.few.iter().find(|entry| &*entry.key == key),
        }
    }

    /// Returns the number of candidates.
    pub fn len(&self) -> usize {
        let many = self.many.as_ref().map_or(0, |many| many.entries.len());
        self.few.len() + many
    }

    /// Returns `true` if there is no candidate.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of candidates older than a key created at `create_revision`.
    pub fn ahead_of(&self, create_revision: i64) -> usize {
        match &self.many {
            Some(many) => many.order.ahead_of(create_revision),
            None => self
                .few
                .partition_point(|entry| entry.create_revision < create_revision),
        }
    }

    /// Returns a copy of all entries, which costs the same however many there are.
    pub fn copy(&self) -> Queue {
        match &self.many {
            Some(many) => many.order.clone(),
            None => self.few.iter().cloned().collect(),
        }
    }

    /// Returns all entries, eldest first.
    pub fn in_order(&self) -> impl Iterator<Item = &Entry> {
        let many = self.many.iter().flat_map(|many| many.order.iter());
        self.few.iter().chain(many.map(|entry| &**entry))
    }

    /// Returns all entries in the order of their keys, which costs less if there are many.
    pub fn by_key(&self) -> impl Iterator<Item = &Entry> {
        let mut few: Vec<&Entry> = self.few.iter().collect();
        few.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        let many = self.many.iter().flat_map(|many| many.entries.values());
        few.into_iter().chain(many.map(|entry| &**entry))
    }

    fn insert(&mut self, entry: Entry) {
        if let Some(many) = &mut self.many {
            many.insert(entry);
            return;
        }
        self.remove(&Arc::clone(&entry.key));
        if self.few.len() == FEW {
            let mut many = Many::default();
            self.few.drain(..).for_each(|few| many.insert(few));
            many.insert(entry);
            self.few = Vec::new();
            self.many = Some(Box::new(many));
            return;
        }
        let place = self.few.partition_point(|other| age(other) < age(&entry));
        // One by one: most rosters stay with one entry.
        self.few.reserve_exact(1);
        self.few.insert(place, entry);
    }

    fn remove(&mut self, key: &Arc<[u8]>) {
        match &mut self.many {
            // A long roster stays in trees, so that a queue of changing length is not rebuilt each time.
            Some(many) => many.remove(key),
            None => self.few.retain(|entry| entry.key != *key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::is_direct_child;
    use proptest::prelude::*;

    fn entry(key: &str, create_revision: i64) -> Entry {
        Entry {
            key: key.as_bytes().into(),
            value: (*b"v").into(),
            create_revision,
            mod_revision: create_revision,
            lease: 7,
        }
    }

    fn roster() -> Roster {
        Roster::new(b"e/"[..].into(), Reach::Children)
    }

    fn delete(key: &str, revision: i64) -> Change {
        Change::Delete {
            key: key.as_bytes().into(),
            revision,
        }
    }

    #[test]
    fn the_smallest_create_revision_is_the_eldest() {
        let mut r = roster();
        r.replace(9, [entry("e/b", 5), entry("e/a", 7), entry("e/c", 3)]);
        assert_eq!(r.eldest().unwrap().create_revision, 3);
        assert_eq!(r.ahead_of(7), 2);
        let order: Vec<_> = r.in_order().map(|e| e.create_revision).collect();
        assert_eq!(order, [3, 5, 7]);
    }

    #[test]
    fn only_keys_exactly_one_level_below_count() {
        assert!(is_direct_child(b"e/", b"e/a"));
        assert!(is_direct_child(b"e/", b"e/\xff\x00"));
        assert!(!is_direct_child(b"e/", b"e/"));
        assert!(!is_direct_child(b"e/", b"e/a/b"));
        assert!(!is_direct_child(b"e/", b"ex/a"));
        let mut r = roster();
        assert!(!r.apply(Change::Put(entry("e/a/deep", 1))));
        assert!(r.eldest().is_none());
    }

    #[test]
    fn events_not_newer_than_the_snapshot_are_ignored() {
        let mut r = roster();
        r.replace(10, [entry("e/a", 4)]);
        assert!(!r.apply(delete("e/a", 10)));
        assert!(r.get(b"e/a").is_some());
        assert!(r.apply(delete("e/a", 11)));
        assert!(r.get(b"e/a").is_none());
    }

    #[test]
    fn read_of_another_store_contradicts_what_was_known() {
        let mut r = roster();
        assert!(!r.contradicts(10, &[entry("e/a", 4)]), "nothing is known");
        r.replace(10, [entry("e/a", 4), entry("e/b", 5)]);
        for (revision, entries, other) in [
            (10, vec![entry("e/a", 4), entry("e/b", 5)], false),
            (11, vec![entry("e/b", 5), entry("e/c", 11)], false),
            (11, vec![], false),
            (9, vec![entry("e/a", 4)], false),
            (10, vec![entry("e/a", 4)], true),
            (10, vec![entry("e/a", 4), entry("e/b", 6)], true),
            (11, vec![entry("e/c", 10)], true),
        ] {
            assert_eq!(
                r.contradicts(revision, &entries),
                other,
                "{revision}: {entries:?}"
            );
        }
    }

    #[test]
    fn a_recreated_key_goes_to_the_back() {
        let mut r = roster();
        r.replace(10, [entry("e/a", 4), entry("e/b", 5)]);
        r.apply(delete("e/a", 11));
        r.reached(11);
        let mut again = entry("e/a", 12);
        again.mod_revision = 12;
        r.apply(Change::Put(again));
        r.reached(12);
        assert_eq!(&*r.eldest().unwrap().key, b"e/b");
        assert_eq!(r.ahead_of(12), 1);
    }

    proptest! {
        /// After any puts, deletes and full reads, the roster equals a sort of the remaining entries: as one list, when
        /// it becomes trees, and as trees.
        #[test]
        fn the_order_is_that_of_a_sort(
            keys in prop::sample::select(vec![6u8, 30, 250]),
            steps in proptest::collection::vec((0u8..250, 0u8..25), 0..600),
        ) {
            let mut r = roster();
            let mut model: BTreeMap<String, i64> = BTreeMap::new();
            let read = |e: &Entry| (e.create_revision, String::from_utf8_lossy(&e.key).into_owned());
            let mut copies = Vec::new();
            for (step, (key, what)) in (2i64..).zip(steps) {
                // Keys of one transaction have one revision.
                let revision = step / 2;
                let key = format!("e/{}", key % keys);
                match what {
                    0 => {
                        let all = model.iter().map(|(key, created)| entry(key, *created));
                        r.replace(revision - 1, all);
                    }
                    1..16 => {
                        let created = *model.entry(key.clone()).or_insert(revision);
                        let mut e = entry(&key, created);
                        e.mod_revision = revision;
                        r.apply(Change::Put(e));
                    }
                    _ => {
                        model.remove(&key);
                        r.apply(delete(&key, revision));
                    }
                }
                r.reached(revision - i64::from(step % 2 == 0));
                let mut expected: Vec<_> = model.iter().map(|(k, c)| (*c, k.clone())).collect();
                expected.sort();
                prop_assert_eq!(r.in_order().map(read).collect::<Vec<_>>(), expected.clone());
                prop_assert_eq!(r.eldest().map(read), expected.first().cloned());
                prop_assert_eq!(r.len(), expected.len());
                copies.push((r.copy(), expected.clone()));
                prop_assert!(r.by_key().map(|e| read(e).1).eq(model.keys().cloned()));
                prop_assert_eq!(r.get(key.as_bytes()).map(|e| e.create_revision), model.get(&key).copied());
                let older = expected.iter().filter(|(created, _)| *created < revision).count();
                prop_assert_eq!(r.ahead_of(revision), older);
            }
            // An earlier copy shows no later change.
            for (copy, expected) in copies {
                prop_assert_eq!((copy.len(), copy.eldest().map(|e| read(e))), (expected.len(), expected.first().cloned()));
                prop_assert_eq!(copy.iter().map(|e| read(e)).collect::<Vec<_>>(), expected);
            }
        }
    }
}

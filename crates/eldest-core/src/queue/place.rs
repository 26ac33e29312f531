//! Holds the rule that the eldest lead: a candidate's place follows from how many older keys that exclude it are alive.

use super::own::{Fate, Own};
use crate::kv::Entry;

/// A candidate's place, as far as its view shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The view does not show the place now.
    Unknown,
    /// No older key is alive, or fewer than the capacity.
    First,
    /// At most this many older keys are ahead.
    Behind(usize),
    /// Our key does not exist.
    Lost(Fate),
}

/// Applies the rule of every election: the eldest lead, as many of them as the capacity. `ahead` older keys that
/// exclude the candidate are alive.
pub fn place_behind(ahead: usize, capacity: usize) -> Place {
    if ahead < capacity {
        Place::First
    } else {
        Place::Behind(ahead)
    }
}

/// Returns the place of `own` in a read that shows every key at least as old.
pub fn place_in(entries: &[Entry], own: &Own, capacity: usize) -> Place {
    match own.read(entries.iter().find(|e| e.key == own.key)) {
        Fate::Ours => place_behind(ahead(entries, own), capacity),
        lost => Place::Lost(lost),
    }
}

/// Returns how many keys of a read are older than `own` and exclude it.
pub fn ahead(entries: &[Entry], own: &Own) -> usize {
    entries
        .iter()
        .filter(|e| e.create_revision < own.create_revision && excludes(&e.key, &own.key))
        .count()
}

/// Applies the rule of shared locks: an older key excludes a younger one, unless both are readers. So a reader waits
/// for every older writer, even for one that waits itself; and a writer waits for all older keys.
pub fn excludes(older: &[u8], younger: &[u8]) -> bool {
    !(is_shared(older) && is_shared(younger))
}

/// Returns true if the key belongs to a reader, which leads together with other readers: `.../<lease in
/// hex>-shared-<number>`.
pub fn is_shared(key: &[u8]) -> bool {
    let name = key.rsplit(|byte| *byte == b'/').next().unwrap_or(key);
    let Some(at) = name.windows(SHARED.len()).position(|part| part == SHARED) else {
        return false;
    };
    let (lease, number) = (&name[..at], &name[at + SHARED.len()..]);
    let all = |part: &[u8], is: fn(&u8) -> bool| !part.is_empty() && part.iter().all(is);
    all(lease, u8::is_ascii_hexdigit) && all(number, u8::is_ascii_digit)
}

/// The text after the lease in the name of a reader's key.
pub(crate) const SHARED: &[u8] = b"-shared-";

#[cfg(test)]
mod tests {
    use super::super::samples::entry;
    use super::*;

    #[test]
    fn only_a_key_named_by_lease_and_number_is_shared() {
        for (key, shared) in [
            (&b"l/7f-shared-0"[..], true),
            (b"ns/a/b/1-shared-12", true),
            (b"l/7f", false),
            (b"l/7f-3", false),
            (b"l/7f-shared-", false),
            (b"l/-shared-3", false),
            (b"l/host-shared-3", false),
            (b"l/7f-shared-x", false),
            (b"l/7f-shared-3/below", false),
            (b"l/7f-shared-3-shared-4", false),
        ] {
            let text = String::from_utf8_lossy(key);
            assert_eq!(is_shared(key), shared, "{text}");
        }
    }

    #[test]
    fn reader_waits_for_older_writers_and_writer_for_all_older() {
        let queue = [
            entry("l/1-shared-0", 3, 1),
            entry("l/2-shared-0", 4, 2),
            entry("l/3", 5, 3),
            entry("l/4-shared-0", 6, 4),
            entry("l/5", 7, 5),
        ];
        let place = |entry: &Entry| {
            let own = Own {
                key: entry.key.clone(),
                create_revision: entry.create_revision,
                lease: entry.lease,
            };
            place_in(&queue, &own, 1)
        };
        let places: Vec<_> = queue.iter().map(place).collect();
        let behind = Place::Behind;
        let expected = [Place::First, Place::First, behind(2), behind(1), behind(4)];
        assert_eq!(places, expected);
    }
}

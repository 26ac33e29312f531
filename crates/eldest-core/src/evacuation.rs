//! Knows which data centres are evacuated and which leaders are ordered to step down, and decides whose place is to be given
//! up for that.
//!
//! A mark is a key that names a data centre, or the key of one candidate. While it stands, candidates of that data centre
//! let those elsewhere lead, and that candidate lets anybody else lead. What a candidate announces says where it is; how
//! that is written is the library's business, so the functions that read it are part of the configuration. A mark that is
//! not seen changes nothing, and no promise depends on one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::ids::SlotId;
use crate::kv::Entry;
use crate::partitions::Share;
use crate::queue::{Own, Roster};
use crate::time::Time;

/// The slot by which the marks are looked at. Handles number theirs from 1.
pub const MARKS: SlotId = 0;

/// The shortest time between two moves of a candidate, or of the lead, for the sake of marks: as long as the shortest order that
/// anybody may give. Marks that change faster would leave nobody in a place for long enough to lead.
pub(crate) const APART: Duration = Duration::from_secs(5);

/// How long a session that may not read the marks, and can do without them, waits before it looks again. The permission may be
/// granted meanwhile. Each look costs etcd one watch and one read, both refused.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Marks that begin like this order one leader to step down. No data centre is called so.
const STEP_DOWN: &[u8] = b"~step_down/";

/// Returns the key of the order to step down, for the candidate whose key was created at that revision. `marks` is the
/// prefix of the marks.
pub fn step_down_key(marks: &[u8], candidate: &[u8], create_revision: i64) -> Vec<u8> {
    let revision = format!("/{create_revision}");
    [marks, STEP_DOWN, candidate, revision.as_bytes()].concat()
}

/// Returns the key of the candidate that is ordered to step down, if `name` is that of such an order: what follows the prefix
/// of the marks.
pub fn ordered_key(name: &[u8]) -> Option<&[u8]> {
    let order = name.strip_prefix(STEP_DOWN)?;
    let end = order.iter().rposition(|byte| *byte == b'/')?;
    Some(&order[..end])
}

/// Where the marks are, and how announcements tell of data centres.
#[derive(Debug, Clone)]
pub struct Homes {
    /// Below this prefix each evacuated data centre has a key, which ends in its name, and each order to step down has one
    /// ([`step_down_key`]).
    pub marks: Arc<[u8]>,
    /// Returns the data centre that an announcement names.
    pub home: fn(&[u8]) -> Option<Vec<u8>>,
    /// Returns the announcement of a member that takes no partitions while others do.
    pub set_aside: fn(&[u8]) -> Arc<[u8]>,
    /// Reads what the announcement of a member says about its share of partitions; [`Homes::set_aside`] makes one that says
    /// that it does without.
    pub share: fn(&[u8]) -> Share,
}

/// The decision about a candidate's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// The candidate keeps its place.
    Keep,
    /// The candidate is to stand at the back.
    Give,
    /// The candidates behind it must be known first.
    Look,
}

/// The marks that were seen last.
#[derive(Debug)]
pub struct Evacuation {
    homes: Homes,
    /// By data centre, when its mark was put.
    standing: BTreeMap<Vec<u8>, i64>,
    /// The keys of the orders to step down.
    orders: BTreeSet<Vec<u8>>,
    /// When the session looks at them again, after it was not permitted to read them and no candidate of it depended on them.
    look_again: Option<Time>,
    /// True once they were seen, and the time of their last change since.
    known: bool,
    changed: Option<Time>,
}

impl Evacuation {
    /// No mark is known.
    pub(crate) fn new(homes: Homes) -> Self {
        Self {
            homes,
            standing: BTreeMap::new(),
            orders: BTreeSet::new(),
            look_again: None,
            known: false,
            changed: None,
        }
    }

    /// How announcements are read.
    pub(crate) fn homes(&self) -> &Homes {
        &self.homes
    }

    /// Returns `true` if the marks are not looked at for now.
    pub(crate) fn is_given_up(&self, now: Time) -> bool {
        self.look_again.is_some_and(|at| now < at)
    }

    /// Stops looking at the marks. Returns when to look again.
    pub(crate) fn give_up(&mut self, now: Time) -> Time {
        *self.look_again.insert(now.after(LOOK_AGAIN))
    }

    /// Records the marks below their prefix. Returns true if they have changed.
    pub(crate) fn seen(&mut self, roster: &Roster, now: Time) -> bool {
        let below = self.homes.marks.len();
        let is_order = |mark: &&Entry| mark.key[below..].starts_with(STEP_DOWN);
        let orders = roster.by_key().filter(is_order);
        let orders = orders.map(|order| order.key.to_vec()).collect();
        let marks = roster.by_key().filter(|mark| !is_order(mark));
        let marks = marks.map(|mark| (mark.key[below..].to_vec(), mark.create_revision));
        let before = (
            std::mem::replace(&mut self.standing, marks.collect()),
            std::mem::replace(&mut self.orders, orders),
        );
        let has_changed = before.0 != self.standing || before.1 != self.orders;
        if has_changed && self.known {
            self.changed = Some(now);
        }
        self.known = true;
        has_changed
    }

    /// Returns true if marks changed so lately that a term which begins now may be due to that.
    pub(crate) fn changed_lately(&self, now: Time) -> bool {
        self.changed.is_some_and(|at| now.since(at) < APART)
    }

    /// When the data centre that is announced was marked; `None` if it is not.
    pub(crate) fn since(&self, announced: &[u8]) -> Option<i64> {
        if self.standing.is_empty() {
            return None;
        }
        self.standing.get(&(self.homes.home)(announced)?).copied()
    }

    /// Returns true if the candidate with that key is ordered to step down.
    pub(crate) fn is_ordered(&self, own: &Own) -> bool {
        let order = || step_down_key(&self.homes.marks, &own.key, own.create_revision);
        !self.orders.is_empty() && self.orders.contains(&order())
    }

    /// Returns true if others are to lead before those whose data centre is evacuated. A key without a lease is nobody's.
    pub(crate) fn is_outsider(&self, entry: &Entry) -> bool {
        entry.lease != 0 && self.since(&entry.value).is_none()
    }
}

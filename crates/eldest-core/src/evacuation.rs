//! Records which data centres are evacuated, which leaders are ordered to step down, and the newest version that led
//! each election, and decides which candidates must give way.
//!
//! A mark is a key that names a data centre, the key of one candidate, or an election. While the mark exists, candidates
//! of that data centre let those elsewhere lead, that candidate lets any other lead, and candidates of that election
//! whose version is older than the mark's hold back. A candidate's announcement names its data centre and its version.
//! The library defines the format, so the functions that read it are part of the configuration. No guarantee depends on
//! a mark that the session has seen: one that is not seen changes nothing. A candidate that requires versions reads its
//! election's mark once more before it leads (`candidate::claiming`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::ids::SlotId;
use crate::kv::Entry;
use crate::partitions::ShareReaders;
use crate::queue::{Own, Roster};
use crate::time::Time;
use crate::version::Version;

/// The slot that observes the marks. Handles number their slots from 1.
pub const MARKS: SlotId = 0;

/// The shortest time between two moves of a candidate, or of the lead, because of marks: as long as the shortest order.
/// Marks that change faster would leave no candidate in a place for long enough to lead.
pub(crate) const APART: Duration = Duration::from_secs(5);

/// How long a session that may not read the marks, and can do without them, waits before it reads them again. The
/// permission may be granted meanwhile. Each attempt costs etcd one watch and one read, both refused.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// The beginning of marks that order one leader to step down. No data centre has such a name.
const STEP_DOWN: &[u8] = b"~step_down/";

/// The beginning of marks that name the newest version that led an election. No data centre has such a name.
const VERSION: &[u8] = b"~version/";

/// Returns the key of the order to step down, for the candidate whose key has that create revision. `marks` is the
/// prefix of the marks.
pub fn step_down_key(marks: &[u8], candidate: &[u8], create_revision: i64) -> Vec<u8> {
    let revision = format!("/{create_revision}");
    [marks, STEP_DOWN, candidate, revision.as_bytes()].concat()
}

/// Returns the key of the candidate that is ordered to step down, if `name` names such an order. `name` is the part of
/// the mark's key after the prefix.
pub fn ordered_key(name: &[u8]) -> Option<&[u8]> {
    let order = name.strip_prefix(STEP_DOWN)?;
    let end = order.iter().rposition(|byte| *byte == b'/')?;
    Some(&order[..end])
}

/// Returns the key of the mark with the newest version that led the election with that prefix. `marks` is the prefix of
/// the marks. The election's whole prefix tells elections of the same name in different places apart.
pub fn version_key(marks: &[u8], election: &[u8]) -> Vec<u8> {
    [marks, VERSION, named(election)].concat()
}

/// Returns an election's prefix without the final `/`, which names the election in its mark.
fn named(election: &[u8]) -> &[u8] {
    election.strip_suffix(b"/").unwrap_or(election)
}

/// The prefix of the marks, and the functions that read data centres and versions from announcements.
#[derive(Debug, Clone)]
pub struct Homes {
    /// The prefix of the marks. Below it, each evacuated data centre has a key that ends in its name, and each order to
    /// step down has one ([`step_down_key`]), and each election that requires versions another ([`version_key`]).
    pub marks: Arc<[u8]>,
    /// Returns the data centre that an announcement names.
    pub home: fn(&[u8]) -> Option<Vec<u8>>,
    /// Returns true if an announcement says that its candidate prepares for its terms and is not warm yet.
    pub is_cold: fn(&[u8]) -> bool,
    /// Returns the version that an announcement names.
    pub version: fn(&[u8]) -> Option<Version>,
    /// Returns the partitions for which a member with this announcement is ready; `None` if it prepares for none.
    pub ready: fn(&[u8]) -> Option<BTreeSet<u32>>,
    /// Returns the version that the mark of an election names.
    pub marked: fn(&[u8]) -> Option<Version>,
    /// Returns the announcement of a member that takes no partitions while others do.
    pub set_aside: fn(&[u8]) -> Arc<[u8]>,
    /// Reads members' shares of partitions; [`Homes::set_aside`] makes an announcement whose member takes none.
    pub shares: ShareReaders,
}

/// The decision about a candidate's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// The candidate keeps its place.
    Keep,
    /// The candidate must go to the end. `cold`: it leads, and its successor is not warm yet.
    Give { cold: bool },
    /// The candidates behind it must be known first.
    Look,
    /// The newest version that led must be known first.
    Ask,
}

/// The mark with the newest version that led an election; the default if there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Mark {
    /// The version; `None` if the mark names none, which is older than every version.
    pub(crate) version: Option<Version>,
    /// The revision at which the mark was written; 0 if it does not exist.
    pub(crate) written: i64,
}

/// The marks as last seen.
#[derive(Debug)]
pub struct Evacuation {
    homes: Homes,
    /// The create revision of each evacuated data centre's mark.
    standing: BTreeMap<Vec<u8>, i64>,
    /// The keys of the orders to step down.
    orders: BTreeSet<Vec<u8>>,
    /// The mark of each election that requires versions, by the election's name.
    versions: BTreeMap<Vec<u8>, Mark>,
    /// The time at which the session reads the marks again, after it was not permitted to read them and none of its
    /// candidates depended on them.
    look_again: Option<Time>,
    /// True once the marks were seen.
    known: bool,
    /// The revision of the marks as last seen.
    seen_at: i64,
    changed: Option<Time>,
}

impl Evacuation {
    /// Makes the state in which no mark is known.
    pub(crate) fn new(homes: Homes) -> Self {
        Self {
            homes,
            standing: BTreeMap::new(),
            orders: BTreeSet::new(),
            versions: BTreeMap::new(),
            look_again: None,
            known: false,
            seen_at: 0,
            changed: None,
        }
    }

    /// Returns how announcements are read.
    pub(crate) fn homes(&self) -> &Homes {
        &self.homes
    }

    /// Returns `true` if the session does not observe the marks for now.
    pub(crate) fn is_given_up(&self, now: Time) -> bool {
        self.look_again.is_some_and(|at| now < at)
    }

    /// Stops observing the marks. Returns when to observe them again.
    pub(crate) fn give_up(&mut self, now: Time) -> Time {
        *self.look_again.insert(now.after(LOOK_AGAIN))
    }

    /// Records the marks below their prefix. Returns true if they have changed.
    pub(crate) fn seen(&mut self, roster: &Roster, now: Time) -> bool {
        self.seen_at = roster.revision();
        let below = self.homes.marks.len();
        let is_order = |mark: &&Entry| mark.key[below..].starts_with(STEP_DOWN);
        let orders = roster.by_key().filter(is_order);
        let orders = orders.map(|order| order.key.to_vec()).collect();
        let is_version = |mark: &&Entry| mark.key[below..].starts_with(VERSION);
        let versions = roster.by_key().filter(is_version);
        let of = |mark: &Entry| mark.key[below + VERSION.len()..].to_vec();
        let versions = versions.map(|mark| (of(mark), self.mark(Some(mark))));
        let versions = versions.collect();
        let marks = roster
            .by_key()
            .filter(|mark| !is_order(mark) && !is_version(mark));
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
        // A version moves no lead from one candidate to another and back, so it needs no distance in time.
        let former = std::mem::replace(&mut self.versions, versions);
        has_changed || former != self.versions
    }

    /// Reads the mark of an election.
    pub(crate) fn mark(&self, entry: Option<&Entry>) -> Mark {
        entry.map_or_else(Mark::default, |mark| Mark {
            version: (self.homes.marked)(&mark.value),
            written: mark.mod_revision,
        })
    }

    /// Returns the mark of the election with that prefix, as last seen.
    pub(crate) fn mark_of(&self, election: &[u8]) -> Mark {
        let mark = self.versions.get(named(election));
        mark.copied().unwrap_or_default()
    }

    /// Returns the revision at which the marks were last seen; 0 if they never were.
    pub(crate) fn seen_at(&self) -> i64 {
        self.seen_at
    }

    /// Returns true if marks changed so recently that a new term may be their effect.
    pub(crate) fn changed_lately(&self, now: Time) -> bool {
        self.changed.is_some_and(|at| now.since(at) < APART)
    }

    /// Returns when the announced data centre was marked; `None` if it is not.
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

    /// Returns true if this candidate must lead before candidates of evacuated data centres.
    pub(crate) fn is_outsider(&self, candidate: &Entry) -> bool {
        self.since(&candidate.value).is_none()
    }
}

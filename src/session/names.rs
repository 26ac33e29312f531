//! Records the names that a session uses, by the prefixes of their keys, and refuses a second use of a prefix and
//! prefixes that nest.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Semaphore;

use crate::error::{Error, ErrorKind, Result};
use crate::state::number;

/// The prefix of semaphores' keys. No name of an election or lock begins like this.
const SEMAPHORES: &str = "~semaphore/";
/// The prefix of partitions' keys.
const PARTITIONS: &str = "~partitions/";
/// The prefix of group members' keys.
const MEMBERS: &str = "~members/";
/// The prefix of the records of schedules.
pub(crate) const SCHEDULES: &str = "~schedule/";
/// The prefix of the checkpoints of partitions.
pub(crate) const CHECKPOINTS: &str = "~checkpoint/";
/// The prefix of the anchors of sessions that allow challenges, and of their challenges.
pub(super) const SESSIONS: &str = "~session/";
/// The levels below a namespace that are not for candidates, with true for those whose names an overview hides.
const OWN_LEVELS: [(&str, bool); 9] = [
    ("~semaphore", false),
    ("~partitions", false),
    ("~members", false),
    // The locks by which the command `eldest run` keeps programs apart.
    ("~run", true),
    // The keys by which sessions prove to their guard that a lease is theirs.
    ("~guard", true),
    // The marks of evacuated data centres.
    ("~evacuated", true),
    // The records of schedules.
    ("~schedule", true),
    // The checkpoints of partitions.
    ("~checkpoint", true),
    // The anchors of sessions that allow challenges.
    ("~session", true),
];

/// Returns true if the level of a path is this crate's own.
pub(super) fn is_own_level(level: &str) -> bool {
    OWN_LEVELS.iter().any(|(own, _)| *own == level)
}

/// Returns true if an overview hides the name, because it is below a level of keys that are no queue.
pub(crate) fn is_hidden(name: &str) -> bool {
    let mut levels = OWN_LEVELS.iter();
    levels.any(|(level, is_hidden)| *is_hidden && name.starts_with(level))
}

/// The largest capacity, because every change of a permit reaches all sessions that hold or await one.
pub(crate) const MAX_CAPACITY: usize = 1024;

/// The turns of a session's tasks at a lock. A reader takes one of them while it joins etcd's queue, so that many may
/// join at a time. Any other task takes all of them until its key is gone.
pub(crate) const LOCK_TURNS: u32 = 1024;

/// The largest count, because a watch of more keys, and each read of them, would be too large.
pub(crate) const MAX_COUNT: u32 = 65_536;

/// The purpose of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Election,
    Lock,
    Semaphore { capacity: usize },
    Partitions { count: u32 },
    Group,
}

impl Use {
    /// Returns the path of the name's keys below the session's namespace. Elections and locks have the paths of etcd's
    /// own recipes, which do not distinguish the two.
    pub(crate) fn path(self, name: &str) -> String {
        match self {
            Use::Election | Use::Lock => name.to_owned(),
            Use::Semaphore { .. } => format!("{SEMAPHORES}{name}"),
            Use::Partitions { .. } => format!("{PARTITIONS}{name}"),
            Use::Group => format!("{MEMBERS}{name}"),
        }
    }

    /// Returns how many tasks of the session may wait or hold at once.
    fn turns(self) -> usize {
        match self {
            Use::Election | Use::Partitions { .. } | Use::Group => 0,
            Use::Lock => LOCK_TURNS as usize,
            Use::Semaphore { capacity } => capacity,
        }
    }

    /// Returns the error for a name that is used for `self` and requested for `other`.
    fn refuses(self, name: &str, other: Use) -> Error {
        match (self, other) {
            (Use::Semaphore { capacity: ours }, Use::Semaphore { capacity }) => Error::new(
                ErrorKind::CapacityMismatch,
                format!(
                    "capacity {capacity} was requested, but this session uses {name:?} with capacity {ours}"
                ),
            ),
            (Use::Partitions { count: ours }, Use::Partitions { count }) => Error::new(
                ErrorKind::CountMismatch,
                format!(
                    "{count} partitions were requested, but this session shares {ours} under {name:?}"
                ),
            ),
            _ => Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "this session uses {name:?} for {self}; {other} with that name would join the same queue"
                ),
            ),
        }
    }
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Use::Election => "an election",
            Use::Lock => "a lock",
            Use::Semaphore { .. } => "a semaphore",
            Use::Partitions { .. } => "partitions",
            Use::Group => "a group",
        })
    }
}

/// A parsed path below the namespace.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) name: String,
    pub(crate) what: Use,
}

impl Path {
    /// Parses a path. Locks, and paths that this crate does not write, are read as elections.
    pub(crate) fn parse(path: &str) -> Self {
        let numbered = |level| {
            let rest: &str = path.strip_prefix(level)?;
            rest.rsplit_once('/').filter(|(name, _)| !name.is_empty())
        };
        let semaphore = || {
            let (name, capacity) = numbered(SEMAPHORES)?;
            let capacity = number(capacity);
            let capacity = capacity.filter(|n| (1..=MAX_CAPACITY).contains(n))?;
            Some((name, Use::Semaphore { capacity }))
        };
        let partitions = || {
            let (name, count) = numbered(PARTITIONS)?;
            let count = number(count);
            let count = count.filter(|n| (1..=MAX_COUNT).contains(n))?;
            Some((name, Use::Partitions { count }))
        };
        let group = || Some((path.strip_prefix(MEMBERS)?, Use::Group));
        let (name, what) = semaphore()
            .or_else(partitions)
            .or_else(group)
            .unwrap_or((path, Use::Election));
        Self {
            name: name.to_owned(),
            what,
        }
    }

    /// Returns the prefixes of all keys with the given name, or with a name that begins with it.
    pub(crate) fn families(name: &str) -> Vec<String> {
        if name.is_empty() {
            return vec![String::new()];
        }
        let levels = ["", SEMAPHORES, PARTITIONS, MEMBERS];
        levels.map(|level| format!("{level}{name}")).into()
    }
}

/// The names in use, by the prefixes of their keys without the final `/`.
#[derive(Debug)]
pub(crate) struct Names {
    /// The prefix of all names.
    namespace: String,
    known: Mutex<Known>,
    /// Shared by all names without turns, of which a session may have thousands.
    no_turns: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Known {
    /// Includes names that are no longer in use.
    names: BTreeMap<String, Named>,
    /// The size at which unused names are forgotten. This is done rarely, because ten thousand elections must not cost
    /// ten thousand times ten thousand steps.
    most: usize,
}

/// A name, in use while a handle or a task holds the name or its turns.
#[derive(Debug)]
struct Named {
    name: Weak<str>,
    what: Use,
    turns: Weak<Semaphore>,
}

impl Named {
    fn in_use(&self) -> bool {
        self.name.strong_count() + self.turns.strong_count() > 0
    }
}

impl Known {
    fn get(&self, prefix: &str) -> Option<&Named> {
        self.names.get(prefix).filter(|named| named.in_use())
    }

    fn insert(&mut self, prefix: String, named: Named) {
        if self.names.len() >= self.most {
            self.names.retain(|_, named| named.in_use());
            self.most = 2 * self.names.len() + 16;
        }
        self.names.insert(prefix, named);
    }

    /// Returns a name in use that lies inside or around `prefix`.
    fn nested(&self, prefix: &str) -> Option<String> {
        let below = format!("{prefix}/");
        let inner = self
            .names
            .range::<str, _>((Bound::Included(&*below), Bound::Unbounded));
        let mut inner = inner.take_while(|(inner, _)| inner.starts_with(&below));
        let inner = inner.find(|(_, named)| named.in_use());
        let mut outer = prefix.match_indices('/').map(|(at, _)| &prefix[..at]);
        let outer = outer.find_map(|outer| Some((outer, self.get(outer)?)));
        let (other, named) = outer.or(inner.map(|(inner, named)| (&**inner, named)))?;
        let name = named.name.upgrade();
        Some(name.as_deref().unwrap_or(other).to_owned())
    }
}

/// A name, and the turns of the session's tasks, for all of its users.
type Registered = (Arc<str>, Arc<Semaphore>);

impl Names {
    pub(crate) fn new(namespace: String) -> Self {
        let known = Mutex::default();
        let no_turns = Arc::new(Semaphore::new(0));
        Self {
            namespace,
            known,
            no_turns,
        }
    }

    /// Registers a name within the namespace.
    pub(crate) fn register(&self, name: &str, what: Use) -> Result<Registered> {
        self.enter(format!("{}{}", self.namespace, what.path(name)), name, what)
    }

    /// Registers an election by its exact prefix, which is its name as well.
    pub(crate) fn register_at(&self, prefix: &str) -> Result<Registered> {
        self.enter(prefix.to_owned(), prefix, Use::Election)
    }

    fn enter(&self, prefix: String, name: &str, what: Use) -> Result<Registered> {
        let mut names = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = names.nested(&prefix) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "the name {name:?} nests with {other:?}, which this session uses: \
                     programs that count every key under a prefix would mix the two"
                ),
            ));
        }
        let known = names.get(&prefix);
        if let Some(named) = known.filter(|named| named.what != what) {
            return Err(named.what.refuses(name, what));
        }
        if what == Use::Election && self.has_namesake(&names, &prefix, name) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "this session uses {name:?} for two elections, one within its namespace and one at that exact \
                     prefix: metrics and logs could not tell them apart"
                ),
            ));
        }
        let shared = known.and_then(|named| named.name.upgrade());
        let shared = shared.unwrap_or_else(|| name.into());
        let (turns, kept) = if what.turns() == 0 {
            (Arc::clone(&self.no_turns), Weak::new())
        } else {
            let turns = known.and_then(|named| named.turns.upgrade());
            let turns = turns.unwrap_or_else(|| Arc::new(Semaphore::new(what.turns())));
            let kept = Arc::downgrade(&turns);
            (turns, kept)
        };
        let entry = Named {
            name: Arc::downgrade(&shared),
            what,
            turns: kept,
        };
        names.insert(prefix, entry);
        Ok((shared, turns))
    }

    /// Returns `true` if another election has that name: within the namespace, or as its exact prefix.
    fn has_namesake(&self, names: &Known, prefix: &str, name: &str) -> bool {
        // Nearly every name is within the namespace, and needs no second search.
        let within = prefix.strip_prefix(&self.namespace) != Some(name);
        let within = within.then(|| format!("{}{name}", self.namespace));
        let others = std::iter::once(name).chain(within.as_deref());
        others.filter(|other| *other != prefix).any(|other| {
            let used = names.get(other);
            used.is_some_and(|used| {
                used.what == Use::Election && used.name.upgrade().as_deref() == Some(name)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(names: &Names, name: &str, what: Use) -> String {
        names.register(name, what).unwrap_err().to_string()
    }

    #[test]
    fn unused_names_are_forgotten_and_refuse_nothing_before() {
        let names = Names::new(String::new());
        let kept = names.register("kept", Use::Election).unwrap();
        for n in 0..1000 {
            let lock = names.register(&format!("n{n}"), Use::Lock).unwrap();
            drop(lock);
            // Inside the name, and the same name for another use.
            drop(names.register(&format!("n{n}/e"), Use::Election).unwrap());
            drop(names.register(&format!("n{n}"), Use::Election).unwrap());
        }
        let known = names.known.lock().unwrap();
        assert!(known.names.len() < 50, "{} are known", known.names.len());
        assert!(known.get("kept").is_some());
        drop(kept);
        assert!(known.get("kept").is_none());
    }

    #[test]
    fn a_name_serves_one_thing_at_a_time() {
        let names = Names::new(String::new());
        let election = names.register("a", Use::Election).unwrap();
        let message = refused(&names, "a", Use::Lock);
        assert!(
            message.contains("\"a\" for an election; a lock"),
            "{message}"
        );
        drop(election);
        let lock = names.register("a", Use::Lock).unwrap();
        assert!(names.register("a", Use::Lock).is_ok(), "two handles");
        let message = refused(&names, "a", Use::Election);
        assert!(message.contains("for a lock; an election"), "{message}");
        let semaphore = Use::Semaphore { capacity: 2 };
        let held = names.register("a", semaphore).unwrap();
        let message = refused(&names, "a", Use::Semaphore { capacity: 3 });
        assert!(message.contains("capacity 3 was requested"), "{message}");
        assert!(message.contains("with capacity 2"), "{message}");
        drop((lock, held));
        assert!(names.register("a", Use::Semaphore { capacity: 3 }).is_ok());
    }

    #[test]
    fn path_in_another_spelling_is_that_of_an_election() {
        let own = Path::parse("~semaphore/a/3");
        assert_eq!(own.what, Use::Semaphore { capacity: 3 });
        for level in [SEMAPHORES, PARTITIONS] {
            for number in ["03", "+3", "0", ""] {
                let path = format!("{level}a/{number}");
                assert_eq!(Path::parse(&path).what, Use::Election, "{path}");
            }
        }
    }

    #[test]
    fn names_do_not_nest_within_their_kind_of_keys() {
        let names = Names::new(String::new());
        let semaphore = Use::Semaphore { capacity: 2 };
        let _lock = names.register("a/b", Use::Lock).unwrap();
        let _permits = names.register("x", semaphore).unwrap();
        for name in ["a", "a/b/c"] {
            let message = refused(&names, name, Use::Election);
            assert!(message.contains("nests with \"a/b\""), "{message}");
        }
        let message = refused(&names, "x/y", semaphore);
        assert!(message.contains("\"x/y\" nests with \"x\""), "{message}");
        assert!(names.register("a", semaphore).is_ok(), "keys apart");
        assert!(names.register("a/bc", Use::Election).is_ok());
    }

    #[test]
    fn turns_are_shared_while_a_handle_exists() {
        let names = Names::new(String::new());
        let (name, turns) = names.register("a", Use::Lock).unwrap();
        let turn = Arc::clone(&turns).try_acquire_many_owned(LOCK_TURNS);
        drop((name, turns));
        let (_, again) = names.register("a", Use::Lock).unwrap();
        assert!(again.try_acquire().is_err(), "somebody has it");
        drop(turn.unwrap());
        assert!(again.try_acquire().is_ok());
    }
    #[test]
    fn exact_prefix_equals_the_name_with_the_same_prefix() {
        let names = Names::new("ns/".into());
        let _lock = names.register("l", Use::Lock).unwrap();
        let message = names.register_at("ns/l").unwrap_err().to_string();
        assert!(message.contains("for a lock; an election"), "{message}");
        let _election = names.register("a/b", Use::Election).unwrap();
        for prefix in ["ns", "ns/a", "ns/a/b/c"] {
            let message = names.register_at(prefix).unwrap_err().to_string();
            assert!(message.contains("nests with"), "{message}");
        }
        assert!(names.register_at("/a").is_ok());
        assert!(names.register_at("b").is_ok());
    }

    #[test]
    fn two_elections_of_one_session_have_two_names() {
        let names = Names::new("ns/".into());
        let exact = names.register_at("a").unwrap();
        let message = refused(&names, "a", Use::Election);
        assert!(message.contains("for two elections"), "{message}");
        drop(exact);
        let _within = names.register("a", Use::Election).unwrap();
        let message = names.register_at("a").unwrap_err().to_string();
        assert!(message.contains("for two elections"), "{message}");
        assert!(names.register("a", Use::Election).is_ok(), "itself");
    }
}

//! Records the names that a session uses, and refuses a name with a second use or a name that nests with another.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Semaphore;

use crate::error::{Error, ErrorKind, Result};

/// Where the keys of semaphores lie; no name of an election or lock begins like this.
const SEMAPHORES: &str = "~semaphore/";
/// Likewise.
const PARTITIONS: &str = "~partitions/";

/// Every change of a permit reaches everybody who holds or awaits one.
pub(crate) const MAX_CAPACITY: usize = 1024;

/// More would make one watch, and every look at it, too large.
pub(crate) const MAX_COUNT: u32 = 65_536;

/// What a name is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Election,
    Lock,
    Semaphore { capacity: usize },
    Partitions { count: u32 },
}

impl Use {
    /// The name below the session's namespace. Those of elections and locks are those of etcd's own recipes, which
    /// make no difference between the two.
    pub(crate) fn path(self, name: &str) -> String {
        match self {
            Use::Election | Use::Lock => name.to_owned(),
            Use::Semaphore { .. } => format!("{SEMAPHORES}{name}"),
            Use::Partitions { .. } => format!("{PARTITIONS}{name}"),
        }
    }

    /// How many tasks of the session may stand or hold at once.
    fn turns(self) -> usize {
        match self {
            Use::Election | Use::Partitions { .. } => 0,
            Use::Lock => 1,
            Use::Semaphore { capacity } => capacity,
        }
    }

    /// Why a name that is used for `self` cannot serve `other` as well.
    fn refuses(self, name: &str, other: Use) -> Error {
        match (self, other) {
            (Use::Semaphore { capacity: ours }, Use::Semaphore { capacity }) => Error::new(
                ErrorKind::CapacityMismatch,
                format!(
                    "capacity {capacity} was asked for, but this session uses {name:?} with capacity {ours}"
                ),
            ),
            (Use::Partitions { count: ours }, Use::Partitions { count }) => Error::new(
                ErrorKind::CountMismatch,
                format!(
                    "{count} partitions were asked for, but this session shares {ours} under {name:?}"
                ),
            ),
            _ => Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "this session uses {name:?} for {self}; {other} of that name would stand in the same queue"
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
        })
    }
}

/// A path below the namespace, read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) name: String,
    pub(crate) what: Use,
}

impl Path {
    /// Locks are read as elections; so is what is not written as we write it.
    pub(crate) fn parse(path: &str) -> Self {
        let numbered = |level| {
            let rest: &str = path.strip_prefix(level)?;
            rest.rsplit_once('/').filter(|(name, _)| !name.is_empty())
        };
        let semaphore = || {
            let (name, capacity) = numbered(SEMAPHORES)?;
            let capacity = capacity.parse().ok();
            let capacity = capacity.filter(|n| (1..=MAX_CAPACITY).contains(n))?;
            Some((name, Use::Semaphore { capacity }))
        };
        let partitions = || {
            let (name, count) = numbered(PARTITIONS)?;
            let count = count.parse().ok();
            let count = count.filter(|n| (1..=MAX_COUNT).contains(n))?;
            Some((name, Use::Partitions { count }))
        };
        let (name, what) = semaphore()
            .or_else(partitions)
            .unwrap_or((path, Use::Election));
        Self {
            name: name.to_owned(),
            what,
        }
    }

    /// Where all that has that name, or a name that begins with it, has its keys.
    pub(crate) fn families(name: &str) -> Vec<String> {
        if name.is_empty() {
            return vec![String::new()];
        }
        let levels = ["", SEMAPHORES, PARTITIONS];
        levels.map(|level| format!("{level}{name}")).into()
    }
}

/// The names in use, by their paths.
#[derive(Debug, Default)]
pub(crate) struct Names(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Also of some that nobody uses any more.
    names: BTreeMap<String, Named>,
    /// With so many the unused ones are forgotten: now and then only, for ten thousand elections are not to cost ten
    /// thousand times ten thousand steps.
    most: usize,
}

/// In use for as long as anybody holds the name or its turns.
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
    fn get(&self, path: &str) -> Option<&Named> {
        self.names.get(path).filter(|named| named.in_use())
    }

    fn insert(&mut self, path: String, named: Named) {
        if self.names.len() >= self.most {
            self.names.retain(|_, named| named.in_use());
            self.most = 2 * self.names.len() + 16;
        }
        self.names.insert(path, named);
    }
}

impl Names {
    /// The one name, and the turns of the session's tasks, for everybody who uses it.
    pub(crate) fn register(&self, name: &str, what: Use) -> Result<(Arc<str>, Arc<Semaphore>)> {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let path = what.path(name);
        if let Some(other) = nested(&names, &path) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "the name {name:?} nests with {other:?}, which this session uses: \
                     programs that count every key under a prefix would mix the two"
                ),
            ));
        }
        let known = names.get(&path);
        if let Some(named) = known.filter(|named| named.what != what) {
            return Err(named.what.refuses(name, what));
        }
        let shared = known.and_then(|named| named.name.upgrade());
        let shared = shared.unwrap_or_else(|| name.into());
        let turns = known.and_then(|named| named.turns.upgrade());
        let turns = turns.unwrap_or_else(|| Arc::new(Semaphore::new(what.turns())));
        let entry = Named {
            name: Arc::downgrade(&shared),
            what,
            turns: Arc::downgrade(&turns),
        };
        names.insert(path, entry);
        Ok((shared, turns))
    }
}

/// A name in use that lies inside `path`, or around it.
fn nested<'a>(known: &'a Known, path: &'a str) -> Option<&'a str> {
    let below = format!("{path}/");
    let inner = known.names.range(below.clone()..);
    let mut inner = inner.take_while(|(inner, _)| inner.starts_with(&below));
    let inner = inner.find(|(_, named)| named.in_use());
    path.match_indices('/')
        .map(|(at, _)| &path[..at])
        .find(|outer| known.get(outer).is_some())
        .or(inner.map(|(inner, _)| inner.as_str()))
        .map(|other| {
            let own = [SEMAPHORES, PARTITIONS];
            let below = own.iter().find_map(|level| other.strip_prefix(level));
            below.unwrap_or(other)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(names: &Names, name: &str, what: Use) -> String {
        names.register(name, what).unwrap_err().to_string()
    }

    #[test]
    fn names_that_nobody_uses_are_forgotten_now_and_then_and_refuse_nothing_before() {
        let names = Names::default();
        let kept = names.register("kept", Use::Election).unwrap();
        for n in 0..1000 {
            let lock = names.register(&format!("n{n}"), Use::Lock).unwrap();
            drop(lock);
            // Inside it, and it itself for something else.
            drop(names.register(&format!("n{n}/e"), Use::Election).unwrap());
            drop(names.register(&format!("n{n}"), Use::Election).unwrap());
        }
        let known = names.0.lock().unwrap();
        assert!(known.names.len() < 50, "{} are known", known.names.len());
        assert!(known.get("kept").is_some());
        drop(kept);
        assert!(known.get("kept").is_none());
    }

    #[test]
    fn a_name_serves_one_thing_at_a_time() {
        let names = Names::default();
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
        assert!(message.contains("capacity 3 was asked for"), "{message}");
        assert!(message.contains("with capacity 2"), "{message}");
        drop((lock, held));
        assert!(names.register("a", Use::Semaphore { capacity: 3 }).is_ok());
    }

    #[test]
    fn names_do_not_nest_within_their_kind_of_keys() {
        let names = Names::default();
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
    fn turns_are_shared_for_as_long_as_somebody_has_one() {
        let names = Names::default();
        let (name, turns) = names.register("a", Use::Lock).unwrap();
        let turn = Arc::clone(&turns).try_acquire_owned().unwrap();
        drop((name, turns));
        let (_, again) = names.register("a", Use::Lock).unwrap();
        assert!(again.try_acquire().is_err(), "somebody has it");
        drop(turn);
        assert!(again.try_acquire().is_ok());
    }
}

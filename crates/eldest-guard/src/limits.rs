//! Limits how much of a shared guard the processes of one user can occupy: its open files, its memory, its requests to
//! etcd, its descriptions and the lines of its log.

use std::collections::BTreeMap;
use std::ops::{Add, Mul};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use eldest_core::time::Time;
use eldest_process::socket::UNREAD;
use rustix::process::{Resource, getrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The need of a connection: its socket, the descriptor of its process, its task, and answers that are not read.
pub(crate) const CONNECTION: Need = Need {
    files: 2,
    memory: UNREAD + 16 * KIB,
};
/// The need of each file of a further process, cgroup or timer.
pub(crate) const FILE: Need = Need {
    files: 1,
    memory: KIB,
};
const KIB: usize = 1024;
/// How many files a guard keeps for itself: connections to etcd, its log, timers.
const RESERVE: usize = 64;
/// How many files a guard gives to users, however many it may open.
const MOST: usize = 65_536;
/// How much memory a guard gives to users, in bytes. `MemoryMax` of the unit is twice that, for uncounted memory and
/// for the guard itself.
const MOST_MEMORY: usize = 256 * KIB * KIB;
/// The number of parts into which the limits are divided; one user may have one part.
const PARTS: usize = 4;
/// How many requests to etcd one user's sessions may have in flight.
const QUESTIONS: usize = 8;
/// How many lines about the sessions of one user are logged at once: enough for all that its sessions log when an agent
/// is restarted.
const MOST_LINES: u32 = 200;
/// How long it takes until one more line may be logged.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// A number of files, and of bytes of memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) files: usize,
    pub(crate) memory: usize,
}

impl Need {
    /// Returns the need of texts of the given length in bytes, which are kept twice.
    pub(crate) const fn texts(bytes: usize) -> Self {
        Self {
            files: 0,
            memory: 2 * bytes,
        }
    }

    fn without(self, other: Self) -> Self {
        Self {
            files: self.files.saturating_sub(other.files),
            memory: self.memory.saturating_sub(other.memory),
        }
    }
}

impl Add for Need {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            files: self.files + other.files,
            memory: self.memory + other.memory,
        }
    }
}

impl Mul<usize> for Need {
    type Output = Self;

    fn mul(self, times: usize) -> Self {
        Self {
            files: self.files * times,
            memory: self.memory * times,
        }
    }
}

/// The most that all users together, and one user, may take.
#[derive(Debug)]
pub(crate) struct Limits {
    most: Need,
    most_of_one: Need,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: Need,
    users: BTreeMap<u32, User>,
}

#[derive(Debug)]
struct User {
    taken: Need,
    questions: Arc<Semaphore>,
    descriptions: Arc<Semaphore>,
    lines: Lines,
}

/// The lines that were logged about one user's sessions.
#[derive(Debug, Default)]
struct Lines {
    /// The number of lines that count at that time. It falls by one after each [`LINE_EVERY`].
    logged: u32,
    at: Time,
    left_out: u64,
}

impl Lines {
    /// Forgets the lines that no longer count.
    fn settle(&mut self, now: Time) {
        let ago = now.since(self.at).as_secs() / LINE_EVERY.as_secs();
        let ago = u32::try_from(ago).unwrap_or(u32::MAX);
        if ago > 0 {
            self.logged = self.logged.saturating_sub(ago);
            self.at = now;
        }
    }
}

/// The share that one session has taken. Dropping it returns the share.
#[derive(Debug)]
pub(crate) struct Share {
    limits: Arc<Limits>,
    uid: u32,
    taken: Need,
    questions: Arc<Semaphore>,
    descriptions: Arc<Semaphore>,
}

impl Limits {
    /// Makes the limits of a guard that serves many users.
    pub(crate) fn shared() -> Arc<Self> {
        let files = open_files();
        let part = |most: Need| Need {
            files: most.files / PARTS,
            memory: most.memory / PARTS,
        };
        let most = Need {
            files,
            memory: MOST_MEMORY,
        };
        Self::new(most, part(most))
    }

    /// Makes the limits of a guard that serves one session.
    pub(crate) fn alone() -> Arc<Self> {
        let most = Need {
            files: open_files(),
            memory: MOST_MEMORY,
        };
        Self::new(most, most)
    }

    pub(crate) fn new(most: Need, most_of_one: Need) -> Arc<Self> {
        Arc::new(Self {
            most,
            most_of_one,
            taken: Mutex::default(),
        })
    }

    /// Reserves the need of a connection of that user.
    ///
    /// # Errors
    ///
    /// Says which limit would be exceeded.
    pub(crate) fn take(self: &Arc<Self>, uid: u32, need: Need) -> Result<Share, String> {
        let mut taken = self.lock();
        let new = || User {
            taken: Need::default(),
            questions: Arc::new(Semaphore::new(QUESTIONS)),
            descriptions: Arc::new(Semaphore::new(1)),
            lines: Lines::default(),
        };
        let had = taken
            .users
            .get(&uid)
            .map_or(Need::default(), |user| user.taken);
        self.allows(uid, had, taken.all, need)?;
        taken.all = taken.all + need;
        let user = taken.users.entry(uid).or_insert_with(new);
        user.taken = user.taken + need;
        Ok(Share {
            limits: Arc::clone(self),
            uid,
            taken: need,
            questions: Arc::clone(&user.questions),
            descriptions: Arc::clone(&user.descriptions),
        })
    }

    /// Says which limit would be exceeded, if any.
    fn allows(&self, uid: u32, had: Need, all: Need, need: Need) -> Result<(), String> {
        let (most, most_of_one) = (self.most, self.most_of_one);
        if had.files + need.files > most_of_one.files {
            return Err(format!(
                "user {uid} has {} open files of the guard; at most {} are allowed for one user",
                had.files, most_of_one.files
            ));
        }
        if had.memory + need.memory > most_of_one.memory {
            return Err(format!(
                "user {uid} has {} KiB of the guard's memory; at most {} KiB are allowed for one user",
                had.memory / KIB,
                most_of_one.memory / KIB
            ));
        }
        if all.files + need.files > most.files {
            return Err(format!(
                "the guard has {} files open for its sessions; its limit of open files allows {}",
                all.files, most.files
            ));
        }
        if all.memory + need.memory > most.memory {
            return Err(format!(
                "the guard's sessions have {} KiB of its memory; at most {} KiB are allowed",
                all.memory / KIB,
                most.memory / KIB
            ));
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // Every change under this lock is complete in itself.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    /// Changes the reservation to the session's need.
    ///
    /// # Errors
    ///
    /// Says which limit would be exceeded.
    pub(crate) fn hold(&mut self, need: Need) -> Result<(), String> {
        let mut more = self.limits.take(self.uid, need.without(self.taken))?;
        self.limits.give_back(self.uid, self.taken.without(need));
        more.taken = Need::default();
        self.taken = need;
        Ok(())
    }

    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }

    /// Waits until this user may send another request to etcd.
    pub(crate) async fn question(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.questions).acquire_owned().await.ok()
    }

    /// Waits until no other reader of this user receives the guard's sessions.
    pub(crate) async fn description(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.descriptions).acquire_owned().await.ok()
    }

    /// Returns how many lines were left out since the last one, if a line about this user's sessions may be logged now.
    pub(crate) fn line(&self, now: Time) -> Option<u64> {
        let mut taken = self.limits.lock();
        // A user's lines are remembered only while they count.
        taken.users.retain(|_, user| {
            user.lines.settle(now);
            user.taken != Need::default() || user.lines.logged > 0
        });
        let lines = &mut taken.users.get_mut(&self.uid)?.lines;
        if lines.logged >= MOST_LINES {
            lines.left_out += 1;
            return None;
        }
        lines.logged += 1;
        Some(std::mem::take(&mut lines.left_out))
    }
}

impl Limits {
    fn give_back(&self, uid: u32, need: Need) {
        let mut taken = self.lock();
        taken.all = taken.all.without(need);
        if let Some(user) = taken.users.get_mut(&uid) {
            user.taken = user.taken.without(need);
            if user.taken == Need::default() && user.lines.logged == 0 {
                taken.users.remove(&uid);
            }
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.limits.give_back(self.uid, self.taken);
    }
}

/// Returns how many files this process may open for others.
fn open_files() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    let limit = limit.map_or(MOST, |files| usize::try_from(files).unwrap_or(MOST));
    limit.saturating_sub(RESERVE).clamp(RESERVE, MOST)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const PLENTY: usize = 1 << 30;

    fn files(files: usize) -> Need {
        Need {
            files,
            memory: PLENTY,
        }
    }

    #[test]
    fn one_user_cannot_exhaust_the_limits_of_another() {
        let limits = Limits::new(files(8), files(4));
        let first = limits.take(1, CONNECTION).unwrap();
        let mut second = limits.take(1, CONNECTION).unwrap();
        let refused = limits.take(1, CONNECTION).unwrap_err();
        assert!(
            refused.contains("user 1 has 4 open files") && refused.contains("at most 4"),
            "{refused}"
        );
        assert!(second.hold(CONNECTION + FILE).is_err());
        let other = limits.take(2, CONNECTION).unwrap();
        drop(first);
        second.hold(CONNECTION + FILE).unwrap();
        let third = limits.take(3, FILE * 3).unwrap();
        let refused = limits.take(4, CONNECTION).unwrap_err();
        assert!(
            refused.contains("8 files open") && refused.contains("allows 8"),
            "{refused}"
        );
        second.hold(CONNECTION).unwrap();
        drop((second, other, third));
        let taken = limits.lock();
        let nothing = taken.all == Need::default() && taken.users.is_empty();
        assert!(nothing, "{taken:?}");
    }

    #[test]
    fn the_memory_of_one_user_is_counted_with_its_names() {
        let memory = |connections: usize| Need {
            files: 100,
            memory: CONNECTION.memory * connections,
        };
        let limits = Limits::new(memory(3), memory(2));
        let mut first = limits.take(1, CONNECTION).unwrap();
        first.hold(CONNECTION + Need::texts(1)).unwrap();
        let refused = limits.take(1, CONNECTION).unwrap_err();
        assert!(
            refused.contains("user 1 has ") && refused.contains(" of the guard's memory"),
            "{refused}"
        );
        first.hold(CONNECTION).unwrap();
        let _second = limits.take(1, CONNECTION).unwrap();
        let _other = limits.take(2, CONNECTION).unwrap();
        let refused = limits.take(2, CONNECTION).unwrap_err();
        assert!(refused.contains("the guard's sessions have "), "{refused}");
    }

    #[test]
    fn the_unit_leaves_room_for_the_limits_of_sessions() {
        let unit = include_str!("../../../deploy/systemd/eldest-agent.service");
        let most = format!("\nMemoryMax={}M\n", 2 * MOST_MEMORY / KIB / KIB);
        assert!(unit.contains(&most), "{most}");
    }

    #[tokio::test]
    async fn the_questions_of_one_user_do_not_hold_up_those_of_another() {
        let limits = Limits::new(files(8), files(4));
        let take = |uid| limits.take(uid, CONNECTION).unwrap();
        let (one, other) = (take(1), take(2));
        let mut under_way = Vec::new();
        for _ in 0..QUESTIONS {
            under_way.push(one.question().await);
        }
        assert!(
            one.question().now_or_never().is_none(),
            "one more than allowed"
        );
        assert!(other.question().await.is_some());
        let turn = one.description().await;
        assert!(one.description().now_or_never().is_none());
        assert!(other.description().now_or_never().is_some());
        drop(turn);
        assert!(one.description().now_or_never().is_some());
    }

    #[test]
    fn the_lines_of_one_user_are_limited_and_counted_across_its_sessions() {
        let limits = Limits::new(files(8), files(4));
        let now = Time::ZERO.after(LINE_EVERY);
        for _ in 0..MOST_LINES {
            // A new session each time.
            assert_eq!(limits.take(1, CONNECTION).unwrap().line(now), Some(0));
        }
        let one = limits.take(1, CONNECTION).unwrap();
        assert_eq!((one.line(now), one.line(now)), (None, None));
        assert_eq!(limits.take(2, CONNECTION).unwrap().line(now), Some(0));
        let later = now.after(LINE_EVERY);
        assert_eq!((one.line(later), one.line(later)), (Some(2), None));
        drop(one);
        let much_later = later.after(LINE_EVERY * MOST_LINES);
        assert_eq!(
            limits.take(3, CONNECTION).unwrap().line(much_later),
            Some(0)
        );
        let remembered: Vec<u32> = limits.lock().users.keys().copied().collect();
        assert_eq!(remembered, [3]);
    }
}

//! Limits what the processes of one user can take of a guard that serves many users: its open files, and its questions to
//! etcd.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Resource, getrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Files that a connection takes: its socket, and the descriptor of its process.
pub(super) const CONNECTION: usize = 2;
/// Files that a further process takes.
pub(super) const PROCESS: usize = 1;
/// Files that a guard keeps for itself: connections to etcd, its log, timers.
const RESERVE: usize = 64;
/// Files that a guard gives away, however many it may open.
const MOST: usize = 65_536;
/// Parts of the whole, of which one user has one.
const PARTS: usize = 4;
/// Questions to etcd that one user's sessions may have under way.
const QUESTIONS: usize = 8;

/// What users may take.
#[derive(Debug)]
pub(super) struct Limits {
    most: usize,
    most_of_one: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    files: usize,
    users: BTreeMap<u32, User>,
}

#[derive(Debug)]
struct User {
    files: usize,
    questions: Arc<Semaphore>,
}

/// What one session has taken. It is given back on drop.
#[derive(Debug)]
pub(super) struct Share {
    limits: Arc<Limits>,
    uid: u32,
    files: usize,
    questions: Arc<Semaphore>,
}

impl Limits {
    /// The limits of a guard that serves many users.
    pub(super) fn shared() -> Arc<Self> {
        let most = open_files();
        Self::new(most, most / PARTS)
    }

    /// The limits of a guard that serves one session.
    pub(super) fn alone() -> Arc<Self> {
        let most = open_files();
        Self::new(most, most)
    }

    pub(super) fn new(most: usize, most_of_one: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            most_of_one,
            taken: Mutex::default(),
        })
    }

    /// Takes files for a connection of that user.
    ///
    /// # Errors
    ///
    /// Says which limit would be exceeded.
    pub(super) fn take(self: &Arc<Self>, uid: u32, files: usize) -> Result<Share, String> {
        let mut taken = self.lock();
        let had = taken.users.get(&uid).map_or(0, |user| user.files);
        if had + files > self.most_of_one {
            return Err(format!(
                "user {uid} has {had} open files of the guard; at most {} are allowed for one user",
                self.most_of_one
            ));
        }
        if taken.files + files > self.most {
            return Err(format!(
                "the guard has {} files open for its sessions; its limit of open files allows {}",
                taken.files, self.most
            ));
        }
        taken.files += files;
        let user = taken.users.entry(uid).or_insert_with(|| User {
            files: 0,
            questions: Arc::new(Semaphore::new(QUESTIONS)),
        });
        user.files += files;
        Ok(Share {
            limits: Arc::clone(self),
            uid,
            files,
            questions: Arc::clone(&user.questions),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // Every change under this lock is complete in itself.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    /// Takes as many files more as a session with so many processes needs, or gives some back.
    ///
    /// # Errors
    ///
    /// Says which limit would be exceeded.
    pub(super) fn hold(&mut self, files: usize) -> Result<(), String> {
        if let Some(more) = files.checked_sub(self.files).filter(|more| *more > 0) {
            let mut more = self.limits.take(self.uid, more)?;
            self.files += std::mem::take(&mut more.files);
        } else {
            self.limits.give_back(self.uid, self.files - files);
            self.files = files;
        }
        Ok(())
    }

    /// Waits until this user may ask etcd another question.
    pub(super) async fn question(&self) -> Option<OwnedSemaphorePermit> {
        // It is never closed.
        Arc::clone(&self.questions).acquire_owned().await.ok()
    }
}

impl Limits {
    fn give_back(&self, uid: u32, files: usize) {
        let mut taken = self.lock();
        taken.files -= files;
        if let Some(user) = taken.users.get_mut(&uid) {
            user.files -= files;
            if user.files == 0 {
                taken.users.remove(&uid);
            }
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.limits.give_back(self.uid, self.files);
    }
}

/// How many files this process may open for others.
fn open_files() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    let limit = limit.map_or(MOST, |files| usize::try_from(files).unwrap_or(MOST));
    limit.saturating_sub(RESERVE).clamp(RESERVE, MOST)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn one_user_cannot_take_what_another_one_needs() {
        let limits = Limits::new(8, 4);
        let first = limits.take(1, CONNECTION).unwrap();
        let mut second = limits.take(1, CONNECTION).unwrap();
        let refused = limits.take(1, CONNECTION).unwrap_err();
        assert!(
            refused.contains("user 1 has 4 open files") && refused.contains("at most 4"),
            "{refused}"
        );
        assert!(second.hold(CONNECTION + PROCESS).is_err());
        let other = limits.take(2, CONNECTION).unwrap();
        drop(first);
        second.hold(CONNECTION + PROCESS).unwrap();
        let third = limits.take(3, 3).unwrap();
        let refused = limits.take(4, CONNECTION).unwrap_err();
        assert!(
            refused.contains("8 files open") && refused.contains("allows 8"),
            "{refused}"
        );
        second.hold(CONNECTION).unwrap();
        drop((second, other, third));
        let taken = limits.lock();
        assert!(taken.files == 0 && taken.users.is_empty(), "{taken:?}");
    }

    #[tokio::test]
    async fn the_questions_of_one_user_do_not_hold_up_those_of_another() {
        let limits = Limits::new(8, 4);
        let (one, other) = (limits.take(1, 2).unwrap(), limits.take(2, 2).unwrap());
        let mut under_way = Vec::new();
        for _ in 0..QUESTIONS {
            under_way.push(one.question().await);
        }
        assert!(
            one.question().now_or_never().is_none(),
            "one more than allowed"
        );
        assert!(other.question().await.is_some());
    }
}

//! Records the supervisor's own children. A sweep kills only the others: they were left over by a keeper that died.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, getpid, set_child_subreaper};
use tokio::process::{Child, Command};

use super::children;

/// The children of this process, one for the whole process.
pub(crate) struct ChildRegistry {
    /// The children with their times of birth, because the kernel reuses process ids.
    known: Mutex<HashMap<Pid, String>>,
}

impl ChildRegistry {
    /// Makes this process the parent of its descendants' orphans from now on. The children that it already has are
    /// spared.
    pub(crate) fn found() -> io::Result<Arc<Self>> {
        let born = |child| Some((child, children::birth(child)?));
        let known = children::list()?.into_iter().filter_map(born).collect();
        set_child_subreaper(Some(getpid()))?;
        let known = Mutex::new(known);
        Ok(Arc::new(Self { known }))
    }

    /// Starts a child that no sweep treats as a leftover.
    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        // The lock is held until the child is recorded, so that no sweep kills it in between.
        let mut known = self.known();
        known.retain(|child, birth| is(*child, birth));
        let child = command.spawn()?;
        known.extend(pid_of(&child).and_then(|pid| Some((pid, children::birth(pid)?))));
        Ok(child)
    }

    /// Waits for orphans that have ended.
    pub(crate) fn reap(&self) {
        let known = self.known();
        children::reap_ended(|child| spares(&known, child));
    }

    /// Kills all unrecorded children, one round, and returns those that are left. If none is left, none can appear
    /// while every keeper lives.
    pub(super) fn sweep(&self) -> io::Result<Vec<Pid>> {
        let known = self.known();
        let left = children::kill(children::list()?, |child| spares(&known, child));
        if !left.is_empty() {
            return Ok(left);
        }
        let mut sure = children::search()?;
        sure.retain(|child| !spares(&known, *child));
        Ok(sure)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Pid, String>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn spares(known: &HashMap<Pid, String>, child: Pid) -> bool {
    known.get(&child).is_some_and(|birth| is(child, birth))
}

/// Returns true if that process is the one that was born then.
fn is(child: Pid, birth: &str) -> bool {
    children::birth(child).is_some_and(|now| now == birth)
}

/// Returns `None` if the child was waited for already.
pub(super) fn pid_of(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()?).ok()?)
}

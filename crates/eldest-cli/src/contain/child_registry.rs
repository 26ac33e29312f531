//! Records the supervisor's own children. A sweep kills only the others: they were left over by a keeper that died.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, getpid, set_child_subreaper};
use tokio::process::{Child, Command};

use super::children;

/// The children of this process, one for the whole process.
pub(crate) struct ChildRegistry {
    /// With their births, for numbers are given again.
    known: Mutex<HashMap<Pid, String>>,
}

impl ChildRegistry {
    /// From here on orphans of our descendants come to us. Children that we were started with are left alone.
    pub(crate) fn found() -> io::Result<Arc<Self>> {
        let born = |child| Some((child, children::birth(child)?));
        let known = children::list()?.into_iter().filter_map(born).collect();
        set_child_subreaper(Some(getpid()))?;
        let known = Mutex::new(known);
        Ok(Arc::new(Self { known }))
    }

    /// Starts a child that no sweep takes for a leftover.
    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        // Held until it is known, lest a sweep comes between.
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

    /// Kills what is not known, one round; returns what is left of it. Nothing: there is nothing more to come either,
    /// as long as no keeper dies.
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

/// Returns true if that process is the one born then.
fn is(child: Pid, birth: &str) -> bool {
    children::birth(child).is_some_and(|now| now == birth)
}

/// `None`: it was waited for already.
pub(super) fn pid_of(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()?).ok()?)
}

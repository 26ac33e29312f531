//! Imitates guards, which delete the keys of processes that are dead.

use std::sync::Arc;
use std::time::Duration;

use super::rejoin;
use crate::mutant::Mutant;
use crate::world::World;

/// The prefix of a stranger's keys, outside of the nodes' namespace.
const STRANGER: &[u8] = b"stranger/~guard/";

/// The keys that a guard deletes: those of the namespace that the proof names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Nodes,
    Stranger,
}

impl World {
    /// Kills the process; another takes its place. After a while its guard, which lives on, deletes the dead one's
    /// keys. No term may be harmed by that, so no key counts as taken away by another client.
    pub(crate) fn die_guarded(&mut self, node: usize, wait: Duration) {
        let own = self.nodes[node].lease();
        let another = self.nodes[(node + 1) % self.nodes.len()].lease();
        self.die_as_stranger(another, wait);
        match self.mutant {
            Some(Mutant::GuardRevokesEarly) => {
                // The process that is to die lives on, and another one may lead meanwhile.
                self.release_by_guard(own, Of::Nodes);
                self.in_life(node, wait, move |w| {
                    w.kill(node);
                    rejoin(w, node);
                });
            }
            Some(Mutant::GuardRevokesAnothers) => {
                self.kill(node);
                self.after(wait, move |w| w.release_by_guard(another, Of::Nodes));
            }
            _ => {
                self.kill(node);
                self.after(wait, move |w| w.release_by_guard(own, Of::Nodes));
            }
        }
    }

    /// A stranger has bound a key to the lease of a living process, which etcd allows while the lease has no keys, and some
    /// releases always. It has registered the lease with its guard, and dies.
    fn die_as_stranger(&mut self, lease: Option<i64>, wait: Duration) {
        let known = |id: &i64| self.store.leases().contains_key(id);
        let Some(id) = lease.filter(known) else {
            return;
        };
        let key = [STRANGER, format!("{id:x}").as_bytes()].concat();
        self.store.put(&Arc::from(key), b"", id);
        self.publish();
        self.after(wait, move |w| w.release_by_guard(lease, Of::Stranger));
    }

    /// Lets a guard request the deletion until etcd confirms it.
    fn release_by_guard(&mut self, lease: Option<i64>, of: Of) {
        let Some(id) = lease else {
            return;
        };
        if self.store.headless.is_some() {
            let pause = self.settings.ttl / 10;
            self.after(pause, move |w| w.release_by_guard(lease, of));
            return;
        }
        self.says(None, || {
            format!("a guard deletes the keys of {of:?} under lease {id:x}")
        });
        if self.mutant == Some(Mutant::GuardProvesOnce) {
            self.store.revoke(self.now, id);
        } else {
            for key in self.store.keys_of(id) {
                if key.starts_with(STRANGER) == (of == Of::Stranger) {
                    self.store.delete(&key);
                }
            }
        }
        self.publish();
    }
}

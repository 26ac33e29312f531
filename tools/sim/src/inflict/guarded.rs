//! Imitates guards, which revoke the leases of processes that are dead.

use std::time::Duration;

use super::stand_again;
use crate::mutant::Mutant;
use crate::world::World;

impl World {
    /// The process dies and another takes its place. After a while its guard, which lives on, revokes the dead one's lease.
    /// Nobody's term may be harmed by that: no key counts as taken away by somebody else.
    pub(crate) fn die_guarded(&mut self, node: usize, wait: Duration) {
        let own = self.nodes[node].lease();
        match self.mutant {
            Some(Mutant::GuardRevokesEarly) => {
                // The process that is to die lives on, and another one may lead meanwhile.
                self.revoke_by_guard(own);
                let life = self.lives[node];
                self.after(wait, move |w| {
                    if w.lives[node] == life {
                        w.kill(node);
                        stand_again(w, node);
                    }
                });
            }
            Some(Mutant::GuardRevokesAnothers) => {
                let another = self.nodes[(node + 1) % self.nodes.len()].lease();
                self.kill(node);
                self.after(wait, move |w| w.revoke_by_guard(another));
            }
            _ => {
                self.kill(node);
                self.after(wait, move |w| w.revoke_by_guard(own));
            }
        }
    }

    /// A guard asks until etcd confirms.
    fn revoke_by_guard(&mut self, lease: Option<i64>) {
        let Some(id) = lease else {
            return;
        };
        if self.store.headless.is_some() {
            let pause = self.settings.ttl / 10;
            self.after(pause, move |w| w.revoke_by_guard(lease));
            return;
        }
        self.says(None, || format!("a guard revokes lease {id:x}"));
        self.store.revoke(id);
        self.publish();
    }
}

//! Logs and counts the orders to evacuate data centres, as the session sees them. Logs orders to step down that name
//! its own leaders.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::failures::name_of;
use crate::metrics;
use crate::state::{EVACUATED, Evacuation, Member, Roster, author};
use eldest_core::evacuation::ordered_key;
use eldest_core::kv::Entry;

/// The orders that the session saw last.
pub(super) struct Marks {
    /// The prefix of their keys.
    prefix: Arc<[u8]>,
    standing: Arc<[Evacuation]>,
    /// The keys of the orders to step down.
    to_step_down: BTreeSet<Arc<[u8]>>,
}

impl Marks {
    pub(super) fn new(prefix: Arc<[u8]>) -> Self {
        Self {
            prefix,
            standing: Arc::default(),
            to_step_down: BTreeSet::new(),
        }
    }

    /// Logs what changed since the state before. `lease` is the session's.
    pub(super) fn seen(&mut self, identity: &str, lease: i64, keys: &Roster) {
        let keys = keys.members().iter().map(Member::entry);
        self.ordered(identity, lease, keys.clone());
        let standing = Evacuation::all(&self.prefix, keys);
        let before = std::mem::replace(&mut self.standing, Arc::clone(&standing));
        for order in standing.iter().filter(|order| !before.contains(order)) {
            let data_center = order.data_center();
            metrics::evacuated(identity, data_center, true);
            let (by, reason) = (
                order.by().unwrap_or_default(),
                order.reason().unwrap_or_default(),
            );
            tracing::info!(target: "eldest::session", identity, data_center, by, reason, "data centre evacuated");
        }
        for order in before.iter() {
            let data_center = order.data_center();
            if standing.iter().all(|it| it.data_center() != data_center) {
                metrics::evacuated(identity, data_center, false);
                tracing::info!(target: "eldest::session", identity, data_center, "data centre no longer evacuated");
            }
        }
    }

    /// Logs each new order to step down that names a leader of this session.
    fn ordered<'a>(&mut self, identity: &str, lease: i64, keys: impl Iterator<Item = &'a Entry>) {
        let prefix = &*self.prefix;
        let namespace = &prefix[..prefix.len() - EVACUATED.len()];
        let mut standing = BTreeSet::new();
        for order in keys {
            let Some(of) = order.key.strip_prefix(prefix).and_then(ordered_key) else {
                continue;
            };
            let ours = of.ends_with(format!("/{lease:x}").as_bytes());
            if ours && !self.to_step_down.contains(&order.key) {
                let (election, by) = (name_of(namespace, of), author(&order.value));
                tracing::info!(target: "eldest::election", identity, election, by, "ordered to step down");
            }
            standing.insert(Arc::clone(&order.key));
        }
        self.to_step_down = standing;
    }
}

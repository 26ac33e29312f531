//! Logs and counts the orders to evacuate data centres, as the session sees them. Logs orders to step down that name
//! its own leaders.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::failures::name_of;
use crate::metrics;
use crate::state::{EVACUATED, Evacuation, author};
use eldest_core::evacuation::ordered_key;
use eldest_core::kv::Entry;
use eldest_core::queue::Queue;

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
    pub(super) fn seen(&mut self, identity: &str, lease: i64, keys: &Queue) {
        let (mut marks, mut to_step_down) = (Vec::new(), BTreeSet::new());
        for key in keys.iter().map(AsRef::as_ref) {
            if self.ordered(identity, lease, key) {
                to_step_down.insert(Arc::clone(&key.key));
            } else {
                marks.push(key);
            }
        }
        self.to_step_down = to_step_down;
        let standing = Evacuation::all(&self.prefix, marks);
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

    /// Returns true if the key is an order to step down. Logs a new one that names a leader of this session.
    fn ordered(&self, identity: &str, lease: i64, order: &Entry) -> bool {
        let prefix = &*self.prefix;
        let Some(of) = order.key.strip_prefix(prefix).and_then(ordered_key) else {
            return false;
        };
        let ours = of.ends_with(format!("/{lease:x}").as_bytes());
        if ours && !self.to_step_down.contains(&order.key) {
            let namespace = &prefix[..prefix.len() - EVACUATED.len()];
            let (election, by) = (name_of(namespace, of), author(&order.value));
            tracing::info!(target: "eldest::election", identity, election, by, "ordered to step down");
        }
        true
    }
}

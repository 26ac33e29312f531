//! Logs and counts the orders to evacuate data centres, as the session sees them.

use std::sync::Arc;

use crate::metrics;
use crate::state::{Evacuation, Member, Roster};

/// The orders that the session saw last.
pub(super) struct Marks {
    /// The prefix of their keys.
    prefix: Arc<[u8]>,
    standing: Arc<[Evacuation]>,
}

impl Marks {
    pub(super) fn new(prefix: Arc<[u8]>) -> Self {
        Self {
            prefix,
            standing: Arc::default(),
        }
    }

    /// Tells what changed since the state before.
    pub(super) fn seen(&mut self, identity: &str, keys: &Roster) {
        let keys = keys.members().iter().map(Member::entry);
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
}

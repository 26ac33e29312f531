//! Names the kinds of requests and the times of stories.

use std::time::Duration;

use crate::world::home::MARKS;
use eldest_core::action::Ask;

pub(super) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(super) fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

pub(super) fn joins(ask: &Ask) -> bool {
    matches!(ask, Ask::Join { .. })
}

pub(super) fn deletes(ask: &Ask) -> bool {
    matches!(ask, Ask::Delete { .. })
}

pub(super) fn renews(ask: &Ask) -> bool {
    matches!(ask, Ask::Renew)
}

pub(super) fn verifies(ask: &Ask) -> bool {
    matches!(ask, Ask::Verify { .. })
}

pub(super) fn grants(ask: &Ask) -> bool {
    matches!(ask, Ask::Grant { .. })
}

pub(super) fn revokes(ask: &Ask) -> bool {
    matches!(ask, Ask::Revoke { .. })
}

pub(super) fn takes(ask: &Ask) -> bool {
    matches!(ask, Ask::Take { .. })
}

pub(super) fn releases(ask: &Ask) -> bool {
    matches!(ask, Ask::Release { .. })
}

pub(super) fn opens(ask: &Ask) -> bool {
    matches!(ask, Ask::Open { .. })
}

pub(super) fn sweeps(ask: &Ask) -> bool {
    matches!(ask, Ask::Sweep { .. })
}

pub(super) fn finds(ask: &Ask) -> bool {
    matches!(ask, Ask::Find { .. })
}

pub(super) fn proclaims(ask: &Ask) -> bool {
    matches!(ask, Ask::Proclaim { .. })
}

/// Returns true for a read of a queue.
pub(super) fn reads(ask: &Ask) -> bool {
    match ask {
        Ask::List { prefix, .. } => **prefix != *MARKS,
        ask => matches!(ask, Ask::Older { .. }),
    }
}

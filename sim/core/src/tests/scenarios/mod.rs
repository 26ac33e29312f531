//! Rules of the library, each in one story.

mod ending;
mod giving_way;
mod holding;
mod joining;
mod lease;
mod meddling;
mod queue;
mod watching;

use std::time::Duration;

use crate::core::action::Ask;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

fn joins(ask: &Ask) -> bool {
    matches!(ask, Ask::Join { .. })
}

fn deletes(ask: &Ask) -> bool {
    matches!(ask, Ask::Delete { .. })
}

fn renews(ask: &Ask) -> bool {
    matches!(ask, Ask::Renew)
}

fn verifies(ask: &Ask) -> bool {
    matches!(ask, Ask::Verify { .. })
}

fn grants(ask: &Ask) -> bool {
    matches!(ask, Ask::Grant { .. })
}

fn revokes(ask: &Ask) -> bool {
    matches!(ask, Ask::Revoke { .. })
}

fn opens(ask: &Ask) -> bool {
    matches!(ask, Ask::Open { .. })
}

fn finds(ask: &Ask) -> bool {
    matches!(ask, Ask::Find { .. })
}

fn reads(ask: &Ask) -> bool {
    matches!(ask, Ask::List { .. } | Ask::Older { .. })
}

//! Tests each invariant by a minimal history that breaks it and a nearly identical one that does not.

use std::time::Duration;

use super::*;

mod counter;
mod files;
mod liveness;
mod overlap;
mod report;
mod tokens;

const TTL: Duration = Duration::from_secs(2);

fn ms(at: u64) -> Duration {
    Duration::from_millis(at)
}

fn on(at: u64, node: &str, what: What) -> Event {
    Event {
        at: ms(at),
        node: node.into(),
        election: "jobs".into(),
        what,
    }
}

fn valid(token: i64) -> What {
    What::Valid { token }
}

fn invalid(token: i64) -> What {
    What::Invalid { token }
}

fn elected(token: i64) -> What {
    What::Elected { token }
}

fn joined(create_revision: i64) -> What {
    What::Joined {
        key: format!("eldest/jobs/{create_revision}"),
        create_revision,
    }
}

fn fault(name: &str) -> What {
    What::Fault { name: name.into() }
}

fn healed(name: &str) -> What {
    What::Healed { name: name.into() }
}

fn wrote(token: i64, value: u64) -> What {
    What::FencedWrite {
        token,
        outcome: Outcome::Admitted { value },
    }
}

fn truth(at: u64, revision: i64, change: Change) -> Event {
    on(at, "etcd", What::Truth { revision, change })
}

/// Returns a created key, whose lease is 100 + its revision.
fn created(at: u64, revision: i64) -> Event {
    let change = Change::Created {
        key: format!("eldest/jobs/{revision}"),
        create_revision: revision,
        lease: 100 + revision,
    };
    truth(at, revision, change)
}

fn deleted(at: u64, revision: i64, create_revision: i64) -> Event {
    let change = Change::Deleted {
        key: format!("eldest/jobs/{create_revision}"),
        create_revision,
    };
    truth(at, revision, change)
}

fn lease(at: u64, lease: i64, left: Option<u64>) -> Event {
    let left = left.map(ms);
    truth(at, 0, Change::Lease { lease, left })
}

/// Returns the read that was sent then and showed that revision to be the newest.
fn current(at: u64, revision: i64) -> Event {
    truth(at, revision, Change::Current)
}

fn judge(rules: &Rules, events: impl IntoIterator<Item = Event>) -> Report {
    check(&History::new(events), rules)
}

fn rules() -> Rules {
    Rules::new(TTL)
}

/// Asserts that the history breaks this invariant and no other.
fn breaks(invariant: Invariant, events: impl IntoIterator<Item = Event>) -> Report {
    breaks_under(&rules(), invariant, events)
}

fn breaks_under(
    rules: &Rules,
    invariant: Invariant,
    events: impl IntoIterator<Item = Event>,
) -> Report {
    let report = judge(rules, events);
    assert!(!report.is_ok(), "not noticed\n{report}");
    for violation in &report.violations {
        assert_eq!(violation.invariant, invariant, "{report}");
    }
    report
}

fn holds(events: impl IntoIterator<Item = Event>) -> Report {
    let report = judge(&rules(), events);
    report.assert_ok();
    report
}

//! Names what nodes with `--ready` share beside the election, and splits etcd's reports about it.

use eldest_node::record::{PARTITIONS, partition_name};
use eldest_testing::history::{Change, Event, What};

/// The nodes' election.
pub(crate) const ELECTION: &str = "chaos";
/// The name under which etcd's reports about all partitions are recorded.
pub(crate) const TRUTH: &str = "the partitions of chaos";

/// Returns the prefix of the owners' keys.
pub(crate) fn owners() -> String {
    format!("{}o-", folder())
}

/// Returns the prefix of the records of kept shares.
pub(crate) fn shares() -> String {
    format!("{}k-", folder())
}

fn folder() -> String {
    format!("eldest/~partitions/{ELECTION}/{PARTITIONS}/")
}

/// Returns the names under which a history lists the partitions.
pub(crate) fn names() -> impl Iterator<Item = String> {
    (0..PARTITIONS).map(|number| partition_name(ELECTION, number))
}

/// Returns true if the event belongs to a partition, and not to the election itself.
pub(crate) fn is_partition(event: &Event) -> bool {
    names().any(|name| name == event.election)
}

/// Gives each partition its part of etcd's reports.
pub(crate) fn split(events: &[Event]) -> Vec<Event> {
    let mut all = Vec::new();
    for event in events {
        if event.election != TRUTH {
            all.push(event.clone());
            continue;
        }
        let names = names().enumerate();
        let parts = names.filter(|(number, _)| concerns(&event.what, *number));
        all.extend(parts.map(|(_, election)| Event {
            election,
            ..event.clone()
        }));
    }
    all
}

/// Returns true if etcd's report concerns that partition. Reports about leases concern all.
fn concerns(what: &What, number: usize) -> bool {
    let What::Truth { change, .. } = what else {
        return true;
    };
    match change {
        Change::Created { key, .. }
        | Change::Overwritten { key, .. }
        | Change::Deleted { key, .. } => key.ends_with(&format!("/o-{number}")),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_partition_gets_the_reports_about_its_key_and_about_leases() {
        let truth = |change| Event {
            at: Duration::ZERO,
            node: "etcd".to_owned(),
            election: TRUTH.to_owned(),
            what: What::Truth {
                revision: 7,
                change,
            },
        };
        let deleted = Change::Deleted {
            key: format!("{}1", owners()),
            create_revision: 5,
        };
        let split = split(&[truth(deleted), truth(Change::Current)]);
        let elections: Vec<&str> = split.iter().map(|event| &*event.election).collect();
        let names: Vec<String> = names().collect();
        assert_eq!(elections, [&*names[1], &*names[0], &*names[1], &*names[2]]);
        assert!(split.iter().all(is_partition));
    }
}

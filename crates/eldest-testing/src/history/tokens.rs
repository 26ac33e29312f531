//! Checks I2: a token belongs to one node and tokens grow. Checks I4: the elected node holds the oldest live key.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::report::{Counts, Invariant, Violation};
use super::terms::{Says, View, admitted, says};
use super::{Change, Event, What};

/// Checks I2.
pub(super) fn check_order(view: &View<'_>, violations: &mut Vec<Violation>) {
    let mut violate = |explanation, events: [&Event; 2]| {
        violations.push(Violation {
            invariant: Invariant::Order,
            election: view.election.to_owned(),
            explanation,
            events: events.into_iter().cloned().collect(),
        });
    };
    let mut owners: BTreeMap<i64, &Event> = BTreeMap::new();
    let mut reported: BTreeSet<(i64, &str)> = BTreeSet::new();
    let mut elected: BTreeMap<&str, (i64, &Event)> = BTreeMap::new();
    let mut acted: BTreeSet<i64> = BTreeSet::new();
    let mut newest: Option<(i64, &Event)> = None;
    for event in view.events.iter().copied() {
        if let Some(token) = owned(&event.what) {
            let owner = *owners.entry(token).or_insert(event);
            if owner.node != event.node && reported.insert((token, &event.node)) {
                violate(
                    format!(
                        "token {token} was used by both {} and {}",
                        owner.node, event.node
                    ),
                    [owner, event],
                );
            }
        }
        if let What::Elected { token } = event.what
            && let Some((before, earlier)) = elected.insert(&event.node, (token, event))
            && before > token
        {
            violate(
                format!(
                    "{} was elected with token {token} after it had been elected with {before}",
                    event.node
                ),
                [earlier, event],
            );
        }
        // Only the first event of a term counts. Later ones may be stamped late, but then they are overlaps or stale
        // writes.
        if let Some(token) = act(&event.what)
            && acted.insert(token)
        {
            match newest {
                Some((before, earlier)) if before > token && counted_before(event, earlier) => {}
                Some((before, earlier)) if before > token => violate(
                    format!("token {token} was first used after the newer token {before}"),
                    [earlier, event],
                ),
                _ => newest = Some((token, event)),
            }
        }
    }
}

/// Returns true if the counter admitted the first write before the second, even if their nodes recorded them later: a
/// process that was stopped in the middle of a write records it when it continues.
fn counted_before(first: &Event, second: &Event) -> bool {
    let value = |event: &Event| admitted(&event.what).map(|(_, value)| value);
    value(first)
        .zip(value(second))
        .is_some_and(|(first, second)| first < second)
}

/// Returns the token, for events in which it must be the node's own.
fn owned(what: &What) -> Option<i64> {
    match what {
        What::Joined {
            create_revision, ..
        } => Some(*create_revision),
        What::FencedWrite { token, .. } => Some(*token),
        _ => says(what).map(|(token, _)| token),
    }
}

/// Returns the token, for events in which the node used it.
fn act(what: &What) -> Option<i64> {
    match what {
        What::Guarded { token } => Some(*token),
        _ => admitted(what).map(|(token, _)| token),
    }
}

/// The watcher's knowledge about one key.
struct Key {
    /// The revision at which the key was deleted.
    deleted: Option<i64>,
    /// The revision that made the key the oldest.
    oldest: Option<i64>,
    /// The older key in front of it, while there was one.
    elder: i64,
}

/// Checks I4.
pub(super) fn check_seniority(
    view: &View<'_>,
    counts: &mut Counts,
    violations: &mut Vec<Violation>,
) {
    let Some(truth) = replay(view) else { return };
    let elections = view.events.iter().copied().filter_map(|event| {
        says(&event.what)
            .filter(|(_, says)| *says == Says::Elected)
            .map(|(token, _)| (token, event))
    });
    for (token, event) in elections {
        let key = truth.keys.get(&token);
        let problem = match key {
            None => "there was no such key".to_owned(),
            Some(Key {
                oldest: Some(since),
                ..
            }) => {
                let Some(earliest) = truth.after(*since).filter(|time| *time > event.at) else {
                    counts.elections_checked_for_seniority += 1;
                    continue;
                };
                format!(
                    "the key became the oldest at revision {since}, later than {}",
                    view.at(earliest)
                )
            }
            Some(Key { elder, .. }) => format!("the key was never the oldest: {elder} was there"),
        };
        let deleted = key.and_then(|key| key.deleted);
        if truth.unknown(token, deleted) {
            counts.elections_hidden_by_gaps += 1;
            continue;
        }
        counts.elections_checked_for_seniority += 1;
        violations.push(Violation {
            invariant: Invariant::Seniority,
            election: view.election.to_owned(),
            explanation: format!(
                "{} was elected with token {token} at {}, but {problem}",
                event.node,
                view.at(event.at)
            ),
            events: std::iter::once(event)
                .chain(truth.about(token))
                .cloned()
                .collect(),
        });
    }
}

struct Truth<'a> {
    keys: BTreeMap<i64, Key>,
    /// The pairs of revisions between which nothing is known.
    gaps: Vec<(i64, i64)>,
    changes: Vec<(i64, &'a Change, &'a Event)>,
    /// The latest time at which each revision, or an older one, was the newest.
    current: BTreeMap<i64, Duration>,
}

impl<'a> Truth<'a> {
    /// Returns a time that the change of that revision came after, if one is known.
    fn after(&self, revision: i64) -> Option<Duration> {
        self.current.range(..revision).map(|(_, time)| *time).max()
    }

    /// Returns true if the key may have been the oldest in a gap.
    fn unknown(&self, token: i64, deleted: Option<i64>) -> bool {
        self.gaps
            .iter()
            .any(|(since, to)| *to >= token && deleted.is_none_or(|deleted| deleted > *since))
    }

    fn about(&self, token: i64) -> impl Iterator<Item = &'a Event> {
        self.changes.iter().filter_map(move |(_, change, event)| {
            let (Change::Created {
                create_revision, ..
            }
            | Change::Deleted {
                create_revision, ..
            }) = change
            else {
                return None;
            };
            (*create_revision == token).then_some(*event)
        })
    }
}

/// Replays the watcher's record, in etcd's order. Several watchers may have recorded the same.
fn replay<'a>(view: &View<'a>) -> Option<Truth<'a>> {
    let mut changes: Vec<(i64, &Change, &Event)> = Vec::new();
    let mut gaps = Vec::new();
    let mut current: BTreeMap<i64, Duration> = BTreeMap::new();
    for event in view.events.iter().copied() {
        if let What::Truth { revision, change } = &event.what {
            match change {
                Change::Gap { since } => gaps.push((*since, *revision)),
                Change::Current => {
                    let latest = current.entry(*revision).or_default();
                    *latest = event.at.max(*latest);
                }
                Change::Lease { .. } => {}
                _ => changes.push((*revision, change, event)),
            }
        }
    }
    if changes.is_empty() && gaps.is_empty() {
        return None;
    }
    changes.sort_by_key(|(revision, _, _)| *revision);
    let keys = lives(&changes);
    Some(Truth {
        keys,
        gaps,
        changes,
        current,
    })
}

/// Returns for each key of the ordered changes when it was deleted, when it became the oldest, and which key was before
/// it.
fn lives(changes: &[(i64, &Change, &Event)]) -> BTreeMap<i64, Key> {
    let mut keys: BTreeMap<i64, Key> = BTreeMap::new();
    let mut live: BTreeSet<i64> = BTreeSet::new();
    for together in changes.chunk_by(|a, b| a.0 == b.0) {
        for (revision, change, _) in together {
            match change {
                Change::Created {
                    create_revision, ..
                }
                | Change::Overwritten {
                    create_revision, ..
                } => {
                    keys.entry(*create_revision).or_insert(Key {
                        deleted: None,
                        oldest: None,
                        elder: 0,
                    });
                    live.insert(*create_revision);
                }
                Change::Deleted {
                    create_revision, ..
                } => {
                    live.remove(create_revision);
                    if let Some(key) = keys.get_mut(create_revision) {
                        key.deleted.get_or_insert(*revision);
                    }
                }
                Change::Lease { .. } | Change::Current | Change::Gap { .. } => {}
            }
        }
        let Some(oldest) = live.first().copied() else {
            continue;
        };
        for (_, change, _) in together {
            if let Change::Created {
                create_revision, ..
            } = change
                && let Some(key) = keys.get_mut(create_revision)
            {
                key.elder = oldest;
            }
        }
        if let Some(key) = keys.get_mut(&oldest)
            && key.oldest.is_none()
        {
            key.oldest = Some(together[0].0);
        }
    }
    keys
}

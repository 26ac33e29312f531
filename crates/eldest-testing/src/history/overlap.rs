//! Checks I1: terms do not overlap, unless the overlap has an excuse.

use std::collections::BTreeMap;
use std::time::Duration;

use super::report::{Counts, Invariant, Violation};
use super::terms::{Span, Term, View, says, seconds};
use super::{Change, Event, Rules, What};

pub(super) fn check(
    view: &View<'_>,
    terms: &[Term<'_>],
    rules: &Rules,
    counts: &mut Counts,
    violations: &mut Vec<Violation>,
) {
    let early = deleted_early(view, rules);
    counts.deleted_early += early.len();
    for (index, a) in terms.iter().enumerate() {
        let Some((span_a, ends_a)) = a.valid else {
            continue;
        };
        let stopped_to = a.stopped.iter().map(|span| span.to).max();
        let reach = stopped_to.map_or(span_a.to, |to| to.max(span_a.to));
        for b in &terms[index + 1..] {
            let Some((span_b, ends_b)) = b.valid else {
                continue;
            };
            if span_b.from > reach {
                break;
            }
            if let Some(shared) = span_a.overlap(span_b) {
                if excused(a, b, shared, &early, rules) {
                    counts.overlaps_after_early_delete += 1;
                    continue;
                }
                violations.push(Violation {
                    invariant: Invariant::Overlap,
                    election: view.election.to_owned(),
                    explanation: format!(
                        "{} with token {} and {} with token {} both led for {}, from {} to {}",
                        a.node,
                        a.token,
                        b.node,
                        b.token,
                        seconds(shared.length()),
                        view.at(shared.from),
                        view.at(shared.to)
                    ),
                    events: ends_a.into_iter().chain(ends_b).cloned().collect(),
                });
            } else if let Some((stopped, other, shared)) = while_stopped(a, b, span_a, span_b) {
                counts.overlaps_while_stopped += 1;
                if rules.stopped_counts_as_leading
                    && !excused(stopped, other, shared, &early, rules)
                {
                    violations.push(Violation {
                        invariant: Invariant::Overlap,
                        election: view.election.to_owned(),
                        explanation: format!(
                            "{} with token {} had been stopped and had not yet checked its term when {} with token {} \
                             led, from {} to {}",
                            stopped.node,
                            stopped.token,
                            other.node,
                            other.token,
                            view.at(shared.from),
                            view.at(shared.to)
                        ),
                        events: ends_a.into_iter().chain(ends_b).cloned().collect(),
                    });
                }
            }
        }
    }
}

/// Returns which of the two nodes was stopped while the other led, and for how long.
fn while_stopped<'t, 'a>(
    a: &'t Term<'a>,
    b: &'t Term<'a>,
    span_a: Span,
    span_b: Span,
) -> Option<(&'t Term<'a>, &'t Term<'a>, Span)> {
    let shared =
        |term: &Term<'_>, span: Span| term.stopped.iter().find_map(|stop| stop.overlap(span));
    shared(a, span_b)
        .map(|shared| (a, b, shared))
        .or_else(|| shared(b, span_a).map(|shared| (b, a, shared)))
}

/// Returns true if the older key was deleted early, and the overlap follows from that.
fn excused(
    a: &Term<'_>,
    b: &Term<'_>,
    shared: Span,
    early: &BTreeMap<i64, Duration>,
    rules: &Rules,
) -> bool {
    a.token != b.token
        && early.get(&a.token.min(b.token)).is_some_and(|deleted| {
            shared.from + rules.observer_lag >= *deleted && shared.to <= *deleted + rules.ttl
        })
}

/// The events that concern deletions, taken out of the many samples once.
#[derive(Default)]
struct Deletions<'a> {
    /// The lease of each key.
    leases: BTreeMap<i64, i64>,
    /// When each key was first seen to be deleted.
    deleted: BTreeMap<i64, Duration>,
    /// The event that names each key's owner and its first moment.
    owners: BTreeMap<i64, &'a Event>,
    /// Requests to delete, by our nodes, by others, by guards and by challengers, and departures.
    asked: Vec<&'a Event>,
    /// etcd's answers about each lease.
    said: BTreeMap<i64, Vec<(Duration, Option<Duration>)>>,
}

/// Returns the keys that were deleted although none of our nodes requested it and the lease had time left: create
/// revision and time of deletion.
fn deleted_early(view: &View<'_>, rules: &Rules) -> BTreeMap<i64, Duration> {
    let mut all = Deletions::default();
    for event in view.events.iter().copied() {
        let owned = match &event.what {
            What::Joined {
                create_revision, ..
            } => Some(*create_revision),
            what => says(what).map(|(token, _)| token),
        };
        if let Some(key) = owned {
            all.owners.entry(key).or_insert(event);
        }
        match &event.what {
            What::AskedToDelete { .. }
            | What::DeletedByOther { .. }
            | What::ReleasedByGuard { .. }
            | What::Condemned { .. }
            | What::Released { .. }
            | What::Left => all.asked.push(event),
            What::Truth { change, .. } => all.take(event.at, change),
            _ => {}
        }
    }
    let early = |(key, at): &(&i64, &Duration)| {
        !all.by_us(**key, **at)
            && (all.by_other(**key, **at + rules.observer_lag)
                || (all.revoked(**key, **at, **at + rules.ttl)
                    && !all.by_guard_or_challenger(**key, **at + rules.observer_lag)))
    };
    let early = all.deleted.iter().filter(early);
    early.map(|(key, at)| (*key, *at)).collect()
}

impl Deletions<'_> {
    fn take(&mut self, at: Duration, change: &Change) {
        match change {
            Change::Created {
                create_revision,
                lease,
                ..
            }
            | Change::Overwritten {
                create_revision,
                lease,
                ..
            } => {
                self.leases.insert(*create_revision, *lease);
            }
            Change::Deleted {
                create_revision, ..
            } => {
                self.deleted.entry(*create_revision).or_insert(at);
            }
            Change::Lease { lease, left } => {
                self.said.entry(*lease).or_default().push((at, *left));
            }
            Change::Current | Change::Gap { .. } => {}
        }
    }

    /// Returns true if one of our nodes had requested the deletion, or had given up the key's place.
    fn by_us(&self, key: i64, deleted: Duration) -> bool {
        let owner = self.owners.get(&key);
        let mut before = self.asked.iter().take_while(|event| event.at <= deleted);
        before.any(|event| match event.what {
            What::AskedToDelete { create_revision } => create_revision == key,
            What::Released { token } => token == key,
            What::Left => {
                owner.is_some_and(|owner| owner.node == event.node && owner.at <= event.at)
            }
            _ => false,
        })
    }

    /// Returns true if a guard or a challenger deleted the key. If its session led, either breaks the promise, so this
    /// excuses nothing.
    fn by_guard_or_challenger(&self, key: i64, until: Duration) -> bool {
        let lease = self.leases.get(&key).copied().unwrap_or_default();
        let mut before = self.asked.iter().take_while(|event| event.at <= until);
        let removals = [What::ReleasedByGuard { lease }, What::Condemned { lease }];
        before.any(|event| removals.contains(&event.what))
    }

    fn by_other(&self, key: i64, until: Duration) -> bool {
        let mut before = self.asked.iter().take_while(|event| event.at <= until);
        before.any(|event| {
            event.what
                == What::DeletedByOther {
                    create_revision: key,
                }
        })
    }

    /// Returns true if etcd had promised the lease a longer life and the whole lease is gone, so that the key was not
    /// deleted alone.
    fn revoked(&self, key: i64, deleted: Duration, until: Duration) -> bool {
        let lease = self.leases.get(&key).copied().unwrap_or_default();
        let said = self.said.get(&lease).map_or(&[][..], Vec::as_slice);
        let promised = |(at, left): &(Duration, Option<Duration>)| {
            *at <= deleted && left.is_some_and(|left| *at + left > deleted)
        };
        let gone = |(at, left): &(Duration, Option<Duration>)| left.is_none() && *at <= until;
        lease != 0 && said.iter().any(promised) && said.iter().any(gone)
    }
}

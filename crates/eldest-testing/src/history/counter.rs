//! I3: the counter that only fenced writes raise.

use std::collections::BTreeMap;

use super::belief::{View, admitted};
use super::report::{Counts, Invariant, Violation};
use super::{Event, Outcome, What};

pub(super) fn check(view: &View<'_>, counts: &mut Counts, violations: &mut Vec<Violation>) {
    let mut violate = |explanation, events: &[&Event]| {
        violations.push(Violation {
            invariant: Invariant::Fencing,
            election: view.election.to_owned(),
            explanation,
            events: events.iter().copied().cloned().collect(),
        });
    };
    let mut writes: Vec<(u64, i64, &Event)> = Vec::new();
    let mut unknown: u64 = 0;
    // Writes that were sent and whose end was not written down yet, by node.
    let mut sent: BTreeMap<&str, u64> = BTreeMap::new();
    let mut end: Option<(u64, &Event)> = None;
    for event in view.events.iter().copied() {
        match &event.what {
            What::FencedWrite { outcome, .. } => {
                let open = sent.entry(&event.node).or_default();
                match outcome {
                    Outcome::Sent => *open += 1,
                    _ => *open = open.saturating_sub(1),
                }
                match outcome {
                    Outcome::Refused => counts.writes_refused += 1,
                    Outcome::Unknown => unknown += 1,
                    Outcome::Sent | Outcome::Admitted { .. } => {}
                }
            }
            What::FinalCounter { value } => end = Some((*value, event)),
            _ => {}
        }
        if let Some((token, value)) = admitted(&event.what) {
            writes.push((value, token, event));
        }
    }
    unknown += sent.values().sum::<u64>();
    counts.writes_admitted += writes.len();
    counts.writes_unknown += unknown as usize;

    // The values give the order in which the resource admitted the writes; the stamps do not, they are the writers'.
    writes.sort_by_key(|(value, _, _)| *value);
    let mut newest: Option<(i64, &Event)> = None;
    for pair in writes.windows(2) {
        if pair[0].0 == pair[1].0 {
            violate(
                format!(
                    "an update was lost: two writes were told that they raised the counter to {}",
                    pair[0].0
                ),
                &[pair[0].2, pair[1].2],
            );
        }
    }
    for (value, token, event) in &writes {
        match newest {
            Some((before, earlier)) if before > *token => violate(
                format!(
                    "a stale write was admitted: {} wrote {value} with token {token} after a write with {before}",
                    event.node
                ),
                &[earlier, event],
            ),
            _ => newest = Some((*token, event)),
        }
    }
    let sure = writes.len() as u64;
    let most = sure + unknown;
    let highest = writes.last().map(|(value, _, event)| (*value, *event));
    if let Some((value, event)) = highest
        && value > most
    {
        violate(
            format!(
                "the counter reached {value}, but only {sure} writes were admitted and {unknown} are unknown"
            ),
            &[event],
        );
    }
    if let Some((value, event)) = end {
        let least = highest.map_or(sure, |(value, _)| sure.max(value));
        if value < least {
            violate(
                format!("updates were lost: the counter ends at {value}, below {least}"),
                &[event],
            );
        } else if value > most {
            violate(
                format!(
                    "the counter ends at {value}, but only {sure} writes were admitted and {unknown} are unknown"
                ),
                &[event],
            );
        }
    }
}

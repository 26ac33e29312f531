//! Checks I3: the counter that only fenced writes raise.

use std::collections::BTreeMap;

use super::report::{Counts, Invariant, Violation};
use super::terms::{View, admitted};
use super::{Event, Outcome, What};

pub(super) fn check(view: &View<'_>, counts: &mut Counts, violations: &mut Vec<Violation>) {
    let mut writes = Writes::read(view, counts);
    // The values give the order in which the resource admitted the writes. The stamps do not, because they are the
    // writers'.
    writes.admitted.sort_by_key(|(value, _, _)| *value);
    let mut violate = |explanation, events: &[&Event]| {
        violations.push(Violation {
            invariant: Invariant::Fencing,
            election: view.election.to_owned(),
            explanation,
            events: events.iter().copied().cloned().collect(),
        });
    };
    writes.in_order(&mut violate);
    writes.add_up(&mut violate);
}

#[derive(Default)]
struct Writes<'a> {
    /// The admitted writes: the value, the token, and the event of the writer that learned it.
    admitted: Vec<(u64, i64, &'a Event)>,
    unknown: u64,
    /// The counter at the end of the test.
    end: Option<(u64, &'a Event)>,
}

impl<'a> Writes<'a> {
    fn read(view: &View<'a>, counts: &mut Counts) -> Self {
        let mut writes = Self::default();
        // Writes that were sent and have no recorded result yet, by node.
        let mut sent: BTreeMap<&str, u64> = BTreeMap::new();
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
                        Outcome::Unknown => writes.unknown += 1,
                        Outcome::Sent | Outcome::Admitted { .. } => {}
                    }
                }
                What::FinalCounter { value } => writes.end = Some((*value, event)),
                _ => {}
            }
            if let Some((token, value)) = admitted(&event.what) {
                writes.admitted.push((value, token, event));
            }
        }
        writes.unknown += sent.values().sum::<u64>();
        counts.writes_admitted += writes.admitted.len();
        counts.writes_unknown += writes.unknown as usize;
        writes
    }

    /// Checks that each write raised the counter once, and that none came after one with a newer token.
    fn in_order(&self, violate: &mut impl FnMut(String, &[&Event])) {
        for pair in self.admitted.windows(2) {
            if pair[0].0 == pair[1].0 {
                let value = pair[0].0;
                let lost = format!(
                    "an update was lost: two writes received the answer that they raised the counter to {value}"
                );
                violate(lost, &[pair[0].2, pair[1].2]);
            }
        }
        let mut newest: Option<(i64, &Event)> = None;
        for (value, token, event) in &self.admitted {
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
    }

    /// Checks the counter's final value: at least the number of writes that certainly took effect, and at most the
    /// number that may have.
    fn add_up(&self, violate: &mut impl FnMut(String, &[&Event])) {
        let (sure, unknown) = (self.admitted.len() as u64, self.unknown);
        let most = sure + unknown;
        let highest = self
            .admitted
            .last()
            .map(|(value, _, event)| (*value, *event));
        let more = |how: &str, value| {
            format!(
                "the counter {how} {value}, but only {sure} writes were admitted and {unknown} are unknown"
            )
        };
        if let Some((value, event)) = highest
            && value > most
        {
            violate(more("reached", value), &[event]);
        }
        if let Some((value, event)) = self.end {
            let least = highest.map_or(sure, |(value, _)| sure.max(value));
            if value < least {
                let lost = format!("updates were lost: the counter ends at {value}, below {least}");
                violate(lost, &[event]);
            } else if value > most {
                violate(more("ends at", value), &[event]);
            }
        }
    }
}

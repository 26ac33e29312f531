//! Checks I5: without faults, and with a live candidate, a vacancy is short.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::report::{Counts, Invariant, Violation};
use super::terms::{Term, View, is_repeated, seconds};
use super::{Event, Rules, What};

/// A point at which the state may change.
enum Point<'a> {
    /// One more node leads.
    Begins,
    /// One fewer node leads; this one stopped.
    Ends(&'a str),
    Event(&'a Event),
}

/// The token under which an expected node is listed as live.
const EXPECTED: i64 = i64::MIN;

#[derive(Default)]
struct State<'a> {
    leaders: usize,
    /// The candidates, by node and token.
    live: BTreeSet<(&'a str, i64)>,
    paused: BTreeSet<&'a str>,
    /// The faults that have not ended, by node and name.
    faults: BTreeMap<(&'a str, &'a str), Duration>,
}

impl<'a> State<'a> {
    /// Returns true if a candidate should become the leader now.
    fn vacant(&self) -> bool {
        self.leaders == 0
            && self.faults.is_empty()
            && self
                .live
                .iter()
                .any(|(node, _)| !self.paused.contains(node))
    }

    /// Applies an event. Returns true if the time allowed for a takeover starts again.
    fn apply(&mut self, event: &'a Event) -> bool {
        let node = event.node.as_str();
        match &event.what {
            What::Joined {
                create_revision: token,
                ..
            }
            | What::Elected { token } => {
                self.live.insert((node, *token));
                false
            }
            What::Invalid { token }
            | What::LostToken { token, .. }
            | What::Released { token }
            | What::AskedToDelete {
                create_revision: token,
            }
            | What::DeletedByOther {
                create_revision: token,
            } => {
                self.live.retain(|(_, live)| live != token);
                false
            }
            What::Left => {
                self.live.retain(|(live, _)| *live != node);
                false
            }
            What::Killed => {
                self.live.retain(|(live, _)| *live != node);
                self.paused.remove(node);
                true
            }
            What::Paused => {
                self.paused.insert(node);
                true
            }
            What::Resumed => {
                self.paused.remove(node);
                true
            }
            What::Fault { name } => {
                self.faults.insert((node, name), event.at);
                true
            }
            What::Healed { name } => {
                self.faults
                    .retain(|(at, open), _| !(open == name && (*at == node || node.is_empty())));
                true
            }
            _ => false,
        }
    }
}

/// Returns the changes of leaders and candidates in the order of time; at the same time, beginnings first and ends
/// last.
fn points<'a>(
    view: &View<'a>,
    terms: &[Term<'a>],
) -> impl Iterator<Item = (Duration, Point<'a>)> + use<'a> {
    let mut points: Vec<(Duration, u8, Point<'_>)> = Vec::new();
    for term in terms {
        points.push((term.present.from, 0, Point::Begins));
        // A leader at the end of the history has not ended.
        if term.present.to < view.end {
            points.push((term.present.to, 2, Point::Ends(term.node)));
        }
    }
    for (index, event) in view.events.iter().copied().enumerate() {
        // A process need not lead until it certainly runs again.
        if event.what != What::Resumed || !is_repeated(event, &view.events[index + 1..]) {
            points.push((event.at, 1, Point::Event(event)));
        }
    }
    points.sort_by_key(|(at, order, _)| (*at, *order));
    points.into_iter().map(|(at, _, point)| (at, point))
}

pub(super) fn check(
    view: &View<'_>,
    terms: &[Term<'_>],
    rules: &Rules,
    counts: &mut Counts,
    violations: &mut Vec<Violation>,
) {
    let live = rules.live.iter().map(|node| (node.as_str(), EXPECTED));
    let mut state = State {
        live: live.collect(),
        ..State::default()
    };
    let bound = rules.takeover_bound();
    let mut last_leader: Option<&str> = None;
    let mut since: Option<Duration> = None;
    let mut reported = false;
    let mut judge = |since: Option<Duration>, at: Duration, leader: Option<&str>| {
        let Some(since) = since.filter(|since| at.saturating_sub(*since) > bound) else {
            return false;
        };
        violations.push(Violation {
            invariant: Invariant::Liveness,
            election: view.election.to_owned(),
            explanation: format!(
                "nobody led from {} to {} or later, longer than {}, though nothing was wrong and a candidate was \
                 live{}",
                view.at(since),
                view.at(at),
                seconds(bound),
                leader.map_or_else(String::new, |leader| format!(" (before that: {leader})")),
            ),
            events: Vec::new(),
        });
        true
    };
    for (at, point) in points(view, terms) {
        reported = reported || judge(since, at, last_leader);
        let restarts = match point {
            Point::Begins => {
                state.leaders += 1;
                false
            }
            Point::Ends(node) => {
                state.leaders -= 1;
                last_leader = Some(node);
                false
            }
            Point::Event(event) => state.apply(event),
        };
        if state.vacant() {
            if restarts || since.is_none() {
                since = Some(at);
                reported = false;
            }
        } else {
            if since.is_some() {
                counts.vacancies += 1;
            }
            since = None;
            reported = false;
        }
    }
    if !reported {
        judge(since, view.end, last_leader);
    }
    counts.open_faults = counts.open_faults.max(state.faults.len());
}

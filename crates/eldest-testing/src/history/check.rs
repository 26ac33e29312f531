//! Splits a history into its elections, runs the checks of I1 to I5 on each election, and checks I6 for each node.

use std::collections::{BTreeMap, BTreeSet};

use super::report::{Counts, Invariant, Report, Violation};
use super::terms::{Says, Term, View, is_repeated, says, terms};
use super::{Event, History, Resources, Rules, What, counter, liveness, overlap, tokens};

/// Checks every election of a history against I1 to I6.
///
/// A pure function: the same history and rules give the same report.
pub fn check(history: &History, rules: &Rules) -> Report {
    let mut counts = Counts::default();
    let mut violations = Vec::new();
    let events = history.events();
    let (Some(first), Some(last)) = (events.first(), events.last()) else {
        return Report::new(history, violations, counts);
    };

    let (process, of_elections): (Vec<&Event>, Vec<&Event>) =
        events.iter().partition(|event| of_process(&event.what));
    let mut elections: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
    for event in of_elections {
        elections.entry(&event.election).or_default().push(event);
    }
    // The faults that hit a leader, by their places in `process`; a fault that hits many elections counts once.
    let mut hits = BTreeSet::new();
    for (election, own) in elections {
        let view = View {
            election,
            events: merged(own, &process),
            origin: first.at,
            end: last.at,
        };
        let terms = terms(&view);
        count(&view, &terms, &mut counts);
        overlap::check(&view, &terms, rules, &mut counts, &mut violations);
        tokens::check_order(&view, &mut violations);
        counter::check(&view, &mut counts, &mut violations);
        tokens::check_seniority(&view, &mut counts, &mut violations);
        liveness::check(&view, &terms, rules, &mut counts, &mut violations);
        for (index, fault) in faults(&process) {
            if terms.iter().any(|term| hit(fault, term)) {
                hits.insert(index);
            }
        }
    }
    counts.faults = faults(&process).count();
    counts.faults_on_leader = hits.len();
    leaks(&process, rules, &mut violations);
    Report::new(history, violations, counts)
}

/// Returns true if the event happens to a process, and so to all its elections.
fn of_process(what: &What) -> bool {
    matches!(
        what,
        What::Paused
            | What::Resumed
            | What::Killed
            | What::Fault { .. }
            | What::Healed { .. }
            | What::Baseline(_)
            | What::Final(_)
    )
}

/// Merges two ordered lists of events. At equal times, events of the process come after those that its elections
/// recorded.
fn merged<'a>(mut own: Vec<&'a Event>, process: &[&'a Event]) -> Vec<&'a Event> {
    own.extend(process);
    own.sort_by_key(|event| event.at);
    own
}

fn count(view: &View<'_>, terms: &[Term<'_>], counts: &mut Counts) {
    let mut elected = BTreeSet::new();
    for event in &view.events {
        match event.what {
            What::Valid { .. } | What::Invalid { .. } => counts.samples += 1,
            _ => {}
        }
        if let Some((token, Says::Elected)) = says(&event.what) {
            elected.insert(token);
        }
    }
    counts.elections += elected.len();
    counts.terms += terms.iter().filter(|term| term.valid.is_some()).count();
}

/// Returns each fault at the time at which it had certainly begun: a leader that was gone by then may not have been
/// hit.
fn faults<'a>(process: &[&'a Event]) -> impl Iterator<Item = (usize, &'a Event)> {
    let events = process.iter().copied().enumerate();
    events.filter(|(index, event)| match event.what {
        What::Paused | What::Killed => true,
        What::Fault { .. } => !is_repeated(event, &process[index + 1..]),
        _ => false,
    })
}

fn hit(fault: &Event, term: &Term<'_>) -> bool {
    (fault.node.is_empty() || fault.node == term.node)
        && term.present.from <= fault.at
        && fault.at <= term.present.to
}

/// Checks I6: each count at the end against the latest earlier one of the same node.
fn leaks(process: &[&Event], rules: &Rules, violations: &mut Vec<Violation>) {
    let mut baselines: BTreeMap<&str, (&Event, Resources)> = BTreeMap::new();
    for event in process.iter().copied() {
        match event.what {
            What::Baseline(held) => {
                baselines.insert(&event.node, (event, held));
            }
            What::Final(held) => {
                let Some((earlier, baseline)) = baselines.get(event.node.as_str()) else {
                    continue;
                };
                let allowed = rules.allowed_growth.named();
                for (((name, before), (_, after)), (_, growth)) in
                    baseline.named().into_iter().zip(held.named()).zip(allowed)
                {
                    if after > before + growth {
                        violations.push(Violation {
                            invariant: Invariant::Leak,
                            election: String::new(),
                            explanation: format!(
                                "{} held {before} {name} before the test and holds {after} after it",
                                if event.node.is_empty() { "the whole test" } else { &event.node }
                            ),
                            events: vec![(*earlier).clone(), event.clone()],
                        });
                    }
                }
            }
            _ => {}
        }
    }
}

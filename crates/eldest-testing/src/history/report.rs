//! Collects the violations and counts of a check, displays them, and fails a test on them.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::terms::{admitted, seconds};
use super::{Change, Event, History, What};

/// The invariants. The numbers are those of the module's documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Invariant {
    /// I1: no two terms overlap.
    Overlap,
    /// I2: a token belongs to one node, and tokens only grow.
    Order,
    /// I3: no update is lost, no stale write is admitted.
    Fencing,
    /// I4: the elected node holds the oldest live key.
    Seniority,
    /// I5: a vacancy is short when there is no fault.
    Liveness,
    /// I6: nothing is left behind.
    Leak,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Invariant::Overlap => "I1 overlap",
            Invariant::Order => "I2 order",
            Invariant::Fencing => "I3 fencing",
            Invariant::Seniority => "I4 seniority",
            Invariant::Liveness => "I5 liveness",
            Invariant::Leak => "I6 leak",
        })
    }
}

/// One breach of an invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// The invariant.
    pub invariant: Invariant,
    /// The election; empty if a node as a whole is concerned.
    pub election: String,
    /// An explanation in plain words; times count from the history's first event.
    pub explanation: String,
    /// The events that show it.
    pub events: Vec<Event>,
}

/// The contents of a history, over all its elections. None of it is a violation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Elections held: different tokens with which a node was elected.
    pub elections: usize,
    /// Terms in which a node was seen to take itself for the leader.
    pub terms: usize,
    /// Samples of `is_valid()`, of either result.
    pub samples: usize,
    /// Faults, stops and kills.
    pub faults: usize,
    /// Faults that hit a node while it led, or all nodes while one led.
    pub faults_on_leader: usize,
    /// Vacancies that ended without a fault.
    pub vacancies: usize,
    /// Fenced writes that were admitted.
    pub writes_admitted: usize,
    /// Fenced writes that were refused.
    pub writes_refused: usize,
    /// Fenced writes whose answer was lost.
    pub writes_unknown: usize,
    /// Elections whose seniority was checked against the independent watcher.
    pub elections_checked_for_seniority: usize,
    /// Elections that could not be checked, because the watcher has no record of the time.
    pub elections_hidden_by_gaps: usize,
    /// Keys that other parties deleted early.
    pub deleted_early: usize,
    /// Overlaps that follow from such a deletion.
    pub overlaps_after_early_delete: usize,
    /// Overlaps with a process that was stopped and had not checked its term yet.
    pub overlaps_while_stopped: usize,
    /// Faults that never ended; liveness was not checked after them.
    pub open_faults: usize,
}

/// The result of [`check`](super::check). Its `Display` has the violations, the counts and a timeline of each node.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// All violations, by election and invariant.
    pub violations: Vec<Violation>,
    /// The counts of the history's contents.
    pub counts: Counts,
    timeline: String,
    origin: Duration,
}

impl Report {
    pub(super) fn new(history: &History, violations: Vec<Violation>, counts: Counts) -> Self {
        let origin = history.events().first().map_or(Duration::ZERO, |e| e.at);
        Report {
            timeline: timeline(history, &violations, origin),
            violations,
            counts,
            origin,
        }
    }

    /// Returns `true` if there is no violation.
    pub fn is_ok(&self) -> bool {
        self.violations.is_empty()
    }

    /// Ends the test if there is a violation.
    ///
    /// # Panics
    ///
    /// With the whole report, if there is a violation.
    #[track_caller]
    pub fn assert_ok(&self) {
        assert!(self.is_ok(), "the history breaks its promises\n{self}");
    }

    /// Ends the test if the history has too few events to prove anything.
    ///
    /// # Panics
    ///
    /// With the whole report, if there were fewer elections, or fewer faults that hit a leader.
    #[track_caller]
    pub fn require(&self, min_elections: usize, min_leader_hits: usize) {
        assert!(
            self.counts.elections >= min_elections
                && self.counts.faults_on_leader >= min_leader_hits,
            "the history shows too little: {min_elections} elections and {min_leader_hits} faults on a leader are \
             wanted\n{self}"
        );
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for violation in &self.violations {
            write!(f, "VIOLATION {}", violation.invariant)?;
            if !violation.election.is_empty() {
                write!(f, " in {}", violation.election)?;
            }
            writeln!(f, ": {}", violation.explanation)?;
            for event in &violation.events {
                let at = seconds(event.at.saturating_sub(self.origin));
                writeln!(f, "    {at:>12}  {}  {}", name(event), event.what)?;
            }
        }
        let c = &self.counts;
        writeln!(
            f,
            "{} violations; {} elections, {} terms, {} samples; {} faults, {} on a leader, {} open; \
             {} vacancies",
            self.violations.len(),
            c.elections,
            c.terms,
            c.samples,
            c.faults,
            c.faults_on_leader,
            c.open_faults,
            c.vacancies
        )?;
        writeln!(
            f,
            "writes: {} admitted, {} refused, {} unknown; seniority checked {}, hidden by gaps {}; \
             deleted early, not by us: {} keys, {} overlaps; overlaps while stopped: {}",
            c.writes_admitted,
            c.writes_refused,
            c.writes_unknown,
            c.elections_checked_for_seniority,
            c.elections_hidden_by_gaps,
            c.deleted_early,
            c.overlaps_after_early_delete,
            c.overlaps_while_stopped
        )?;
        f.write_str(&self.timeline)
    }
}

fn name(event: &Event) -> &str {
    if event.node.is_empty() {
        "everybody"
    } else {
        &event.node
    }
}

/// Equal events of a node, one after another.
struct Run {
    label: String,
    from: Duration,
    to: Duration,
    times: usize,
}

/// The number of lines above which a node's timeline is cut to the surroundings of the violations.
const LONG: usize = 60;
/// How much time is shown around a violation.
const AROUND: Duration = Duration::from_secs(30);

fn timeline(history: &History, violations: &[Violation], origin: Duration) -> String {
    let mut nodes: BTreeMap<(&str, &str), Vec<Run>> = BTreeMap::new();
    for event in history.events() {
        let Some(label) = label(&event.what) else {
            continue;
        };
        let runs = nodes.entry((name(event), &event.election)).or_default();
        match runs.last_mut() {
            Some(run) if run.label == label => {
                run.to = event.at;
                run.times += 1;
            }
            _ => runs.push(Run {
                label,
                from: event.at,
                to: event.at,
                times: 1,
            }),
        }
    }
    let shown: Vec<(Duration, Duration)> = violations
        .iter()
        .flat_map(|violation| &violation.events)
        .map(|event| (event.at.saturating_sub(AROUND), event.at + AROUND))
        .collect();
    let near = |run: &Run| {
        shown
            .iter()
            .any(|(from, to)| run.from <= *to && run.to >= *from)
    };
    let since = |at: Duration| seconds(at.saturating_sub(origin));
    let mut lines = Vec::new();
    for ((node, election), runs) in nodes {
        lines.push(if election.is_empty() {
            format!("{node}\n")
        } else {
            format!("{node} in {election}\n")
        });
        let mut left_out = 0;
        let long = runs.len();
        for (index, run) in runs.into_iter().enumerate() {
            if long > LONG && index + LONG / 2 < long && !near(&run) {
                left_out += 1;
                continue;
            }
            if left_out > 0 {
                lines.push(format!("    ... {left_out} lines left out\n"));
                left_out = 0;
            }
            let Run { label, times, .. } = &run;
            let (from, to) = (since(run.from), since(run.to));
            lines.push(if *times == 1 {
                format!("    {from:>12}  {label}\n")
            } else {
                format!("    {from:>12}  {label} until {to}, {times} times\n")
            });
        }
    }
    lines.concat()
}

fn label(what: &What) -> Option<String> {
    Some(match what {
        What::Valid { token } | What::Guarded { token } => format!("leads {token}"),
        What::Truth {
            change: Change::Lease { .. } | Change::Current,
            ..
        } => return None,
        _ => match admitted(what) {
            Some((token, _)) => format!("leads {token}"),
            None => what.to_string(),
        },
    })
}

//! Formats the results: the counts, and a broken invariant with its story.

use std::fmt::Write as _;
use std::time::Duration;

use crate::kept;
use crate::kind::Kind;
use crate::plan::{Plan, SETTINGS};
use crate::run::{Outcome, Sum};
use crate::world::Line;
use crate::world::tally::{CHALLENGES, MUST_HAPPEN};
use eldest_core::time::Time;

/// The number of seeds with challenges after which every other event has happened, too.
pub(crate) const LARGE: u64 = 10_000;

/// Returns the results of a campaign of runs that took so long.
pub(crate) fn sum(sum: &Sum, took: Duration) -> String {
    let faults: u64 = sum.tally.faults.values().map(|(times, _)| times).sum();
    let mut lines = vec![format!(
        "{} seeds, {:.0} node-seconds at TTL {:?}, a fault every {:.1} node-seconds, {} events",
        sum.runs,
        sum.node_seconds,
        SETTINGS.ttl,
        sum.node_seconds / faults.max(1) as f64,
        sum.steps,
    )];
    let seconds = took.as_secs_f64().max(1e-9);
    lines.push(format!(
        "speed: {:.0} node-seconds/s, {:.0} events/s ({seconds:.1} s)",
        sum.node_seconds / seconds,
        sum.steps as f64 / seconds
    ));
    let counts = sum.tally.counts.iter();
    lines.extend(columns(
        counts.map(|(what, times)| format!("{what} {times}")),
    ));
    lines.push("faults (of them on who led):".to_owned());
    let faults = sum.tally.faults.iter();
    lines.extend(columns(
        faults.map(|(kind, (times, hits))| format!("{kind:?} {times} ({hits})")),
    ));
    lines.join("\n") + "\n"
}

/// Arranges texts in lines of three.
fn columns(texts: impl Iterator<Item = String>) -> Vec<String> {
    let texts: Vec<_> = texts.map(|text| format!("  {text:<46}")).collect();
    let lines = texts.chunks(3).map(<[String]>::concat);
    lines.map(|line| line.trim_end().to_owned()).collect()
}

/// Returns the events that did not happen in a campaign, although only a broken simulator can prevent them. If sessions allow
/// challenges, the events of challenges must happen too, and the others only in large campaigns, because the stories have fewer
/// other faults.
pub(crate) fn vacuous(sum: &Sum, challenges: bool) -> Vec<String> {
    let (mut must, mut kinds) = (Vec::new(), Vec::new());
    if challenges {
        must.extend(CHALLENGES);
        kinds.extend(Kind::of_challenges());
        kinds.extend(Kind::seldom());
    }
    if !challenges || sum.runs >= LARGE {
        must.extend(MUST_HAPPEN);
        kinds.extend(Kind::every());
    }
    let never = must.into_iter().filter(|what| sum.tally.of(what) == 0);
    let hits = |kind: &Kind| sum.tally.faults.get(kind).map_or(0, |(_, hits)| *hits);
    let missed = kinds.into_iter().filter(|kind| hits(kind) == 0);
    let missed = missed.map(|kind| format!("faults that hit a leader: {kind:?}"));
    never.map(str::to_owned).chain(missed).collect()
}

/// Formats the story of a broken invariant: its plan as it is kept, and the last lines of its trace.
pub(crate) fn story(plan: &Plan, outcome: &Outcome, lines: usize) -> String {
    let trace = &outcome.trace;
    let skipped = trace.len().saturating_sub(lines);
    let mut text = kept::of_plan(plan);
    let _ = writeln!(text, "trace, without its first {skipped} lines:");
    for line in &trace[skipped..] {
        let _ = writeln!(text, "{}", of_line(line));
    }
    text
}

fn of_line(line: &Line) -> String {
    let at = line.at.since(Time::ZERO).as_secs_f64();
    let who = line.node.map_or("-".to_owned(), |node| node.to_string());
    format!("{at:>12.6}  {who:>2}  {}", line.what)
}

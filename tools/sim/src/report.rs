//! Formats the results: the counts, a broken invariant with its story, and the table of mutations.

use std::fmt::Write as _;
use std::time::Duration;

use crate::kind::Kind;
use crate::mutant::Mutant;
use crate::plan::{Plan, SETTINGS};
use crate::run::{Outcome, Sum};
use crate::world::Line;
use crate::world::promise::Broken;
use eldest_core::time::Time;

/// Returns the results of a campaign of runs, and its speed by wall clock and by processor time, if that is known.
pub(crate) fn sum(sum: &Sum, took: Duration, on_cpu: Option<Duration>) -> String {
    let faults: u64 = sum.faults.values().map(|(times, _)| times).sum();
    let mut lines = vec![format!(
        "{} seeds, {:.0} node-seconds at TTL {:?}, a fault every {:.1} node-seconds, {} events",
        sum.runs,
        sum.node_seconds,
        SETTINGS.ttl,
        sum.node_seconds / faults.max(1) as f64,
        sum.steps,
    )];
    let mut speed = |time: Duration, clock: &str, of_it: &str| {
        let took = time.as_secs_f64();
        let seconds = took.max(1e-9);
        let (node_seconds, events) = (sum.node_seconds / seconds, sum.steps as f64 / seconds);
        lines.push(format!(
            "speed: {node_seconds:.0} node-seconds/s, {events:.0} events/s {clock} ({took:.1} s{of_it})"
        ));
    };
    speed(took, "by the wall clock", "");
    if let Some(on_cpu) = on_cpu {
        speed(on_cpu, "on one core", " of processors");
    }
    lines.extend(count_lines(sum));
    lines.push("faults (of them on who led):".to_owned());
    let kinds: Vec<_> = sum.faults.iter().collect();
    for row in kinds.chunks(4) {
        let row: Vec<_> = row
            .iter()
            .map(|(kind, (times, hits))| format!("{:<28}", format!("{kind:?} {times} ({hits})")))
            .collect();
        lines.push(format!("  {}", row.concat().trim_end()));
    }
    lines.join("\n") + "\n"
}

/// Returns the counts of the nodes' reports and of the world's events, except the faults.
fn count_lines(sum: &Sum) -> [String; 8] {
    let (tally, happened) = (&sum.tally, &sum.happened);
    let (too_large, waited) = (happened.too_large, happened.waited);
    let ended = tally.ended.iter().map(|(why, n)| format!("{why} {n}"));
    let ended: Vec<_> = ended.collect();
    [
        format!(
            "{} terms; leases granted {}, renewals counted {}, late {}, refused {}, failed {}",
            sum.terms,
            tally.granted,
            tally.renewed,
            tally.late,
            tally.refused,
            tally.renewal_failed
        ),
        format!(
            "keys joined {}, again {}, joins failed {}, orphans found {}, blockers reported {}",
            tally.joined, tally.rejoined, tally.join_failed, tally.orphans, tally.blocked
        ),
        format!(
            "watches lost {}, lists read {}, takes lost beside others {}, other requests failed {}",
            tally.watch_lost, tally.relisted, tally.takes_lost, tally.request_failed
        ),
        format!(
            "turns that left inputs waiting {}, timers that a suspend stopped {}, joins in one transaction {}, lost together {}, transactions too large {too_large}, requests that waited for the end of a lease {waited}, values announced {}, not {}, partitions prepared {}, states shown to observers {}, observers refused {}, reads in pages {}, locks shared {}, states saved {}, not {}, perhaps {}",
            happened.queued,
            happened.stopped,
            happened.together,
            happened.lost_together,
            happened.announced,
            happened.not_announced,
            happened.prepared,
            happened.shown,
            happened.looks_failed,
            happened.pages,
            happened.shared,
            happened.saved,
            happened.not_saved,
            happened.perhaps_saved
        ),
        format!("terms ended: {}", ended.join(", ")),
        format!(
            "challenges {}, answers {}, condemned {}, condemned too late {}, keys deleted by absence {}",
            happened.challenged.challenges,
            happened.challenged.answers,
            happened.challenged.condemned,
            happened.challenged.refuted,
            happened.challenged.by_absence
        ),
        format!(
            "guarded writes admitted {}, stale ones refused {}",
            sum.written, sum.fenced
        ),
        format!(
            "overlaps, key deleted early, not by us: {}, the longest {:.3} s; clock beyond the bound: {}, the longest {:.3} s",
            sum.early.0,
            sum.early.1.as_secs_f64(),
            sum.skewed.0,
            sum.skewed.1.as_secs_f64()
        ),
    ]
}

/// Returns the counts that are zero after a campaign, although only a broken simulator can make them zero.
pub(crate) fn vacuous(sum: &Sum) -> Vec<String> {
    let tally = &sum.tally;
    let mut counts = vec![
        ("terms", sum.terms),
        ("renewals", tally.renewed),
        ("late renewals", tally.late),
        ("refused renewals", tally.refused),
        ("failed renewals", tally.renewal_failed),
        ("keys that were joined again", tally.rejoined),
        ("failed joins", tally.join_failed),
        ("watches lost", tally.watch_lost),
        ("lists", tally.relisted),
        ("takes lost beside others", tally.takes_lost),
        ("orphans", tally.orphans),
        ("blockers", tally.blocked),
        ("turns that left inputs waiting", sum.happened.queued),
        ("timers that a suspend stopped", sum.happened.stopped),
        ("joins in one transaction", sum.happened.together),
        ("joins that were lost together", sum.happened.lost_together),
        ("transactions that were too large", sum.happened.too_large),
        (
            "requests that waited for the end of a lease",
            sum.happened.waited,
        ),
        ("values announced", sum.happened.announced),
        ("values not announced", sum.happened.not_announced),
        ("partitions prepared", sum.happened.prepared),
        ("states shown to observers", sum.happened.shown),
        ("observers refused", sum.happened.looks_failed),
        ("reads in pages", sum.happened.pages),
        ("locks shared", sum.happened.shared),
        ("states saved", sum.happened.saved),
        ("states not saved", sum.happened.not_saved),
        ("guarded writes", sum.written),
        ("stale writes refused", sum.fenced),
        ("overlaps after a key was deleted early", sum.early.0),
        ("overlaps with a clock beyond the bound", sum.skewed.0),
    ];
    for reason in ENDS {
        counts.push((reason, tally.ended.get(reason).copied().unwrap_or_default()));
    }
    let none = counts.into_iter().filter(|(_, count)| *count == 0);
    let mut none: Vec<_> = none.map(|(what, _)| what.to_owned()).collect();
    for kind in Kind::every() {
        let (_, hits) = sum.faults.get(&kind).copied().unwrap_or_default();
        if hits == 0 {
            none.push(format!("faults that hit a leader: {kind:?}"));
        }
    }
    none
}

/// The ways in which terms must have ended.
const ENDS: [&str; 9] = [
    "key_deleted",
    "key_overwritten",
    "lease_expiring",
    "lease_lost",
    "resigned",
    "session_closed",
    "shutdown",
    "stalled",
    "stepped_down",
];

/// Formats the story of a broken invariant: its plan, and the last lines of its trace.
pub(crate) fn story(plan: &Plan, outcome: &Outcome, lines: usize) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{} nodes, beside elections: {:?}, messages take {} {:?}, watches begin up to {} changes late, queues are long with more than {} others, up to {} partitions in one transaction, turns of drivers take up to {:?}, requests share transactions: {}, keys of leases are read in pages: {}, some share the lock: {}, a clean read lets a session lead for {:?}, without a margin: {}, sessions seem alive by their reads: {}, all are members of a group: {}, one of {} terms leaves a state, which this node may not save: {:?}",
        plan.members.len(),
        plan.beside,
        if plan.drawn { "up to" } else { "exactly" },
        plan.delay,
        plan.lag,
        plan.long_queue,
        plan.batch,
        plan.cost,
        plan.together,
        plan.pages,
        plan.readers,
        plan.lead,
        plan.tight,
        plan.by_reads,
        plan.grouped,
        plan.leaves,
        plan.saves_none
    );
    for (node, member) in plan.members.iter().enumerate() {
        let (rate, follow, work) = (member.rate_ppm, member.follow, member.work);
        let (looks, lead) = (member.looks, member.lead_percent);
        let prepares = member.prepares.then_some(member.prepares_for);
        let within = member.warm_within;
        let _ = writeln!(
            text,
            "  node {node}: clock {rate:+} ppm, follows {follow:?}, looks at {looks:?}, leads for {lead} % of that, prepares for {prepares:?}, waits for others {within:?}, work {}",
            work.map_or("ignores its token".to_owned(), |work| format!(
                "ends after {work:?}"
            ))
        );
    }
    let _ = writeln!(text, "faults:");
    for fault in &plan.faults {
        let _ = writeln!(text, "  {fault}");
    }
    let trace = &outcome.trace;
    let skipped = trace.len().saturating_sub(lines);
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

/// One row of the table of mutations.
pub(crate) struct Row {
    pub(crate) mutant: Mutant,
    /// The number of seeds that were needed, and the promise that was broken.
    pub(crate) caught: Option<(u64, Broken)>,
}

/// Formats the table for the documentation.
pub(crate) fn table(rows: &[Row], most: u64) -> String {
    let mut text = format!("Each mutation was given the seeds from 1 on, at most {most}.\n\n");
    text.push_str(
        "| mutation | rule that is broken | caught by | seeds needed |\n|---|---|---|---|\n",
    );
    for row in rows {
        let (by, seeds) = match &row.caught {
            Some((seeds, broken)) => (broken.invariant.to_string(), seeds.to_string()),
            None => ("**not caught**".to_owned(), format!("> {most}")),
        };
        let _ = writeln!(
            text,
            "| `{}` | {} | {by} | {seeds} |",
            row.mutant.name(),
            row.mutant.about()
        );
    }
    text
}

//! Writes the tables of `docs/performance.md` and `docs/etcd.md`, and the report of all figures, from saved runs, so that nobody
//! copies figures by hand.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::kept::{self, Kept, Line, PEERS};
use crate::report::figure;

/// A measured operation, and the figures of each peer.
type Measured<'a> = ((&'a str, usize, &'a str), Vec<&'a Line>);

/// Writes one table from all runs.
type Write = fn(&[Kept]) -> Result<String>;

/// Pages beside the folder of the runs that show some of their figures.
const PAGES: [&str; 2] = ["performance.md", "etcd.md"];

/// The tables. Each has a place in one of the pages, between two comments with its name.
const TABLES: [(&str, Write); 4] = [
    ("summary", summary),
    ("missed", missed),
    ("storage", storage),
    ("sessions", sessions),
];

/// The sections of the report of all figures: heading, introduction and table.
const REPORT: [(&str, &str, Write); 3] = [
    ("Runs", "", run),
    (
        "Costs",
        "Medians, with etcd's data in memory. *n* is the number of candidates, elections, partitions or observers. For \
         `takeover` it is the TTL in seconds, for `wide` the round trip in milliseconds, and for `route` the number of nodes or \
         of hand-overs. The unit of `wide` is round trips. `cargo xtask bench NAME` repeats a row; NAME is the word before the \
         slash.\n\n",
        costs,
    ),
    ("Targets", "", targets),
];

/// The rows of the summary: bench, n, and measured operation.
const SUMMARY: [(&str, usize, &str); 33] = [
    ("handover", 2, "hand-over, 2 candidates"),
    ("handover", 100, "hand-over, 100 candidates"),
    ("handover", 500, "hand-over, 500 candidates"),
    (
        "handover-fresh",
        2,
        "hand-over to a candidate that joined 20 ms ago",
    ),
    ("wide/handover", 120, "hand-over at a round trip of 120 ms"),
    (
        "wide/near used, renewal",
        120,
        "a renewal through a near member of etcd, in round trips to the far ones",
    ),
    (
        "wide/near lost, renewal",
        120,
        "… while the near one is lost",
    ),
    (
        "wide/near back, used again",
        120,
        "… from its return until it is used again",
    ),
    ("takeover/killed", 2, "takeover after a kill, TTL 2 s"),
    ("takeover/killed", 5, "takeover after a kill, TTL 5 s"),
    (
        "takeover/after the delete",
        5,
        "… of which after etcd deleted the key",
    ),
    (
        "takeover/guarded",
        1,
        "takeover after a kill with a guard, whatever the TTL",
    ),
    (
        "takeover/guarded",
        1000,
        "… until the successor leads 1,000 elections",
    ),
    (
        "supervised",
        2,
        "`eldest run`: program killed until the successor's program runs",
    ),
    ("join", 1, "join and lead an empty election"),
    (
        "many/lead",
        1000,
        "join and lead 1,000 elections in one session",
    ),
    ("locks/free", 1, "take and release a free lock"),
    ("locks/waiting", 100, "hand a lock over while 100 wait"),
    ("observers", 500, "a new leader until 500 observers know it"),
    (
        "partitions/joined",
        10000,
        "10,000 partitions: three members joined until each owns its share",
    ),
    (
        "partitions/killed",
        10000,
        "10,000 partitions: one of 3 members killed until all are owned",
    ),
    (
        "route/client",
        2,
        "one request by the routed client; the limit calls the leader's address",
    ),
    (
        "route/through another node",
        2,
        "one request through a node that does not lead; the same limit",
    ),
    ("route/lost", 100, "requests lost in 100 hand-overs"),
    (
        "route/doubled",
        100,
        "requests carried out twice in 100 hand-overs",
    ),
    (
        "valid/call",
        1,
        "one call of `is_valid()`; the limit is one read of the clock",
    ),
    (
        "requests/handover",
        2,
        "messages to etcd for a hand-over, 2 candidates",
    ),
    (
        "queue/messages",
        1000,
        "messages from etcd for a change of a queue of 1,000",
    ),
    (
        "idle/requests",
        1,
        "requests to etcd of an idle leader, TTL 10 s",
    ),
    ("idle/processor", 1, "processor time of an idle leader"),
    ("idle/memory", 1, "memory of an idle leader's process"),
    (
        "many/memory each",
        1000,
        "memory for each of 1,000 elections",
    ),
    (
        "build/clean",
        1,
        "clean build of a user's package; the limit is etcd-client alone",
    ),
];

/// The share of one processor of etcd that renewals may take where the number of sessions is calculated.
const SHARE: f64 = 0.25;
/// The renewals in one TTL: a session renews its lease after a third of it.
const RENEWALS: f64 = 3.0;

/// Returns the pages beside that folder, with the tables of its runs.
pub(crate) fn pages(folder: &Path) -> Result<Vec<(PathBuf, String)>> {
    let paths = PAGES.map(|page| folder.with_file_name(page));
    let runs = kept::read(folder)?;
    let mut pages = Vec::new();
    for path in paths.into_iter().filter(|path| path.exists()) {
        let mut page = fs::read_to_string(&path)?;
        for (name, write) in TABLES {
            if let Some((before, after)) = around(&page, name) {
                page = format!("{before}\n{}\n\n{after}", write(&runs)?.trim_end());
            }
        }
        pages.push((path, page));
    }
    Ok(pages)
}

/// Returns every figure and every target of the runs of that folder.
pub(crate) fn report(folder: &Path) -> Result<String> {
    let runs = kept::read(folder)?;
    let mut text = String::from("# All figures\n");
    for (heading, about, write) in REPORT {
        write!(
            text,
            "\n## {heading}\n\n{about}{}\n",
            write(&runs)?.trim_end()
        )?;
    }
    Ok(text)
}

/// Returns the page before and behind the table of that name, with the comments.
fn around<'a>(page: &'a str, name: &str) -> Option<(&'a str, &'a str)> {
    let begin = format!("<!-- `cargo xtask bench plot` writes this: {name} -->\n");
    let end = format!("<!-- end: {name} -->\n");
    let from = page.find(&begin)? + begin.len();
    let to = from + page[from..].find(&end)?;
    Some((&page[..from], &page[to..]))
}

fn first(runs: &[Kept]) -> Result<&Kept> {
    runs.first().context("nothing is kept there")
}

/// Describes where and when the figures were measured.
fn run(runs: &[Kept]) -> Result<String> {
    let mut text = String::from(
        "| etcd | begun | seconds | load at the beginning | processor | kernel | command |\n",
    );
    writeln!(text, "|{}", "---|".repeat(7))?;
    for run in runs {
        let about = &run.about;
        writeln!(
            text,
            "| {} | {} | {} | {} | {} x {} | {} | {} |",
            run.kind(),
            about.begun,
            about.seconds,
            about.load[0],
            about.processors,
            about.processor,
            about.kernel,
            about
                .command
                .split("; ")
                .map(|command| format!("`{command}`"))
                .collect::<Vec<_>>()
                .join(", "),
        )?;
    }
    Ok(text)
}

fn summary(runs: &[Kept]) -> Result<String> {
    let lines = &first(runs)?.lines;
    let mut text = format!("| what | unit | {} | bench |\n", PEERS.join(" | "));
    writeln!(text, "|{}", "---|".repeat(PEERS.len() + 3))?;
    for (bench, n, what) in SUMMARY {
        let row: Vec<&Line> = lines
            .iter()
            .filter(|it| it.bench == bench && it.n == n && it.unit != "allocations")
            .collect();
        let unit = &row
            .first()
            .with_context(|| format!("no figure of {bench}, n = {n}"))?
            .unit;
        writeln!(
            text,
            "| {what} | {unit} | {} | `{bench}`, {n} |",
            of_peers(&row).join(" | ")
        )?;
    }
    Ok(text)
}

/// Returns the median of each peer, empty for those that do not take part.
fn of_peers(lines: &[&Line]) -> [String; PEERS.len()] {
    PEERS.map(|peer| {
        let line = lines.iter().find(|line| line.peer == peer);
        line.map(|line| figure(line.p50)).unwrap_or_default()
    })
}

/// Returns the measured groups, in the order in which they began.
fn measured(lines: &[Line]) -> Vec<Measured<'_>> {
    let mut groups: Vec<Measured> = Vec::new();
    for line in lines {
        let what = (line.bench.as_str(), line.n, line.unit.as_str());
        match groups.iter_mut().find(|(known, _)| *known == what) {
            Some((_, lines)) => lines.push(line),
            None => groups.push((what, vec![line])),
        }
    }
    groups
}

/// Formats every figure of the first run.
fn costs(runs: &[Kept]) -> Result<String> {
    let mut text = format!(
        "| bench | n | unit | {} | others | to the limit | to Go | samples |\n",
        PEERS.join(" | ")
    );
    writeln!(text, "|{}", "---|".repeat(PEERS.len() + 7))?;
    for ((bench, n, unit), lines) in measured(&first(runs)?.lines) {
        let of = |peer: &str| lines.iter().find(|line| line.peer == peer);
        let others = lines
            .iter()
            .filter(|line| !PEERS.contains(&line.peer.as_str()));
        let others: Vec<_> = others
            .map(|line| format!("{} {}", line.peer, figure(line.p50)))
            .collect();
        let to = |peer: &str| {
            let ratio = of("eldest")?.p50 / of(peer)?.p50;
            ratio.is_finite().then(|| format!("{ratio:.2}"))
        };
        let samples = of("eldest")
            .or(lines.first())
            .map_or(0, |line| line.samples);
        writeln!(
            text,
            "| `{bench}` | {n} | {unit} | {} | {} | {} | {} | {samples} |",
            of_peers(&lines).join(" | "),
            others.join(", "),
            to("limit").unwrap_or_default(),
            to("go").unwrap_or_default(),
        )?;
    }
    Ok(text)
}

/// A target of a bench, and whether the run reached it.
struct Verdict<'a> {
    bench: &'a str,
    what: &'a str,
    measured: &'a str,
    most: &'a str,
    reached: bool,
    /// The figure of the bare calls, if it is above the target.
    limit: Option<&'a str>,
}

impl Verdict<'_> {
    fn row(&self) -> String {
        let result = match (self.reached, self.limit) {
            (true, _) => "reached".to_owned(),
            (false, Some(limit)) => format!("impossible: the limit itself needs {limit}"),
            (false, None) => "missed".to_owned(),
        };
        let Self {
            bench,
            what,
            measured,
            most,
            ..
        } = self;
        format!("| `{bench}` | {what} | {measured} | {most} | {result} |\n")
    }
}

const TARGETS: &str =
    "| bench | what | measured | target, at most | result |\n|---|---|---|---|---|\n";

/// Formats every target of the first run.
fn targets(runs: &[Kept]) -> Result<String> {
    let rows = verdicts(&first(runs)?.table);
    Ok(rows
        .iter()
        .fold(TARGETS.to_owned(), |text, row| text + &row.row()))
}

/// Reports how many targets the first run reached, and lists the others.
fn missed(runs: &[Kept]) -> Result<String> {
    let all = verdicts(&first(runs)?.table);
    let missed: Vec<_> = all.iter().filter(|verdict| !verdict.reached).collect();
    let text = format!(
        "The runs reached {} of {} targets. They missed these:\n\n{TARGETS}",
        all.len() - missed.len(),
        all.len()
    );
    Ok(missed.iter().fold(text, |text, row| text + &row.row()))
}

/// Parses the lines under the rows: `bench n=2: what 1.14, at most 1.30: reached`, perhaps with a note that the limit
/// misses it too.
fn verdicts(table: &str) -> Vec<Verdict<'_>> {
    let mut lines = table.lines().peekable();
    let mut verdicts = Vec::new();
    while let Some(line) = lines.next() {
        let Some(verdict) = line.strip_prefix("  ").and_then(verdict) else {
            continue;
        };
        let next = lines.peek().map(|next| next.trim_start());
        verdicts.push(Verdict {
            limit: next.and_then(|next| next.strip_prefix("the limit itself: ")),
            ..verdict
        });
    }
    verdicts
}

fn verdict(line: &str) -> Option<Verdict<'_>> {
    let (bench, rest) = line.split_once(": ")?;
    let (figures, reached) = rest.rsplit_once(": ")?;
    let (measured, most) = figures.split_once(", at most ")?;
    let (what, measured) = measured.rsplit_once(' ')?;
    Some(Verdict {
        bench,
        what,
        measured,
        most,
        reached: reached == "reached",
        limit: None,
    })
}

/// Formats the library's ratios to the limit and to Go, for each kind of etcd.
fn storage(runs: &[Kept]) -> Result<String> {
    let mut rows: BTreeMap<(&str, usize), Vec<String>> = BTreeMap::new();
    let mut head = String::from("| bench | n |");
    for (at, run) in runs.iter().enumerate() {
        write!(head, " {} |", run.kind())?;
        for line in run.lines.iter().filter(|line| line.peer == "eldest") {
            let (Some(limit), Some(go)) = (line.ratio_to_limit, line.ratio_to_go) else {
                continue;
            };
            let row = rows.entry((&line.bench, line.n)).or_default();
            row.resize(at, String::new());
            row.push(format!("{limit:.2}, {go:.2}"));
        }
    }
    let mut text = format!("{head}\n|{}\n", "---|".repeat(runs.len() + 2));
    for ((bench, n), cells) in rows.iter().filter(|(_, cells)| cells.len() > 1) {
        writeln!(text, "| `{bench}` | {n} | {} |", cells.join(" | "))?;
    }
    Ok(text)
}

/// Calculates how many sessions one cluster carries from the cost of one of them.
fn sessions(runs: &[Kept]) -> Result<String> {
    const KIB_IN_GIB: f64 = 1024.0 * 1024.0;
    let lines = &first(runs)?.lines;
    let of = |bench: &str, unit: &str| {
        let line = lines
            .iter()
            .find(|line| line.bench == bench && line.unit == unit);
        line.map(|line| line.p50)
            .with_context(|| format!("no figure of {bench}"))
    };
    let renewal = of("scale/renewal processor", "us")?;
    let memory = of("scale/memory of a session", "KiB")?;
    let mut text = format!(
        "A renewal took {} µs of etcd's processor, and a session {} KiB of its memory.\n\n",
        figure(renewal),
        figure(memory)
    );
    text += "| TTL | renewals a second | sessions | their memory in etcd |\n|---|---|---|---|\n";
    let rate = SHARE * 1e6 / renewal;
    for ttl in [2, 5, 10, 30] {
        let sessions = rounded_down(rate * f64::from(ttl) / RENEWALS);
        let memory = sessions * memory / KIB_IN_GIB;
        writeln!(
            text,
            "| {ttl} s | {} | {sessions} | {memory:.1} GiB |",
            rounded_down(rate)
        )?;
    }
    Ok(text)
}

/// Rounds down to two digits.
fn rounded_down(value: f64) -> f64 {
    let unit = 10_f64.powf(value.log10().floor() - 1.0);
    (value / unit).floor() * unit
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{TABLES, around, pages, report, rounded_down, verdicts};

    /// If this fails, `cargo xtask bench plot` writes them again.
    #[test]
    fn tables_of_the_pages_match_the_figures_in_their_folder() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/performance");
        let written = pages(&folder).unwrap();
        for (path, page) in &written {
            let kept = fs::read_to_string(path).unwrap();
            let name = path.display();
            assert!(
                *page == kept,
                "`cargo xtask bench plot` writes another {name}"
            );
        }
        for (name, _) in TABLES {
            let places = written
                .iter()
                .filter(|(_, page)| around(page, name).is_some());
            assert_eq!(places.count(), 1, "pages with the table {name}");
        }
    }

    #[test]
    fn folder_without_pages_gets_no_table_but_a_report() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/performance");
        for name in ["tmpfs-1.jsonl", "tmpfs-1.txt", "tmpfs-1.about.json"] {
            fs::copy(kept.join(name), folder.path().join(name)).unwrap();
        }
        assert!(pages(folder.path()).unwrap().is_empty());
        let report = report(folder.path()).unwrap();
        for row in ["| in memory, 1 |", "| `join` | 1 | ms |", "| `join n=1` |"] {
            assert!(report.contains(row), "{row}");
        }
    }

    #[test]
    fn a_verdict_is_read_as_the_report_writes_it() {
        let report = "\
handover: 48.7 s
  takeover/killed n=5: max, eldest / go 1.02, at most 1.00: NOT REACHED
  handover n=2: eldest / go 0.70, at most 0.60: NOT REACHED
    the limit itself: 0.61 x go
  join n=1: eldest / limit 1.07, at most 1.30: reached
  skipped go: it is not there
";
        let rows: Vec<_> = verdicts(report).iter().map(super::Verdict::row).collect();
        let expected = [
            "| `takeover/killed n=5` | max, eldest / go | 1.02 | 1.00 | missed |\n",
            "| `handover n=2` | eldest / go | 0.70 | 0.60 | impossible: the limit itself needs 0.61 x go |\n",
            "| `join n=1` | eldest / limit | 1.07 | 1.30 | reached |\n",
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn numbers_keep_two_digits_and_never_grow() {
        let rounded = [2298.9, 34_482.0, 100.0, 57.9].map(rounded_down);
        assert_eq!(
            rounded.map(|it| it.to_string()),
            ["2200", "34000", "100", "57"]
        );
    }
}

//! Compares the runbooks of docs/operations.md with what operators see: every alert and log line that they quote
//! exists, and every alert and every warning has a runbook.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::pages;
use crate::setup;
use crate::stage::Stage;
use crate::words;

const RUNBOOKS: &str = "docs/operations.md";
const ALERTS: &str = "deploy/monitoring/alerts.yml";
const LOG_LINES: &str = "docs/logging.md";
/// The sources of the command and of its HTTP side.
const SOURCES: [&str; 2] = ["crates/eldest-cli/src", "crates/eldest-http/src"];
/// The table at the top of a runbook.
const HEADER: &str = "| you see | where |";
/// The parts of each runbook after that table.
const PARTS: [&str; 2] = ["**It means:**", "**Do"];

/// Runs as a part of the stages `docs` and `check`.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    let (runbooks, broken) = check(setup::root())?;
    let broken = broken.iter().map(|why| format!("{RUNBOOKS}: {why}"));
    let holds = format!("{runbooks} runbooks: what they quote exists");
    stage.judge(&holds, broken.collect());
    Ok(())
}

/// Returns the number of runbooks, and their faults.
fn check(root: &Path) -> Result<(usize, Vec<String>)> {
    let read =
        |file: &str| fs::read_to_string(root.join(file)).with_context(|| format!("reading {file}"));
    let mut sources = String::new();
    for folder in SOURCES {
        gather(&root.join(folder), &mut sources)?;
    }
    Ok(Runbooks::read(&read(RUNBOOKS)?).held_to(
        &alerts(&read(ALERTS)?),
        &log_lines(&read(LOG_LINES)?),
        &plain(&sources),
    ))
}

/// Adds all Rust sources below a folder to the text.
pub(crate) fn gather(folder: &Path, text: &mut String) -> Result<()> {
    for file in words::files(folder, &["rs"])? {
        text.push_str(&fs::read_to_string(file)?);
    }
    Ok(())
}

/// Returns the source without line breaks within literals.
fn plain(source: &str) -> String {
    let words: Vec<&str> = source.split_whitespace().collect();
    words.join(" ").replace("\\ ", "")
}

/// Returns the names in a file of alert rules, each with the runbook that it names.
fn alerts(rules: &str) -> BTreeMap<&str, &str> {
    let mut alerts = BTreeMap::new();
    let mut name = "";
    for line in rules.lines().map(str::trim) {
        if let Some(next) = line.strip_prefix("- alert: ") {
            name = next;
            alerts.insert(name, "");
        } else if let Some(runbook) = line.strip_prefix("runbook: ") {
            alerts.insert(name, runbook.trim_matches('"'));
        }
    }
    alerts
}

/// The fields of each message, and true if one of its levels is a warning or an error.
type LogLines<'a> = BTreeMap<&'a str, (BTreeSet<&'a str>, bool)>;

fn log_lines(page: &str) -> LogLines<'_> {
    let mut lines = LogLines::new();
    for row in page.lines().filter(|line| line.starts_with("| `eldest::")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        if let [_, _, level, message, fields, ..] = cells[..] {
            let line = lines.entry(message.trim_matches('`')).or_default();
            line.0.extend(spans(fields));
            line.1 |= matches!(level, "WARN" | "ERROR");
        }
    }
    lines
}

/// Returns the texts between backquotes.
fn spans(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The runbooks of a page.
struct Runbooks<'a>(Vec<Runbook<'a>>);

struct Runbook<'a> {
    heading: &'a str,
    rows: Vec<Row<'a>>,
    /// The text after the table's heading.
    text: &'a str,
}

/// A row of the table at a runbook's top.
struct Row<'a> {
    /// The text that people see, and its fields.
    seen: Vec<&'a str>,
    place: &'a str,
}

impl<'a> Runbooks<'a> {
    fn read(page: &'a str) -> Self {
        let sections = page.split("\n## ").skip(1);
        Self(sections.filter_map(Runbook::read).collect())
    }

    fn held_to(
        &self,
        alerts: &BTreeMap<&str, &str>,
        lines: &LogLines<'_>,
        sources: &str,
    ) -> (usize, Vec<String>) {
        let mut broken = Vec::new();
        let mut quoted = BTreeSet::new();
        for runbook in &self.0 {
            let heading = runbook.heading;
            let missing = PARTS.iter().filter(|part| !runbook.text.contains(**part));
            broken.extend(missing.map(|part| format!("{heading}: no {part}")));
            for Row { seen, place } in &runbook.rows {
                let [first, fields @ ..] = &seen[..] else {
                    broken.push(format!("{heading}: a row quotes nothing"));
                    continue;
                };
                quoted.insert(*first);
                let why = match *place {
                    "alert" => wrong_alert(alerts, first, heading),
                    "log" => wrong_line(lines, first, fields),
                    _ => (!written(sources, first)).then_some("no such message"),
                };
                broken.extend(why.map(|why| format!("{heading}: {why}: {first}")));
            }
        }
        let warnings = lines.iter().filter(|(_, (_, warns))| *warns);
        let all = alerts.keys().chain(warnings.map(|(message, _)| message));
        let without = all.filter(|seen| !quoted.contains(**seen));
        broken.extend(without.map(|seen| format!("no runbook for {seen}")));
        (self.0.len(), broken)
    }
}

impl<'a> Runbook<'a> {
    /// Reads a runbook; returns `None` for a section without the table, which is none.
    fn read(section: &'a str) -> Option<Self> {
        let (_, text) = section.split_once(HEADER)?;
        let rows = text
            .lines()
            .skip(2)
            .take_while(|line| line.starts_with('|'));
        let rows = rows.map(|row| {
            let row = row.trim_matches(['|', ' ']);
            let (seen, place) = row.rsplit_once('|').unwrap_or((row, ""));
            Row {
                seen: spans(seen).collect(),
                place: place.trim(),
            }
        });
        Some(Self {
            heading: section.lines().next().unwrap_or_default(),
            rows: rows.collect(),
            text,
        })
    }
}

/// Returns the fault of a quoted alert, in the runbook with that heading.
fn wrong_alert(alerts: &BTreeMap<&str, &str>, name: &str, heading: &str) -> Option<&'static str> {
    let Some(runbook) = alerts.get(name) else {
        return Some("no such alert");
    };
    let here = format!("{RUNBOOKS}#{}", pages::anchor(heading));
    (*runbook != here).then_some("the alert names another runbook")
}

/// Returns the fault of a quoted log line and its `field=value`.
fn wrong_line(lines: &LogLines<'_>, message: &str, fields: &[&str]) -> Option<&'static str> {
    let Some((known, _)) = lines.get(message) else {
        return Some("no such log line");
    };
    let name = |field: &&str| {
        field
            .split('=')
            .next()
            .is_some_and(|name| known.contains(name))
    };
    (!fields.iter().all(name)).then_some("no such field of the log line")
}

/// Returns true if the sources have each part of a message, whose variable parts are shown as `...`.
fn written(sources: &str, message: &str) -> bool {
    message
        .split("...")
        .all(|part| sources.contains(part.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "\
        | `eldest::session` | WARN | `lost` | `identity` `reason` | x |\n\
        | `eldest::session` | INFO | `granted` | `identity` | x |\n";
    const RULES: &str = "rules:\n  - alert: Down\n    runbook: \"docs/operations.md#one\"\n";

    fn broken(rows: &str) -> Vec<String> {
        let page = format!(
            "# P\n\n## One\n\n{HEADER}\n|---|---|\n{rows}\n**It means:** a.\n\n**Do:** b.\n"
        );
        let sources = plain("\"{n} members \\\n    are gone\"");
        Runbooks::read(&page)
            .held_to(&alerts(RULES), &log_lines(LINES), &sources)
            .1
    }

    #[test]
    fn runbooks_quote_existing_alerts_and_log_lines() {
        let (runbooks, broken) = check(setup::root()).expect("runbooks");
        assert!(runbooks > 10, "{runbooks}");
        assert!(broken.is_empty(), "{}", broken.join("\n"));
    }

    #[test]
    fn existing_alerts_and_log_lines_may_be_quoted() {
        let rows = "| `Down` | alert |\n| `lost`, `reason=gone` | log |\n| `granted` | log |\n| `... members are gone` | `eldest x` |\n";
        assert_eq!(broken(rows), [""; 0]);
    }

    #[test]
    fn wrong_quotes_and_missing_runbooks_are_named() {
        let rows = "| `Up` | alert |\n| `found` | log |\n| `lost`, `why=gone` | log |\n| `no such` | `eldest x` |\n| nothing | log |\n";
        let wrong = [
            "no such alert: Up",
            "no such log line: found",
            "no such field of the log line: lost",
            "no such message: no such",
            "quotes nothing",
            "no runbook for Down",
        ];
        let broken = broken(rows);
        assert_eq!(broken.len(), wrong.len(), "{broken:?}");
        for (broken, wrong) in broken.iter().zip(wrong) {
            assert!(broken.contains(wrong), "{broken} for {wrong}");
        }
    }

    #[test]
    fn runbook_has_a_meaning_and_steps() {
        let page = format!("# P\n\n## One\n\n{HEADER}\n|---|---|\n| `Down` | alert |\n\nPoetry.\n");
        let (_, broken) = Runbooks::read(&page).held_to(&alerts(RULES), &LogLines::new(), "");
        assert_eq!(broken.len(), PARTS.len(), "{broken:?}");
    }

    #[test]
    fn an_alert_names_the_runbook_that_quotes_it() {
        let page = format!(
            "# P\n\n## Two\n\n{HEADER}\n|---|---|\n| `Down` | alert |\n\n**It means:** a.\n\n**Do:** b.\n"
        );
        let (_, broken) = Runbooks::read(&page).held_to(&alerts(RULES), &LogLines::new(), "");
        assert_eq!(broken, ["Two: the alert names another runbook: Down"]);
    }
}

//! Compares the runbooks of docs/operations.md with what operators see: every alert and log line that they quote
//! exists, and every alert and every warning has a runbook.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result};

use crate::stage::Stage;
use crate::{setup, sources};

const RUNBOOKS: &str = "docs/operations.md";
const ALERTS: &str = "deploy/monitoring/alerts.yml";
const LOG_LINES: &str = "docs/logging.md";
/// The sources of the command and of its HTTP side.
const SOURCES: [&str; 2] = ["crates/eldest-cli/src", "crates/eldest-http/src"];
/// The table at the top of a runbook.
const HEADER: &str = "| you see | where |\n|---|---|\n";

/// Runs as a part of the stages `source` and `check`.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    let read = |file: &str| fs::read_to_string(setup::root().join(file)).context(file.to_owned());
    let code = sources::gather(&SOURCES)?;
    // Literals may continue on the next line.
    let words: Vec<&str> = code.split_whitespace().collect();
    let code = words.join(" ").replace("\\ ", "");
    let broken = faults(&read(RUNBOOKS)?, &read(ALERTS)?, &read(LOG_LINES)?, &code);
    stage.judge("what the runbooks quote exists", broken);
    Ok(())
}

/// Returns the anchor that GitHub and mdBook give to a heading.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, '-' | '_' | ' ');
    let kept: String = heading.to_lowercase().chars().filter(kept).collect();
    kept.replace(' ', "-")
}

/// Returns the texts between backquotes.
fn spans(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

fn faults(page: &str, rules: &str, logging: &str, code: &str) -> Vec<String> {
    // The rule of each alert, by its name.
    let alerts = rules.split("- alert: ").skip(1);
    let alerts: BTreeMap<&str, &str> = alerts.filter_map(|rule| rule.split_once('\n')).collect();
    // The rows of each message.
    let mut lines: BTreeMap<&str, Vec<[&str; 2]>> = BTreeMap::new();
    for row in logging.lines().filter(|row| row.starts_with("| `eldest::")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        if let [_, _, level, message, fields, ..] = cells[..] {
            let rows = lines.entry(message.trim_matches('`')).or_default();
            rows.push([level, fields]);
        }
    }
    let mut broken = Vec::new();
    let mut quoted = BTreeSet::new();
    for section in page.split("\n## ").skip(1) {
        let Some((heading, table)) = section.split_once(HEADER) else {
            continue;
        };
        let heading = heading.lines().next().unwrap_or_default();
        let runbook = format!("{RUNBOOKS}#{}\"", anchor(heading));
        for row in table.lines().take_while(|row| row.starts_with('|')) {
            let (seen, place) = row
                .trim_matches(['|', ' '])
                .rsplit_once('|')
                .unwrap_or((row, ""));
            let seen = spans(seen);
            let Some((first, fields)) = seen.split_first() else {
                broken.push(format!("{RUNBOOKS}: {heading}: a row quotes nothing"));
                continue;
            };
            quoted.insert(*first);
            let has = |[_, known]: &[&str; 2], field: &str| {
                spans(known).contains(&field.split('=').next().unwrap_or_default())
            };
            let is_true = match place.trim() {
                "alert" => alerts
                    .get(first)
                    .is_some_and(|rule| rule.contains(&runbook)),
                "log" => lines.get(first).is_some_and(|rows| {
                    let mut fields = fields.iter();
                    fields.all(|field| rows.iter().any(|row| has(row, field)))
                }),
                // Variable parts of a message are shown as `...`.
                _ => first.split("...").all(|part| code.contains(part.trim())),
            };
            if !is_true {
                let about = "does not exist, has another field, or names another runbook";
                broken.push(format!("{RUNBOOKS}: {heading}: `{first}` {about}"));
            }
        }
    }
    let warns = |rows: &Vec<[&str; 2]>| {
        rows.iter()
            .any(|[level, _]| ["WARN", "ERROR"].contains(level))
    };
    let warnings = lines.iter().filter(|(_, rows)| warns(rows));
    let all = alerts.keys().chain(warnings.map(|(message, _)| message));
    let without = all.filter(|seen| !quoted.contains(**seen));
    broken.extend(without.map(|seen| format!("{RUNBOOKS}: no runbook for {seen}")));
    broken
}

#[cfg(test)]
mod tests {
    use super::{HEADER, faults};

    #[test]
    fn wrong_quotes_and_missing_runbooks_are_named() {
        let rules = "rules:\n  - alert: Down\n    runbook: \"docs/operations.md#one\"\n  - alert: Late\n    runbook: \"docs/operations.md#two\"\n";
        let lines = "| `eldest::session` | WARN | `lost` | `identity` `reason` | x |\n| `eldest::session` | INFO | `granted` | | x |\n";
        let check = |rows: &str| {
            let page = format!(
                "# P\n\n## One\n\n{HEADER}{rows}\ntext\n\n## Two\n\n{HEADER}| `Late` | alert |\n"
            );
            faults(&page, rules, lines, "7 members are gone")
        };
        let good = "| `Down` | alert |\n| `lost`, `reason=gone` | log |\n| `... members are gone` | `eldest x` |\n";
        assert_eq!(check(good), [""; 0]);
        let rows = [
            "`Up` | alert",
            "`Late` | alert",
            "`found` | log",
            "`lost`, `why=gone` | log",
            "`no such` | `eldest x`",
            "nothing | log",
        ];
        let wrong = check(&rows.map(|row| format!("| {row} |\n")).concat());
        assert_eq!(
            wrong.len(),
            rows.len() + 1,
            "and no runbook for Down: {wrong:?}"
        );
    }
}

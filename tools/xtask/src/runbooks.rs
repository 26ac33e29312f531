//! Compares the runbooks of docs/operations.md with what operators see: every alert and log line that they quote
//! exists, and every alert and every warning has a runbook.

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

fn faults(page: &str, rules: &str, logging: &str, code: &str) -> Vec<String> {
    let tables = page.split(HEADER).skip(1);
    let rows = tables.flat_map(|table| table.lines().take_while(|row| row.starts_with('|')));
    // What an operator sees, and where. Variable parts of a message are shown as `...`.
    let rows =
        rows.filter_map(|row| Some((row.split('`').nth(1)?, row.rsplit('|').nth(1)?.trim())));
    let rows: Vec<(&str, &str)> = rows.collect();
    let mut broken = Vec::new();
    for (seen, place) in &rows {
        let exists = match *place {
            "alert" => rules.contains(&format!("- alert: {seen}\n")),
            "log" => logging.contains(&format!("| `{seen}` |")),
            _ => seen.split("...").all(|part| code.contains(part.trim())),
        };
        if !exists {
            broken.push(format!("{RUNBOOKS}: `{seen}` does not exist ({place})"));
        }
    }
    let alerts = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    let warnings = logging.lines().filter(|row| row.starts_with("| `eldest::"));
    let warnings = warnings.filter(|row| row.contains("| WARN |") || row.contains("| ERROR |"));
    let warnings = warnings.filter_map(|row| row.split('`').nth(3));
    for seen in alerts.chain(warnings) {
        if !rows.iter().any(|(quoted, _)| *quoted == seen) {
            broken.push(format!("{RUNBOOKS}: no runbook for {seen}"));
        }
    }
    let headings = page.lines().filter_map(|line| line.strip_prefix("## "));
    let anchors: Vec<String> = headings
        .map(|it| it.to_lowercase().replace(' ', "-"))
        .collect();
    for anchor in rules.split("docs/operations.md#").skip(1) {
        let anchor = anchor.split('"').next().unwrap_or_default();
        if !anchors.iter().any(|heading| heading == anchor) {
            broken.push(format!("{ALERTS}: {RUNBOOKS} has no heading for #{anchor}"));
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::{HEADER, faults};

    #[test]
    fn wrong_quotes_and_missing_runbooks_are_named() {
        let rules = "rules:\n  - alert: Down\n    runbook: \"docs/operations.md#one\"\n";
        let lines = "| `eldest::session` | WARN | `lost` | `identity` `reason` | x |\n| `eldest::session` | INFO | `granted` | | x |\n";
        let check = |rows: &str| {
            let page = format!("# P\n\n## One\n\n{HEADER}{rows}\ntext\n");
            faults(&page, rules, lines, "7 members are gone")
        };
        let good = "| `Down` | alert |\n| `lost`, `reason=gone` | log |\n| `... members are gone` | `eldest x` |\n";
        assert_eq!(check(good), [""; 0]);
        let wrong = check("| `Up` | alert |\n| `found` | log |\n| `no such` | `eldest x` |\n");
        assert_eq!(
            wrong.len(),
            5,
            "and no runbook for Down and lost: {wrong:?}"
        );
    }
}

//! Compares pages with what they quote. In the runbooks of docs/operations.md, every alert and log line exists, and every alert and
//! every warning has a runbook. In docs/proofs.md and docs/faults.md, every test exists.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};

use crate::setup;
use crate::stage::Stage;

const RUNBOOKS: &str = "docs/operations.md";
const ALERTS: &str = "deploy/monitoring/alerts.yml";
const LOG_LINES: &str = "docs/logging.md";
/// The sources of the command and of its HTTP side.
const SOURCES: [&str; 2] = ["crates/eldest-cli/src", "crates/eldest-http/src"];
/// The table at the top of a runbook.
const HEADER: &str = "| you see | where |\n|---|---|\n";
/// The pages with tables of tests.
const PROOFS: [&str; 2] = ["docs/faults.md", "docs/proofs.md"];

/// Runs as a part of the stages `source` and `check`.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    let read = |file: &str| fs::read_to_string(setup::root().join(file)).context(file.to_owned());
    let code = grep(stage, ".+", &SOURCES)?;
    // Literals may continue on the next line.
    let words: Vec<&str> = code.split_whitespace().collect();
    let code = words.join(" ").replace("\\ ", "");
    let broken = faults(&read(RUNBOOKS)?, &read(ALERTS)?, &read(LOG_LINES)?, &code);
    stage.judge("what the runbooks quote exists", broken);

    let functions = grep(stage, "fn [a-z0-9_]+\\(", &["*.rs"])?;
    let functions: BTreeSet<&str> = functions
        .lines()
        .filter_map(|line| line.trim().strip_prefix("fn ")?.strip_suffix('('))
        .collect();
    for page in PROOFS {
        let text = read(page)?;
        let is_head = |line: &&str| line.starts_with('|') && line.contains(" test");
        let rows = text.lines().skip_while(|line| !is_head(line)).skip(2);
        let rows = rows.take_while(|line| line.starts_with('|'));
        let quoted = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
        let tests: Vec<&str> = quoted.filter(|name| name.contains('_')).collect();
        ensure!(!tests.is_empty(), "{page} names no test");
        let missing = tests.iter().filter(|name| !functions.contains(**name));
        let missing = missing.map(|name| format!("{page}: no test has the name {name}"));
        stage.judge(
            &format!("{page}: {} tests exist", tests.len()),
            missing.collect(),
        );
    }
    Ok(())
}

/// Returns what git finds in these files.
fn grep(stage: &Stage, pattern: &str, files: &[&str]) -> Result<String> {
    let mut grep = setup::program("git");
    grep.args(["grep", "--untracked", "-h", "-o", "-E", pattern, "--"]);
    stage.output(grep.args(files))
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

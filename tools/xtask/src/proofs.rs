//! Compares the tables of docs/proofs.md and docs/faults.md with the tests: every test that they name must exist.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::stage::Stage;
use crate::{setup, sources};

const PAGES: [&str; 2] = ["docs/faults.md", "docs/proofs.md"];

/// Runs as a part of the stages `source` and `check`.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    let code = sources::gather(&["src", "crates", "examples", "tests", "tools", "lab"])?;
    for page in PAGES {
        let text = fs::read_to_string(setup::root().join(page)).context(page)?;
        let is_head = |line: &str| line.starts_with('|') && line.contains(" test");
        let table = text.lines().skip_while(|line| !is_head(line)).skip(2);
        let (mut count, mut faults) = (0, Vec::new());
        for row in table.take_while(|line| line.starts_with('|')) {
            let quoted = row.split('`').skip(1).step_by(2);
            let tests: Vec<&str> = quoted.filter(|name| name.contains('_')).collect();
            if tests.is_empty() {
                faults.push(format!("{page}: a row without a test: {row}"));
            }
            let missing = tests
                .iter()
                .filter(|name| !code.contains(&format!("fn {name}(")));
            faults.extend(missing.map(|name| format!("{page}: no test has the name {name}")));
            count += tests.len();
        }
        ensure!(count > 0, "{page} names no test");
        stage.judge(&format!("{page}: {count} tests exist"), faults);
    }
    Ok(())
}

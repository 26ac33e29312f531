//! Compares docs/proofs.md with the tests: every test that the page names must exist.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::stage::Stage;
use crate::{setup, sources};

const PAGE: &str = "docs/proofs.md";

/// Runs as a part of the stages `source` and `check`.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    let page = fs::read_to_string(setup::root().join(PAGE)).context(PAGE)?;
    let code = sources::gather(&["src", "crates", "tests", "tools", "lab"])?;
    let rows = page.lines().filter(|line| line.starts_with('|'));
    let quoted = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    let tests: Vec<&str> = quoted.filter(|name| name.contains('_')).collect();
    ensure!(!tests.is_empty(), "{PAGE} names no test");
    let missing = tests
        .iter()
        .filter(|name| !code.contains(&format!("fn {name}(")));
    let missing = missing.map(|name| format!("{PAGE}: no test has the name {name}"));
    let holds = format!("{} tests prove the guarantees", tests.len());
    stage.judge(&holds, missing.collect());
    Ok(())
}

//! Compares docs/proofs.md with the tests: every test that the page names must exist.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::stage::Stage;
use crate::{runbooks, setup};

const PAGE: &str = "docs/proofs.md";
/// The folders that have tests.
const SOURCES: [&str; 5] = ["src", "crates", "tests", "tools", "lab"];

/// Runs as a part of the stages `docs` and `check`.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    let root = setup::root();
    let page = fs::read_to_string(root.join(PAGE)).context(PAGE)?;
    let mut sources = String::new();
    for folder in SOURCES {
        runbooks::gather(&root.join(folder), &mut sources)?;
    }
    let tests = tests(&page);
    ensure!(!tests.is_empty(), "{PAGE} names no test");
    let missing = missing(&tests, &sources).into_iter();
    let missing = missing.map(|name| format!("{PAGE}: no test has the name {name}"));
    let holds = format!("{} tests prove the guarantees", tests.len());
    stage.judge(&holds, missing.collect());
    Ok(())
}

/// Returns the names in the cells of the page's tables.
fn tests(page: &str) -> Vec<&str> {
    let rows = page.lines().filter(|line| line.starts_with('|'));
    let code = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    code.filter(|name| name.contains('_')).collect()
}

fn missing<'a>(tests: &[&'a str], sources: &str) -> Vec<&'a str> {
    let is_missing = |name: &&str| !sources.contains(&format!("fn {name}("));
    tests.iter().copied().filter(is_missing).collect()
}

#[cfg(test)]
mod tests {
    use super::{missing, tests};

    #[test]
    fn name_that_no_test_has_is_found() {
        let page = "| g | `a_b`, `c_d` | |\n| `x` | | |\nand `e_f`\n";
        let named = tests(page);
        assert_eq!(named, ["a_b", "c_d"]);
        assert_eq!(missing(&named, "async fn a_b() {}\nfn c_d_e() {}"), ["c_d"]);
    }
}

//! Writes `docs/mutants.md`: who noticed each rule that was broken, in the adapter and in the core's source.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result};

use super::list::Mutant;
use crate::setup;

/// The page, from the workspace's folder.
pub(crate) const PAGE: &str = "docs/mutants.md";

const HEAD: &str = "\
# Rules broken on purpose

Written by `cargo xtask mutants`; do not edit. One rule of the library is broken at a time, and somebody must notice. What
the invariants I1 to I6 say is in [ARCHITECTURE.md](../ARCHITECTURE.md#i1-to-i6).
";

/// The section that the simulator writes by itself.
const ADAPTER: &str = "\n## In the adapter between the core and the simulated etcd\n\n";

const CORE: &str = "\n\n## In the core's source\n\n";

const PATCHES: &str = "\
Each is a patch of [mutants.toml](../tools/sim/mutants.toml). The simulator runs random seeds with it, from 1 on; what the
first thousand do not notice, a test of the simulator's or of the core's own should; if none does, more seeds are run. The
last column tells how many seeds were needed when the mutant was last run.
";

const COLUMNS: &str =
    "| mutation | rule that is broken | noticed by | seeds |\n|---|---|---|---|\n";

/// What stands in a row of a mutant that was never run.
const UNKNOWN: &str = "**not run**";

/// The rows by name: who noticed, and the seeds.
pub(crate) type Rows = BTreeMap<String, (String, String)>;

/// The page as it is kept: the adapter's section, and the rows of the core's.
pub(crate) fn read() -> Result<(String, Rows)> {
    let page = std::fs::read_to_string(setup::root().join(PAGE)).context(PAGE)?;
    Ok(parsed(&page))
}

/// Writes the page anew.
pub(crate) fn write(mutants: &[Mutant], adapter: &str, rows: &Rows) -> Result<()> {
    let page = page(mutants, adapter, rows);
    std::fs::write(setup::root().join(PAGE), page).context(PAGE)
}

fn parsed(page: &str) -> (String, Rows) {
    let adapter = page.split_once(ADAPTER).map_or("", |(_, rest)| rest);
    let (adapter, core) = adapter.split_once(CORE).unwrap_or((adapter, ""));
    let rows = core.lines().filter_map(|line| {
        let row = line.strip_prefix("| `")?.strip_suffix(" |")?;
        let (name, row) = row.split_once("` | ")?;
        let (_, row) = row.split_once(" | ")?;
        let (by, seeds) = row.rsplit_once(" | ")?;
        Some((name.to_owned(), (by.to_owned(), seeds.to_owned())))
    });
    (adapter.trim_end().to_owned(), rows.collect())
}

fn page(mutants: &[Mutant], adapter: &str, rows: &Rows) -> String {
    let mut text = format!("{HEAD}{ADAPTER}{}{CORE}{PATCHES}", adapter.trim_end());
    let mut area = "";
    for mutant in mutants {
        if mutant.area != area {
            area = &mutant.area;
            // Writing to a String cannot fail.
            let _ = write!(text, "\n### {area}\n\n{COLUMNS}");
        }
        let unknown = (UNKNOWN.to_owned(), String::new());
        let (by, seeds) = rows.get(&mutant.name).unwrap_or(&unknown);
        let (name, rule) = (&mutant.name, &mutant.rule);
        let _ = writeln!(text, "| `{name}` | {rule} | {by} | {seeds} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::list;

    #[test]
    fn page_is_what_was_run_and_names_every_mutant() {
        let mutants = list::read().unwrap();
        let kept = std::fs::read_to_string(setup::root().join(PAGE)).unwrap();
        let (adapter, rows) = parsed(&kept);
        assert!(adapter.lines().any(|line| line.starts_with("| `")));
        let remedy =
            "`cargo xtask mutants --only NAME` runs a new one, `--page` writes the page alone";
        assert!(page(&mutants, &adapter, &rows) == kept, "{remedy}");
        let unknown = kept.lines().find(|line| line.contains(UNKNOWN));
        assert_eq!(unknown, None, "nobody knows who notices it: {remedy}");
    }
}

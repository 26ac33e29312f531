//! Writes the report of all mutants: how many of each area are noticed, and by what; then each of them.

use super::list::Mutant;
use super::results::{Noticed, Results};

/// The area of the mutants that are no patches of the core.
pub(crate) const ADAPTER: &str = "adapter";

/// A mutant with its result; `None` if it was never run.
struct Row<'a> {
    name: &'a str,
    area: &'a str,
    rule: &'a str,
    noticed: Option<&'a Noticed>,
}

impl Row<'_> {
    fn line(&self) -> String {
        let by = self.noticed.map_or("**not run**", |noticed| &noticed.by);
        let seed = self.noticed.map_or_else(String::new, Noticed::first_seed);
        let (name, rule) = (self.name, self.rule);
        format!("| `{name}` | {rule} | {by} | {seed} |")
    }
}

/// Returns the counts of each area's mutants, and all of them with their rules.
pub(crate) fn list(mutants: &[&Mutant], results: &Results) -> String {
    let mut lines = vec!["# Mutants\n".to_owned()];
    for of_area in rows(mutants, results).chunk_by(|a, b| a.area == b.area) {
        let by_seed = |row: &&Row| row.noticed.is_some_and(|noticed| noticed.seed.is_some());
        let (all, by_seeds) = (of_area.len(), of_area.iter().filter(by_seed).count());
        lines.push(format!("## {}\n", of_area[0].area));
        lines.push(format!(
            "{all} mutants, of which seeds notice {by_seeds}.\n"
        ));
        lines.push(
            "| mutant | broken rule | noticed by | first seed |\n|---|---|---|---|".to_owned(),
        );
        lines.extend(of_area.iter().map(Row::line));
        lines.push(String::new());
    }
    lines.join("\n")
}

fn rows<'a>(mutants: &[&'a Mutant], results: &'a Results) -> Vec<Row<'a>> {
    let adapter = results.adapter.iter().map(|(name, noticed)| Row {
        name,
        area: ADAPTER,
        rule: noticed.rule.as_deref().unwrap_or_default(),
        noticed: Some(noticed),
    });
    let core = mutants.iter().map(|mutant| Row {
        name: &mutant.name,
        area: &mutant.area,
        rule: &mutant.rule,
        noticed: results.core.get(&mutant.name),
    });
    adapter.chain(core).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::list;

    #[test]
    fn every_mutant_was_run_and_noticed() {
        let (all, results) = (list::read().unwrap(), Results::read().unwrap());
        let mutants: Vec<_> = all.iter().collect();
        let remedy = "`cargo xtask mutants --only NAME` runs a new mutant";
        for row in rows(&mutants, &results) {
            let by = row.noticed.map(|noticed| noticed.by.as_str());
            let noticed = row.noticed.is_some_and(Noticed::is_by_somebody);
            assert!(noticed, "`{}`: {by:?}: {remedy}", row.name);
        }
        assert_eq!(
            results.core.len(),
            mutants.len(),
            "delete the results of mutants that are gone: {}",
            crate::mutants::results::FILE
        );
    }
}

//! Writes the report of all mutants: how many of each area are noticed, and by what; then each of them.

use super::list::Mutant;
use super::results::{Noticed, Results};

/// Returns the counts of each area's mutants, and all of them with their rules.
pub(crate) fn list(mutants: &[&Mutant], results: &Results) -> String {
    let noticed = |mutant: &Mutant| results.core.get(&mutant.name);
    let mut lines = vec!["# Mutants\n".to_owned()];
    for of_area in mutants.chunk_by(|a, b| a.area == b.area) {
        let by_seed = |mutant: &&&Mutant| noticed(mutant).is_some_and(|it| it.seed.is_some());
        let (all, by_seeds) = (of_area.len(), of_area.iter().filter(by_seed).count());
        lines.push(format!("## {}\n", of_area[0].area));
        lines.push(format!(
            "{all} mutants, of which seeds notice {by_seeds}.\n"
        ));
        lines.push(
            "| mutant | broken rule | noticed by | first seed |\n|---|---|---|---|".to_owned(),
        );
        lines.extend(of_area.iter().map(|mutant| row(mutant, noticed(mutant))));
        lines.push(String::new());
    }
    lines.join("\n")
}

fn row(mutant: &Mutant, noticed: Option<&Noticed>) -> String {
    let by = noticed.map_or("**nothing**, or it did not run", |noticed| &noticed.by);
    let seed = noticed.map_or_else(String::new, Noticed::first_seed);
    let (name, rule) = (&mutant.name, &mutant.rule);
    format!("| `{name}` | {rule} | {by} | {seed} |")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::list;

    #[test]
    fn every_mutant_was_run_and_noticed() {
        let (all, results) = (list::read().unwrap(), Results::read().unwrap());
        for Mutant { name, .. } in &all {
            assert!(
                results.core.contains_key(name),
                "`cargo xtask mutants --only {name}` runs a new mutant"
            );
        }
        assert_eq!(
            results.core.len(),
            all.len(),
            "delete the results of mutants that are gone: {}",
            crate::mutants::results::FILE
        );
    }
}

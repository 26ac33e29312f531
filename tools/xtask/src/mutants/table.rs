//! Writes the report of all mutants: how many of each area are noticed, and by what; then each of them.

use super::list::Mutant;
use super::results::{Noticed, Results};

/// The area of the mutants that are no patches of the core.
pub(crate) const ADAPTER: &str = "adapter";

/// The area, the name and the rule of a mutant, and its result; `None` if it was never run.
type Row<'a> = (&'a str, &'a str, &'a str, Option<&'a Noticed>);

fn line((_, name, rule, noticed): &Row) -> String {
    let by = noticed.map_or("**not run**", |noticed| &noticed.by);
    let seed = noticed.map_or_else(String::new, Noticed::first_seed);
    format!("| `{name}` | {rule} | {by} | {seed} |")
}

/// Returns the counts of each area's mutants, and all of them with their rules.
pub(crate) fn list(mutants: &[&Mutant], results: &Results) -> String {
    let mut lines = vec!["# Mutants\n".to_owned()];
    for of_area in rows(mutants, results).chunk_by(|a, b| a.0 == b.0) {
        let seeds = of_area.iter().filter_map(|(.., noticed)| (*noticed)?.seed);
        let (area, all, by_seeds) = (of_area[0].0, of_area.len(), seeds.count());
        lines.push(format!(
            "## {area}\n\n{all} mutants, of which seeds notice {by_seeds}.\n\n\
             | mutant | broken rule | noticed by | first seed |\n|---|---|---|---|"
        ));
        lines.extend(of_area.iter().map(line));
        lines.push(String::new());
    }
    lines.join("\n")
}

fn rows<'a>(mutants: &[&'a Mutant], results: &'a Results) -> Vec<Row<'a>> {
    let adapter = results.adapter.iter().map(|(name, noticed)| {
        let rule = noticed.rule.as_deref().unwrap_or_default();
        (ADAPTER, name.as_str(), rule, Some(noticed))
    });
    let core = mutants.iter().map(|mutant| {
        let noticed = results.core.get(&mutant.name);
        (&*mutant.area, &*mutant.name, &*mutant.rule, noticed)
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
        for (_, name, _, noticed) in rows(&mutants, &results) {
            let is_noticed = noticed.is_some_and(Noticed::is_by_somebody);
            assert!(is_noticed, "`{name}`: {noticed:?}: {remedy}");
        }
        assert_eq!(
            results.core.len(),
            mutants.len(),
            "delete the results of mutants that are gone: {}",
            crate::mutants::results::FILE
        );
    }
}

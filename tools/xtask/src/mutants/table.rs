//! Writes the report of all mutants: how many of each area are noticed, and by what; then each of them.

use std::fmt::Write as _;

use super::list::Mutant;
use super::results::{Noticed, Results};
use super::trial::FIRST;

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
    fn seed(&self) -> Option<u64> {
        self.noticed?.seed
    }

    /// Returns the column of [`counts`] that counts this mutant.
    fn column(&self) -> usize {
        match self.noticed {
            Some(Noticed { seed: None, .. }) | None => 3,
            Some(Noticed { seed, .. }) if *seed > Some(FIRST) => 4,
            Some(Noticed { challenges, .. }) => 1 + usize::from(*challenges),
        }
    }

    fn line(&self) -> String {
        let by = self.noticed.map_or("**not run**", |noticed| &noticed.by);
        let seed = self.noticed.map_or_else(String::new, Noticed::first_seed);
        let (name, rule) = (self.name, self.rule);
        format!("| `{name}` | {rule} | {by} | {seed} |\n")
    }
}

const COLUMNS: &str = "| mutant | broken rule | noticed by | first seed |\n|---|---|---|---|\n";

/// Returns the counts of these mutants, and all of them with their rules, by area.
pub(crate) fn list(mutants: &[Mutant], results: &Results) -> String {
    let rows = rows(mutants, results);
    let mut text = format!("# Mutants\n\n{}\n{}", counts(&rows), late(&rows));
    let mut area = "";
    for row in rows {
        if row.area != area {
            area = row.area;
            // Writing to a String cannot fail.
            let _ = write!(text, "\n## {area}\n\n{COLUMNS}");
        }
        text += &row.line();
    }
    text
}

fn rows<'a>(mutants: &'a [Mutant], results: &'a Results) -> Vec<Row<'a>> {
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

/// Counts the mutants of each area, and the checks that notice them.
fn counts(rows: &[Row]) -> String {
    let mut text = format!(
        "| area | mutants | noticed by one of the first {FIRST} seeds | by one of them only with challenges | by a test | only by a later seed |\n"
    );
    text += "|---|---|---|---|---|---|\n";
    let mut sum = [0; 5];
    for of_area in rows.chunk_by(|a, b| a.area == b.area) {
        let mut counts = [of_area.len(), 0, 0, 0, 0];
        for row in of_area {
            counts[row.column()] += 1;
        }
        text += &line(of_area[0].area, counts);
        for (sum, count) in sum.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    text + &line("**all**", sum)
}

fn line(area: &str, [all, first, challenged, tests, late]: [usize; 5]) -> String {
    format!("| {area} | {all} | {first} | {challenged} | {tests} | {late} |\n")
}

/// Lists the mutants that no test notices, and no early seed.
fn late(rows: &[Row]) -> String {
    let late = rows.iter().filter(|row| row.seed() > Some(FIRST));
    let head = format!("No test notices these, and none of the first {FIRST} seeds:\n\n{COLUMNS}");
    late.fold(head, |text, row| text + &row.line())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::list;

    #[test]
    fn every_mutant_was_run_and_noticed() {
        let (mutants, results) = (list::read().unwrap(), Results::read().unwrap());
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

    #[test]
    fn seeds_and_tests_are_counted_by_area() {
        let by_seed =
            |by: &str, seed, challenges| Noticed::by_seed(by.to_owned(), seed, challenges);
        let noticed = [
            by_seed("I1", 7, false),
            by_seed("I1", 999, true),
            Noticed::by_test("`a`".to_owned()),
            by_seed("I4", 1000, false),
        ];
        let row = |(noticed, area)| Row {
            name: "n",
            area,
            rule: "r",
            noticed: Some(noticed),
        };
        let rows: Vec<_> = noticed.iter().zip(["a", "a", "a", "b"]).map(row).collect();
        let lines: Vec<_> = counts(&rows).lines().skip(2).map(str::to_owned).collect();
        assert_eq!(
            lines,
            [
                "| a | 3 | 1 | 1 | 1 | 0 |",
                "| b | 1 | 0 | 0 | 0 | 1 |",
                "| **all** | 4 | 1 | 1 | 1 | 1 |"
            ]
        );
        assert_eq!(
            late(&rows).lines().skip(4).collect::<Vec<_>>(),
            ["| `n` | r | I4 | 1000 |"]
        );
    }
}

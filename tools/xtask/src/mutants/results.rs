//! Keeps the check that noticed each mutant at its last run, in `tools/sim/noticed.toml`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::list::Mutant;
use crate::setup;

/// The file, from the workspace's folder.
pub(crate) const FILE: &str = "tools/sim/noticed.toml";

const HEAD: &str = "\
# Who noticed each mutant when it last ran: the invariant that a seed broke, and the number of that seed, with `--challenges` if
# `challenges` is true; or a test, where no seed noticed. `cargo xtask mutants` writes this file, `cargo xtask mutants --list`
# prints it with the rules.
";

/// The check that noticed a mutant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Noticed {
    /// The invariant or the test.
    pub(crate) by: String,
    /// The first seed that noticed the mutant, if one did.
    pub(crate) seed: Option<u64>,
    /// True if the sessions of that seed's story allow challenges.
    #[serde(default)]
    pub(crate) challenges: bool,
    /// The rule of a mutant of the adapter, because `mutants.toml` does not contain it.
    pub(crate) rule: Option<String>,
}

/// The results by the mutants' names.
pub(crate) type Rows = BTreeMap<String, Noticed>;

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Results {
    /// Mutants of the adapter between the core and the simulated etcd.
    pub(crate) adapter: Rows,
    /// Writes the file, without mutants that no longer exist.
    pub(crate) core: Rows,
}

impl Results {
    pub(crate) fn read() -> Result<Self> {
        let text = std::fs::read_to_string(setup::root().join(FILE)).context(FILE)?;
        toml::from_str(&text).context(FILE)
    }

    /// Returns true if a check has noticed the mutant.
    pub(crate) fn is_noticed(&self, mutant: &Mutant) -> bool {
        let noticed = self.core.get(&mutant.name);
        noticed.is_some_and(Noticed::is_by_somebody)
    }

    /// Writes the file, without mutants that are gone.
    pub(crate) fn write(&mut self, mutants: &[Mutant]) -> Result<()> {
        let there = |name: &String| mutants.iter().any(|mutant| mutant.name == *name);
        self.core.retain(|name, _| there(name));
        std::fs::write(setup::root().join(FILE), self.text()).context(FILE)
    }

    fn text(&self) -> String {
        let mut text = HEAD.to_owned();
        for (table, rows) in [("adapter", &self.adapter), ("core", &self.core)] {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "\n[{table}]");
            for (name, noticed) in rows {
                let _ = writeln!(text, "{name} = {}", noticed.inline());
            }
        }
        text
    }
}

impl Noticed {
    pub(crate) fn by_test(by: String) -> Self {
        Self {
            by,
            ..Self::default()
        }
    }

    /// Returns the result of a mutant that no check noticed.
    pub(crate) fn by_nobody() -> Self {
        Self::by_test("**nobody**".to_owned())
    }

    pub(crate) fn is_by_somebody(&self) -> bool {
        !self.by.starts_with("**")
    }

    /// Formats the seed for a table: empty if a test noticed the mutant.
    pub(crate) fn first_seed(&self) -> String {
        let challenges = if self.challenges {
            " with challenges"
        } else {
            ""
        };
        let seed = self.seed.map(|seed| format!("{seed}{challenges}"));
        seed.unwrap_or_default()
    }

    fn inline(&self) -> String {
        let string = |text: &str| toml::Value::from(text).to_string();
        let mut fields = vec![format!("by = {}", string(&self.by))];
        fields.extend(self.seed.map(|seed| format!("seed = {seed}")));
        fields.extend(self.challenges.then(|| "challenges = true".to_owned()));
        let rule = self.rule.as_deref();
        fields.extend(rule.map(|rule| format!("rule = {}", string(rule))));
        format!("{{ {} }}", fields.join(", "))
    }
}

/// Reads the rows of the simulator's table of the adapter's mutants.
pub(crate) fn of_adapter(table: &str) -> Rows {
    let row = |line: &str| {
        let row = line.strip_prefix("| `")?.strip_suffix(" |")?;
        let (name, row) = row.split_once("` | ")?;
        let (rule, row) = row.split_once(" | ")?;
        let (by, seed) = row.rsplit_once(" | ")?;
        let noticed = Noticed {
            rule: Some(rule.to_owned()),
            seed: seed.parse().ok(),
            ..Noticed::by_test(by.to_owned())
        };
        Some((name.to_owned(), noticed))
    };
    table.lines().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_as_they_are_written() {
        let table = "\
| mutation | rule that is broken | caught by | seeds needed |
|---|---|---|---|
| `one` | a \"rule\" | I1 (overlap) | 5 |
";
        let adapter = of_adapter(table);
        assert_eq!(adapter["one"].rule.as_deref(), Some("a \"rule\""));
        assert_eq!(adapter["one"].seed, Some(5));
        let two = Noticed::by_test("`a::b` and 2 more".to_owned());
        let three = Noticed {
            by: "I4 (seniority)".to_owned(),
            seed: Some(7),
            challenges: true,
            rule: None,
        };
        let core = Rows::from([("two".to_owned(), two), ("three".to_owned(), three)]);
        let results = Results { adapter, core };
        let read: Results = toml::from_str(&results.text()).unwrap();
        assert_eq!(read, results);
        assert_eq!(read.core["two"].first_seed(), "");
        assert_eq!(read.core["three"].first_seed(), "7 with challenges");
    }
}

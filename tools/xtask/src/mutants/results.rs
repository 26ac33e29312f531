//! Keeps the check that noticed each mutant at its last run, in `tools/sim/noticed.toml`.

use std::collections::BTreeMap;

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
}

/// The results by the mutants' names.
pub(crate) type Rows = BTreeMap<String, Noticed>;

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Results {
    pub(crate) core: Rows,
}

impl Results {
    pub(crate) fn read() -> Result<Self> {
        let text = std::fs::read_to_string(setup::root().join(FILE)).context(FILE)?;
        toml::from_str(&text).context(FILE)
    }

    /// Keeps what noticed a mutant, if anything did, and writes the file, without mutants that are gone.
    pub(crate) fn note(
        &mut self,
        name: &str,
        noticed: Option<Noticed>,
        mutants: &[Mutant],
    ) -> Result<()> {
        self.core.remove(name);
        self.core
            .extend(noticed.map(|noticed| (name.to_owned(), noticed)));
        let there = |name: &String| mutants.iter().any(|mutant| mutant.name == *name);
        self.core.retain(|name, _| there(name));
        std::fs::write(setup::root().join(FILE), self.text()).context(FILE)
    }

    fn text(&self) -> String {
        let row = |(name, noticed): (&String, &Noticed)| format!("{name} = {}", noticed.inline());
        let rows: Vec<_> = self.core.iter().map(row).collect();
        format!("{HEAD}\n[core]\n{}\n", rows.join("\n"))
    }
}

impl Noticed {
    pub(crate) fn by_test(by: String) -> Self {
        Self {
            by,
            ..Self::default()
        }
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
        format!("{{ {} }}", fields.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_as_they_are_written() {
        let two = Noticed::by_test("`a::b` and 2 more".to_owned());
        let three = Noticed {
            by: "I4 (seniority)".to_owned(),
            seed: Some(7),
            challenges: true,
        };
        let core = Rows::from([("two".to_owned(), two), ("three".to_owned(), three)]);
        let results = Results { core };
        let read: Results = toml::from_str(&results.text()).unwrap();
        assert_eq!(read, results);
        assert_eq!(read.core["two"].first_seed(), "");
        assert_eq!(read.core["three"].first_seed(), "7 with challenges");
    }
}

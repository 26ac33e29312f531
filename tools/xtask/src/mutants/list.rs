//! Reads `tools/sim/mutants.toml`, the rules of the core that are broken on purpose, each as a patch of its source; and keeps the check
//! that noticed each at its last run, in `tools/sim/noticed.toml`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use toml::ser::ValueSerializer;

use crate::setup;

/// The files, from the workspace's folder.
pub(crate) const FILE: &str = "tools/sim/mutants.toml";
const NOTICED: &str = "tools/sim/noticed.toml";
const HEAD: &str = "\
# Who noticed each mutant when it last ran: the invariant that a seed broke, and the number of that seed, with `--challenges` if
# `challenges` is true; or a test, where no seed noticed. `cargo xtask mutants` writes this file, `cargo xtask mutants --list`
# prints it with the rules.

[core]
";

/// A rule, and the change of the source that breaks it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mutant {
    pub(crate) name: String,
    /// The fault of the patched code, in a sentence.
    pub(crate) rule: String,
    /// The part of the core under which the table lists it.
    pub(crate) area: String,
    /// The source file, from the workspace's folder.
    pub(crate) file: String,
    /// The text that is replaced; it occurs exactly once in the file.
    pub(crate) from: String,
    /// The text that replaces it.
    pub(crate) to: String,
    /// The most faults of the stories that must notice it (`simulate --every`), if they must.
    pub(crate) stories: Option<u8>,
}

#[derive(Deserialize)]
struct List {
    mutant: Vec<Mutant>,
}

impl Mutant {
    /// Checks that the patch applies exactly once to the text of its file, and changes something.
    pub(crate) fn check(&self, text: &str) -> Result<()> {
        let times = text.matches(&self.from).count();
        let name = &self.name;
        ensure!(times == 1, "`{name}` applies {times} times: {}", self.from);
        ensure!(self.from != self.to, "`{name}` changes nothing");
        Ok(())
    }

    /// Returns the text of its file.
    pub(crate) fn source(&self) -> Result<String> {
        fs::read_to_string(setup::root().join(&self.file)).context(self.file.clone())
    }
}

/// Reads all mutants, in the order of the file.
pub(crate) fn read() -> Result<Vec<Mutant>> {
    let text = fs::read_to_string(setup::root().join(FILE)).context(FILE)?;
    let list: List = toml::from_str(&text).context(FILE)?;
    Ok(list.mutant)
}

/// The check that noticed a mutant.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Noticed {
    /// The invariant or the test.
    pub(crate) by: String,
    /// The first seed that noticed the mutant, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seed: Option<u64>,
    /// True if the sessions of that seed's story allow challenges.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) challenges: bool,
}

/// The results by the mutants' names.
#[derive(Debug, Deserialize)]
pub(crate) struct Results {
    pub(crate) core: BTreeMap<String, Noticed>,
}

impl Results {
    pub(crate) fn read() -> Result<Self> {
        let text = fs::read_to_string(setup::root().join(NOTICED)).context(NOTICED)?;
        toml::from_str(&text).context(NOTICED)
    }

    /// Keeps what noticed a mutant, if anything did, and writes the file, without mutants that are gone.
    pub(crate) fn note(
        &mut self,
        name: &str,
        noticed: Option<Noticed>,
        mutants: &[Mutant],
    ) -> Result<()> {
        self.core.remove(name);
        let noticed = noticed.map(|noticed| (name.to_owned(), noticed));
        self.core.extend(noticed);
        let is_there = |name: &String| mutants.iter().any(|mutant| mutant.name == *name);
        self.core.retain(|name, _| is_there(name));
        fs::write(setup::root().join(NOTICED), self.text()?).context(NOTICED)
    }

    fn text(&self) -> Result<String> {
        let mut text = HEAD.to_owned();
        for (name, noticed) in &self.core {
            let mut row = String::new();
            noticed.serialize(ValueSerializer::new(&mut row))?;
            writeln!(text, "{name} = {row}")?;
        }
        Ok(text)
    }
}

impl Noticed {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_patch_applies_exactly_once_to_the_core_outside_its_tests() {
        let (mut names, mut areas) = (BTreeSet::new(), Vec::new());
        for mutant in read().unwrap() {
            let text = mutant.source().unwrap();
            mutant.check(&text).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap();
            let is_outside = code.contains(&mutant.from);
            let is_of_core = mutant.file.starts_with("crates/eldest-core/src/");
            assert!(is_outside && is_of_core, "{}", mutant.name);
            assert!(names.insert(mutant.name.clone()), "two {}", mutant.name);
            if areas.last() != Some(&mutant.area) {
                assert!(!areas.contains(&mutant.area), "{} is not", mutant.name);
                areas.push(mutant.area);
            }
        }
    }

    #[test]
    fn every_mutant_was_run_and_noticed() {
        let results = Results::read().unwrap();
        let noticed: BTreeSet<_> = results.core.keys().cloned().collect();
        let all = read().unwrap().into_iter().map(|mutant| mutant.name);
        let all: BTreeSet<_> = all.collect();
        let differ: Vec<_> = all.symmetric_difference(&noticed).collect();
        assert!(
            differ.is_empty(),
            "{differ:?}: `cargo xtask mutants --only NAME` runs a new one; delete the results of one that is gone in {NOTICED}"
        );
        let kept = fs::read_to_string(setup::root().join(NOTICED)).unwrap();
        assert_eq!(results.text().unwrap(), kept);
    }
}

//! Reads `tools/sim/mutants.toml`: the rules of the core that are broken on purpose, each as a patch of its source.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::setup;

/// The file, from the workspace's folder.
pub(crate) const FILE: &str = "tools/sim/mutants.toml";

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
    /// Returns the mutated text of the file.
    pub(crate) fn patched(&self, text: &str) -> Result<String> {
        let times = text.matches(&self.from).count();
        ensure!(
            times == 1,
            "the mutant `{}` applies {times} times to {}: {:?}",
            self.name,
            self.file,
            self.from
        );
        Ok(text.replacen(&self.from, &self.to, 1))
    }
}

/// Reads all mutants, in the order of the file.
pub(crate) fn read() -> Result<Vec<Mutant>> {
    let text = std::fs::read_to_string(setup::root().join(FILE)).context(FILE)?;
    let list: List = toml::from_str(&text).context(FILE)?;
    Ok(list.mutant)
}

/// Returns the text of a source file below `folder`.
pub(crate) fn source(folder: &Path, mutant: &Mutant) -> Result<String> {
    let path = folder.join(&mutant.file);
    std::fs::read_to_string(&path).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_patch_applies_exactly_once_and_changes_something() {
        let mutants = read().unwrap();
        let wrong = mutants.iter().filter_map(|mutant| {
            let text = source(setup::root(), mutant).unwrap();
            match mutant.patched(&text) {
                Ok(patched) if patched == text => {
                    Some(format!("`{}` changes nothing", mutant.name))
                }
                Ok(_) => None,
                Err(error) => Some(error.to_string()),
            }
        });
        let wrong: Vec<_> = wrong.collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn patches_are_of_the_core_and_leave_its_tests_alone() {
        for mutant in read().unwrap() {
            let of_core = mutant.file.starts_with("crates/eldest-core/src/");
            assert!(of_core, "{}: {}", mutant.name, mutant.file);
            let text = source(setup::root(), &mutant).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap();
            assert!(code.contains(&mutant.from), "{}", mutant.name);
        }
    }

    #[test]
    fn names_are_unique_and_mutants_of_one_area_are_adjacent() {
        let mutants = read().unwrap();
        let (mut names, mut areas) = (BTreeSet::new(), Vec::new());
        for mutant in &mutants {
            assert!(names.insert(&mutant.name), "two are called {}", mutant.name);
            assert!(!mutant.rule.contains(['|', '\n']), "{}", mutant.name);
            if areas.last() != Some(&&mutant.area) {
                assert!(!areas.contains(&&mutant.area), "{} is not", mutant.name);
                areas.push(&mutant.area);
            }
        }
    }
}

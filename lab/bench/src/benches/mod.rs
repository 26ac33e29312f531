//! Lists all benches. Each has a module of its own, which defines its measurements and their targets.

mod handover;
mod join;
mod locks;
mod many;
mod observers;
mod takeover;
mod valid;

use anyhow::{Result, ensure};
use futures::future::BoxFuture;

use crate::options::Options;
use crate::peer::{Asked, Context};
use crate::run::Run;

/// A bench.
pub(crate) struct Bench {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// True if the bench is part of `--check`.
    pub(crate) checked: bool,
    /// Runs the measurements.
    pub(crate) run: for<'a> fn(&'a mut Run<'_>) -> BoxFuture<'a, Result<()>>,
    /// The work of a process of this bench that was started as a peer.
    pub(crate) peer: fn(Context, Asked) -> BoxFuture<'static, Result<()>>,
}

impl Bench {
    /// Returns true for the bench's name, and for the part of it before a slash.
    fn is_named(&self, name: &str) -> bool {
        let rest = self.name.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// All benches, in the order in which they run.
pub(crate) const BENCHES: &[Bench] = &[
    handover::BENCH,
    takeover::killed::BENCH,
    takeover::guarded::BENCH,
    join::BENCH,
    many::BENCH,
    observers::BENCH,
    valid::BENCH,
    locks::BENCH,
];

/// Returns the benches to run.
pub(crate) fn selected(options: &Options) -> Result<Vec<&'static Bench>> {
    let mut selected = Vec::new();
    for bench in BENCHES {
        let named = options.names.iter().any(|name| bench.is_named(name));
        if named || options.names.is_empty() && (bench.checked || !options.check) {
            selected.push(bench);
        }
    }
    for name in &options.names {
        let is_known = selected.iter().any(|bench| bench.is_named(name));
        ensure!(is_known, "there is no bench `{name}`: see --help");
    }
    Ok(selected)
}

/// Lists the benches.
pub(crate) fn help() -> String {
    BENCHES.iter().fold("Benches:".to_owned(), |text, bench| {
        text + &format!("\n  {:<16} {}", bench.name, bench.about)
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::selected;
    use crate::options::Options;

    fn names(text: &str) -> anyhow::Result<Vec<&'static str>> {
        let words = ["bench"].into_iter().chain(text.split_whitespace());
        let selected = selected(&Options::try_parse_from(words)?)?;
        Ok(selected.iter().map(|bench| bench.name).collect())
    }

    #[test]
    fn benches_are_selected_by_name_or_by_the_part_before_a_slash() {
        let takeovers = ["takeover/killed", "takeover/guarded"];
        assert_eq!(names("join --disk --members 3").unwrap(), ["join"]);
        assert_eq!(names("takeover").unwrap(), takeovers);
        assert_eq!(names("takeover/guarded").unwrap(), takeovers[1..]);
        assert!(names("--check").unwrap().len() < names("").unwrap().len());
        assert!(names("take").is_err());
        assert!(names("join --members 0").is_err());
    }
}

//! Defines the command line of the benchmarks.

use std::num::NonZeroUsize;

use clap::Parser;

/// Measures the library beside the fewest bare calls of etcd, Go's client and etcd's own services.
#[derive(Debug, Clone, Parser)]
#[command(bin_name = "cargo xtask bench")]
pub(crate) struct Options {
    /// The benches to run; all by default. `takeover` means all of which the names begin with `takeover/`
    #[arg(value_name = "BENCH")]
    pub(crate) names: Vec<String>,
    /// Take fewer samples and sizes: less than 40 s for each bench
    #[arg(long)]
    quick: bool,
    /// Run a few quick benches without other programs; exit code 1 if a figure is far from its target
    #[arg(long)]
    pub(crate) check: bool,
    /// Let etcd wait for the disk; otherwise it keeps its data in memory
    #[arg(long)]
    pub(crate) disk: bool,
    /// The number of members of etcd
    #[arg(long, default_value = "1")]
    pub(crate) members: NonZeroUsize,
    /// Measure only these of limit, eldest, go, rpc, spawned
    #[arg(long, value_delimiter = ',')]
    peers: Vec<String>,
}

impl Options {
    /// Returns true if fewer samples are enough.
    pub(crate) fn is_quick(&self) -> bool {
        self.quick || self.check
    }

    /// Returns true if a peer is to be measured.
    pub(crate) fn wants(&self, peer: &str) -> bool {
        match &self.peers[..] {
            [] => !self.check || ["limit", "eldest"].contains(&peer),
            names => names.iter().any(|name| name == peer),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::Options;

    #[test]
    fn check_measures_no_peers_of_other_projects_unless_they_are_named() {
        let wants = |text: &str, peer| {
            let words = ["bench"].into_iter().chain(text.split_whitespace());
            Options::parse_from(words).wants(peer)
        };
        assert!(wants("", "go"));
        assert!(wants("--check", "limit") && !wants("--check", "go"));
        assert!(wants("--check --peers limit,go", "go"));
        assert!(!wants("--peers limit,go", "eldest"));
    }
}

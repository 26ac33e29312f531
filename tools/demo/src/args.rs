//! Parses the command line of the demo and of its nodes.

use std::time::Duration;

use clap::{Parser, Subcommand};

/// How long etcd keeps the keys of a node that vanished.
pub(crate) const TTL: Duration = Duration::from_secs(2);
/// The election's name.
pub(crate) const ELECTION: &str = "demo";

/// Runs three nodes in one election, and checks what happens when one resigns, one is killed and one is frozen.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask demo", max_term_width = 120)]
pub(crate) struct Options {
    /// Lines instead of a live view; also chosen when the output is no terminal, or `NO_COLOR` or CI is set
    #[arg(long)]
    pub(crate) plain: bool,
    /// Runs on an etcd of your own, in a namespace of its own that is removed again; without it the demo starts an etcd in a
    /// temporary folder
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub(crate) endpoints: Option<Vec<String>>,
    #[command(subcommand)]
    pub(crate) task: Option<Task>,
}

/// The task of this process, if it is not the demo itself.
#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Runs a node; the demo starts it
    #[command(hide = true)]
    Node(Setup),
}

/// The settings of a node.
#[derive(Debug, Clone, PartialEq, clap::Args)]
pub(crate) struct Setup {
    pub(crate) name: String,
    pub(crate) namespace: String,
    /// The lease of the key for fenced writes, so that a killed demo leaves nothing in etcd.
    #[arg(allow_negative_numbers = true)]
    pub(crate) lease: i64,
    pub(crate) endpoints: Vec<String>,
}

impl Setup {
    /// Returns the arguments from which a process reads the settings again.
    pub(crate) fn args(&self) -> Vec<String> {
        let (name, namespace) = (self.name.clone(), self.namespace.clone());
        let first = ["node".to_owned(), name, namespace, self.lease.to_string()];
        first.into_iter().chain(self.endpoints.clone()).collect()
    }

    /// Returns the key of fenced writes, which is not below the election's prefix.
    pub(crate) fn written_key(&self) -> String {
        format!("{}/writes", self.namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::{Options, Parser, Setup, Task};

    #[test]
    fn a_node_parses_the_arguments_that_its_setup_makes() {
        let setup = Setup {
            name: "alice".into(),
            namespace: "demo-1".into(),
            lease: -7,
            endpoints: ["http://a:1", "http://b:2"].map(str::to_owned).into(),
        };
        let args = ["demo".to_owned()].into_iter().chain(setup.args());
        let Some(Task::Node(parsed)) = Options::parse_from(args).task else {
            panic!("no node");
        };
        assert_eq!(parsed, setup);
    }
}

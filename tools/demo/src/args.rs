//! Parses the command line of the demo and of its nodes.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// The help text: every option of the demo.
pub(crate) const USAGE: &str = "\
usage: cargo xtask demo [--plain] [--endpoints URL,URL,...]

  --plain              lines instead of a live view; also chosen when the output is no terminal,
                       or NO_COLOR or CI is set
  --endpoints URL,...  runs on an etcd of your own, in a namespace of its own that is removed again;
                       without it the demo starts an etcd in a temporary folder";

/// How long etcd keeps the keys of a node that vanished.
pub(crate) const TTL: Duration = Duration::from_secs(2);
/// The election's name.
pub(crate) const ELECTION: &str = "demo";

/// The task of this process.
#[derive(Debug, PartialEq)]
pub(crate) enum Task {
    Help,
    Demo(Options),
    Node(Setup),
}

/// The options of the command line.
#[derive(Debug, PartialEq, Default)]
pub(crate) struct Options {
    pub(crate) plain: bool,
    pub(crate) endpoints: Option<Vec<String>>,
}

/// The settings of a node.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Setup {
    pub(crate) name: String,
    pub(crate) namespace: String,
    /// The lease of the key for fenced writes, so that a killed demo leaves nothing in etcd.
    pub(crate) lease: i64,
    pub(crate) endpoints: Vec<String>,
}

impl Setup {
    /// Returns the arguments from which [`parse`] makes the settings again.
    pub(crate) fn args(&self) -> [String; 5] {
        [
            "node".to_owned(),
            self.name.clone(),
            self.namespace.clone(),
            self.lease.to_string(),
            self.endpoints.join(","),
        ]
    }

    /// Returns the key of fenced writes, which is not below the election's prefix.
    pub(crate) fn written_key(&self) -> String {
        format!("{}/writes", self.namespace)
    }
}

pub(crate) fn parse(args: &[String]) -> Result<Task> {
    if let [node, name, namespace, lease, endpoints] = args
        && node == "node"
    {
        return Ok(Task::Node(Setup {
            name: name.clone(),
            namespace: namespace.clone(),
            lease: lease.parse().context("the lease is no number")?,
            endpoints: urls(endpoints),
        }));
    }
    let mut options = Options::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--help" | "-h" => return Ok(Task::Help),
            "--plain" => options.plain = true,
            "--endpoints" => {
                let endpoints = urls(args.next().context("--endpoints wants a value")?);
                ensure!(!endpoints.is_empty(), "--endpoints names no endpoint");
                options.endpoints = Some(endpoints);
            }
            other => bail!("unknown argument: {other}"),
        }
    }
    Ok(Task::Demo(options))
}

/// Parses `a:2379,https://b:2379`; the default scheme is `http`.
fn urls(text: &str) -> Vec<String> {
    let items = text.split(',').map(str::trim).filter(|s| !s.is_empty());
    let url = |item: &str| {
        if item.contains("://") {
            item.to_owned()
        } else {
            format!("http://{item}")
        }
    };
    items.map(url).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(args: &[&str]) -> Vec<String> {
        args.iter().map(|s| (*s).to_owned()).collect()
    }

    #[test]
    fn a_node_parses_the_arguments_that_its_setup_makes() {
        let setup = Setup {
            name: "alice".into(),
            namespace: "demo-1".into(),
            lease: -7,
            endpoints: strings(&["http://a:1", "http://b:2"]),
        };
        assert_eq!(parse(&setup.args()).unwrap(), Task::Node(setup));
    }

    #[test]
    fn endpoints_are_separated_by_commas() {
        let args = strings(&["--plain", "--endpoints", "a:1, http://b:2,"]);
        let wanted = Options {
            plain: true,
            endpoints: Some(strings(&["http://a:1", "http://b:2"])),
        };
        assert_eq!(parse(&args).unwrap(), Task::Demo(wanted));
    }

    #[test]
    fn unknown_arguments_are_refused() {
        assert!(parse(&strings(&["--plane"])).is_err());
        assert!(parse(&strings(&["--endpoints"])).is_err());
        assert!(parse(&strings(&["--endpoints", ","])).is_err());
    }
}

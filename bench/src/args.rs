//! Hides the options of the benchmarks.

use anyhow::{Context, Result, bail, ensure};

use crate::benches::{BENCHES, Bench};

/// What was asked for.
pub(crate) struct Args {
    pub(crate) benches: Vec<&'static Bench>,
    /// Fewer samples and sizes: each bench takes less than 40 s.
    pub(crate) quick: bool,
    /// One JSON object per line on stdout, the table on stderr.
    pub(crate) json: bool,
    /// Fails if a ratio is far from its target; peers that need other programs are left out.
    pub(crate) check: bool,
    pub(crate) storage: Storage,
    pub(crate) members: usize,
    /// Empty: all.
    pub(crate) peers: Vec<String>,
}

/// Where etcd keeps its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Storage {
    Memory,
    /// It waits until what it wrote is there.
    Disk,
}

impl Storage {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Storage::Memory => "tmpfs",
            Storage::Disk => "disk",
        }
    }
}

impl Args {
    /// None: the help was asked for.
    pub(crate) fn parse(args: &[String]) -> Result<Option<Self>> {
        let mut parsed = Self {
            benches: Vec::new(),
            quick: false,
            json: false,
            check: false,
            storage: Storage::Memory,
            members: 1,
            peers: Vec::new(),
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} takes a value"));
            match arg.as_str() {
                "--quick" => parsed.quick = true,
                "--json" => parsed.json = true,
                "--disk" => parsed.storage = Storage::Disk,
                "--tmpfs" => parsed.storage = Storage::Memory,
                "--check" => (parsed.check, parsed.quick) = (true, true),
                "--members" => {
                    parsed.members = value()?.parse().context("--members takes a number")?;
                    ensure!([1, 3].contains(&parsed.members), "--members is 1 or 3");
                }
                "--peers" => parsed.peers = value()?.split(',').map(str::to_owned).collect(),
                "--help" | "-h" => return Ok(None),
                name => match BENCHES.iter().find(|bench| bench.name == name) {
                    Some(bench) => parsed.benches.push(bench),
                    None => bail!("there is no bench `{name}`\n{}", help()),
                },
            }
        }
        if parsed.benches.is_empty() {
            let benches = BENCHES
                .iter()
                .filter(|bench| !parsed.check || bench.checked);
            parsed.benches.extend(benches);
        }
        Ok(Some(parsed))
    }
}

pub(crate) fn help() -> String {
    let benches = BENCHES.iter().fold(String::new(), |text, bench| {
        text + &format!("  {:<16} {}\n", bench.name, bench.about)
    });
    format!(
        "cargo xtask bench [OPTION …] [BENCH …]: all benches, or those named

  --quick          fewer samples and sizes: less than 40 s for each
  --json           one JSON object per line on stdout; the table goes to stderr
  --disk           etcd waits for the disk; --tmpfs, the default, keeps its data in memory
  --members 1|3    so many members of etcd
  --peers A,B      only these of limit, eldest, go, rpc
  --check          a few quick benches; exit code 1 if a ratio is far from its target

Benches:
{benches}"
    )
}

#[cfg(test)]
mod tests {
    use super::{Args, Storage};

    fn parse(text: &str) -> anyhow::Result<Option<Args>> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        Args::parse(&words)
    }

    #[test]
    fn options_and_benches_are_understood() {
        let args = parse("handover --quick --disk --members 3 --peers limit,go");
        let args = args.unwrap().unwrap();
        assert_eq!((args.benches.len(), args.members), (1, 3));
        assert!(args.quick && args.storage == Storage::Disk && !args.json && !args.check);
        assert_eq!(args.peers, ["limit", "go"]);
        assert!(parse("").unwrap().unwrap().benches.len() > 1);
        assert!(parse("--help").unwrap().is_none());
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        assert!(parse("no-such-bench").is_err());
        assert!(parse("--members 2").is_err());
        assert!(parse("--members").is_err());
    }
}

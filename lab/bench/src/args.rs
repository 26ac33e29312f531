//! Parses the command line of the benchmarks.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use crate::benches::{BENCHES, Bench};
use crate::options::{Keep, Options, Storage};
use crate::outside;

/// The folder of the runs that docs/performance.md shows.
pub(crate) const FOLDER: &str = "docs/performance";

/// The folder for the pictures of `--profile`.
const PICTURES: &str = "target/bench";

/// The benches to run, and their options.
#[derive(Clone, Default)]
pub(crate) struct Args {
    pub(crate) benches: Vec<&'static Bench>,
    pub(crate) options: Options,
}

/// The request of a command line.
pub(crate) enum Asked {
    Help,
    /// Everything that docs/performance.md shows: every bench, and some of them with other kinds of etcd.
    All(Vec<Args>),
    /// Draw the runs of a folder.
    Plot(PathBuf),
    /// Print the external programs that the benches need, for the program that starts this one.
    Needs(Args),
    Measure(Args),
}

impl Args {
    pub(crate) fn parse(args: &[String]) -> Result<Asked> {
        if let [plot, rest @ ..] = args
            && plot == "plot"
        {
            return Self::plot(rest);
        }
        let (mut needs, mut helped, mut all) = (false, false, false);
        let mut parsed = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} takes a value"));
            match arg.as_str() {
                "--quick" => parsed.options.quick = true,
                "--json" => parsed.options.json = true,
                "--disk" => parsed.options.storage = Storage::Disk,
                "--tmpfs" => parsed.options.storage = Storage::Memory,
                "--profile" => {
                    const BUILT: bool = cfg!(feature = "profile");
                    ensure!(BUILT, "built without the feature `profile`");
                    parsed.options.profile = Some(PICTURES.into());
                }
                "--check" => (parsed.options.check, parsed.options.quick) = (true, true),
                "--members" => {
                    let members = value()?.parse().context("--members takes a number")?;
                    ensure!([1, 3].contains(&members), "--members is 1 or 3");
                    parsed.options.members = members;
                }
                "--peers" => {
                    parsed.options.peers = value()?.split(',').map(str::to_owned).collect();
                }
                "--keep" => parsed.options.keep = Some(Keep::Instead(value()?.into())),
                "--add" => parsed.options.keep = Some(Keep::Beside(value()?.into())),
                "--needs" => needs = true,
                "--help" | "-h" => helped = true,
                "all" => all = true,
                name => match BENCHES.iter().find(|bench| bench.name == name) {
                    Some(bench) => parsed.benches.push(bench),
                    None => bail!("there is no bench `{name}`\n{}", help()),
                },
            }
        }
        let chosen = !parsed.benches.is_empty();
        if !chosen {
            let wanted = |bench: &&Bench| !parsed.options.check || bench.checked;
            parsed.benches.extend(BENCHES.iter().filter(wanted));
        }
        Ok(match (helped, needs) {
            (true, false) => Asked::Help,
            (true, true) => Asked::Needs(Self::default()),
            (false, true) => Asked::Needs(parsed),
            (false, false) if all => {
                let kept = !chosen && !parsed.options.check;
                ensure!(kept, "`all` is all benches, to be kept");
                Asked::All(parsed.with_other_kinds())
            }
            (false, false) => Asked::Measure(parsed),
        })
    }

    /// Returns these arguments, and those of the runs with other kinds of etcd.
    fn with_other_kinds(mut self) -> Vec<Self> {
        self.options
            .keep
            .get_or_insert_with(|| Keep::Instead(FOLDER.into()));
        let some = BENCHES.iter().filter(|bench| bench.for_each_kind);
        let others = [1, 3].map(|members| Self {
            benches: some.clone().collect(),
            options: Options {
                storage: Storage::Disk,
                members,
                ..self.options.clone()
            },
        });
        [self].into_iter().chain(others).collect()
    }

    fn plot(rest: &[String]) -> Result<Asked> {
        match rest {
            [.., needs] if needs == "--needs" => Ok(Asked::Needs(Self::default())),
            [folder] => Ok(Asked::Plot(folder.into())),
            [] => Ok(Asked::Plot(FOLDER.into())),
            _ => bail!("plot takes a folder"),
        }
    }

    /// Returns the external programs that the benches use, without those of peers that are not selected.
    pub(crate) fn needs(&self) -> BTreeSet<&'static str> {
        let others = self.benches.iter().flat_map(|bench| bench.others);
        let wanted =
            others.filter(|name| !outside::PEERS.contains(name) || self.options.wants(name));
        let needed = wanted.flat_map(|name| match outside::needed_by(name) {
            [] => std::slice::from_ref(name),
            needed => needed,
        });
        needed.copied().collect()
    }
}

pub(crate) fn help() -> String {
    let benches = BENCHES.iter().fold(String::new(), |text, bench| {
        text + &format!("  {:<16} {}\n", bench.name, bench.about)
    });
    format!(
        "cargo xtask bench [OPTION …] [BENCH …]: all benches, or those named
cargo xtask bench all [OPTION …]: all benches, some of them also on disk and with three members; kept, and drawn
cargo xtask bench plot [FOLDER]: draw what --keep left there ({FOLDER}), and write the tables of all figures

  --quick          fewer samples and sizes: less than 40 s for each
  --json           one JSON object per line on stdout; the table goes to stderr
  --disk           etcd waits for the disk; --tmpfs, the default, keeps its data in memory
  --members 1|3    so many members of etcd
  --peers A,B      only these of limit, eldest, go, rpc, etcdctl, kazoo, keys, guarded
  --keep FOLDER    write the JSON, the table and what machine it was into this folder too
  --add FOLDER     the same, but what other benches measured stays there
  --install-peers  fetch what kazoo and its ZooKeeper need, which is not done otherwise (packages of Debian and one of
                   Python, below target/; nothing is installed)
  --profile        the library's processes sample what they do, which {PICTURES}/NAME.flame.svg shows; they are slower
  --check          a few quick benches; exit code 1 if a ratio is far from its target

Benches:
{benches}"
    )
}

#[cfg(test)]
mod tests {
    use super::{Args, Asked, Storage};

    fn ask(text: &str) -> anyhow::Result<Asked> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        Args::parse(&words)
    }

    fn parse(text: &str) -> Args {
        match ask(text).unwrap() {
            Asked::Measure(args) | Asked::Needs(args) => args,
            _ => panic!("{text} asks for something else"),
        }
    }

    #[test]
    fn options_and_benches_are_understood() {
        let args = parse("handover --quick --disk --members 3 --peers limit,go");
        assert_eq!((args.benches.len(), args.options.members), (1, 3));
        let options = args.options;
        assert!(options.quick && options.storage == Storage::Disk);
        assert!(!options.json && !options.check);
        assert_eq!(options.peers, ["limit", "go"]);
        assert!(parse("").benches.len() > 1);
        assert!(matches!(ask("--help").unwrap(), Asked::Help));
    }

    #[test]
    fn all_is_kept_and_has_other_kinds_of_etcd() {
        let Asked::All(runs) = ask("all --quick").unwrap() else {
            panic!("not all");
        };
        let kinds: Vec<_> = runs
            .iter()
            .map(|run| (run.options.storage, run.options.members))
            .collect();
        let (memory, disk) = (Storage::Memory, Storage::Disk);
        assert_eq!(kinds, [(memory, 1), (disk, 1), (disk, 3)]);
        assert!(
            runs.iter()
                .all(|run| run.options.quick && run.options.keep.is_some())
        );
        assert!(runs[1].benches.len() > 1 && runs[1].benches.len() < runs[0].benches.len());
        assert!(ask("all join").is_err());
    }

    #[test]
    fn only_used_programs_are_needed() {
        let needs = |text| Vec::from_iter(parse(text).needs());
        assert!(needs("valid --needs").is_empty());
        assert_eq!(needs("join --peers eldest,kazoo"), ["kazoo", "zookeeper"]);
        assert_eq!(needs("many"), ["go"]);
        assert_eq!(needs("supervised --peers limit"), ["command"]);
        assert!(needs("--check").is_empty());
        assert!(needs("--help --needs").is_empty());
    }

    #[test]
    fn unknown_arguments_are_refused() {
        assert!(ask("no-such-bench").is_err());
        assert!(ask("--members 2").is_err());
        assert!(ask("--members").is_err());
    }
}

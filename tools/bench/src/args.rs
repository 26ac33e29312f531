//! Parses the command line of the benchmarks.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::benches::{BENCHES, Bench};
use crate::outside;

/// Where the runs are that docs/performance.md shows.
pub(crate) const FOLDER: &str = "docs/performance";

/// Where the pictures of `--profile` are left.
const PICTURES: &str = "target/bench";

/// What was asked for.
#[derive(Clone)]
pub(crate) struct Args {
    pub(crate) benches: Vec<&'static Bench>,
    /// Fewer samples and sizes: each bench takes less than 40 s.
    pub(crate) quick: bool,
    /// One JSON object per line on stdout, the table on stderr.
    pub(crate) json: bool,
    /// Fails if a ratio is far from its target; peers that need other programs are left out.
    pub(crate) check: bool,
    /// Processes of the library sample what they do, for a picture in this folder.
    pub(crate) profile: Option<PathBuf>,
    pub(crate) storage: Storage,
    pub(crate) members: usize,
    /// Empty: all.
    pub(crate) peers: Vec<String>,
    /// Where the figures are kept.
    pub(crate) keep: Option<Keep>,
}

/// In which folder, and what becomes of what is kept there of a run with such an etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Keep {
    Instead(PathBuf),
    /// What other benches measured stays.
    Beside(PathBuf),
}

impl Keep {
    pub(crate) fn folder(&self) -> &Path {
        let (Keep::Instead(folder) | Keep::Beside(folder)) = self;
        folder
    }
}

/// What a command line asks for.
pub(crate) enum Asked {
    Help,
    /// All that docs/performance.md shows: every bench, and some of them with other kinds of etcd.
    All(Vec<Args>),
    /// Draw what a folder keeps.
    Plot(PathBuf),
    /// Which programs of others are needed for it: for whoever starts this one.
    Needs(Args),
    Measure(Args),
}

impl Default for Args {
    fn default() -> Self {
        Self {
            benches: Vec::new(),
            quick: false,
            json: false,
            check: false,
            profile: None,
            storage: Storage::Memory,
            members: 1,
            peers: Vec::new(),
            keep: None,
        }
    }
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
                "--quick" => parsed.quick = true,
                "--json" => parsed.json = true,
                "--disk" => parsed.storage = Storage::Disk,
                "--tmpfs" => parsed.storage = Storage::Memory,
                "--profile" => {
                    ensure!(
                        cfg!(feature = "profile"),
                        "built without the feature `profile`"
                    );
                    parsed.profile = Some(PICTURES.into());
                }
                "--check" => (parsed.check, parsed.quick) = (true, true),
                "--members" => {
                    parsed.members = value()?.parse().context("--members takes a number")?;
                    ensure!([1, 3].contains(&parsed.members), "--members is 1 or 3");
                }
                "--peers" => parsed.peers = value()?.split(',').map(str::to_owned).collect(),
                "--keep" => parsed.keep = Some(Keep::Instead(value()?.into())),
                "--add" => parsed.keep = Some(Keep::Beside(value()?.into())),
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
            let benches = BENCHES
                .iter()
                .filter(|bench| !parsed.check || bench.checked);
            parsed.benches.extend(benches);
        }
        Ok(match (helped, needs) {
            (true, false) => Asked::Help,
            (true, true) => Asked::Needs(Self::default()),
            (false, true) => Asked::Needs(parsed),
            (false, false) if all => {
                ensure!(!chosen && !parsed.check, "`all` is all benches, to be kept");
                Asked::All(parsed.with_other_kinds())
            }
            (false, false) => Asked::Measure(parsed),
        })
    }

    /// This, and what is run with other kinds of etcd too.
    fn with_other_kinds(mut self) -> Vec<Self> {
        self.keep
            .get_or_insert_with(|| Keep::Instead(FOLDER.into()));
        let some = BENCHES.iter().filter(|bench| bench.for_each_kind);
        let others = [1, 3].map(|members| Self {
            benches: some.clone().collect(),
            storage: Storage::Disk,
            members,
            ..self.clone()
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

    /// Whether a peer is to be measured.
    pub(crate) fn wants(&self, peer: &str) -> bool {
        let ours = ["limit", "keys", "guarded", "eldest"].contains(&peer);
        let named = self.peers.iter().any(|named| named == peer);
        named || (self.peers.is_empty() && (ours || !self.check))
    }

    /// The programs of others that the benches use, without those of peers that are not wanted.
    pub(crate) fn needs(&self) -> BTreeSet<&'static str> {
        let others = self.benches.iter().flat_map(|bench| bench.others);
        let wanted = others.filter(|name| !outside::PEERS.contains(name) || self.wants(name));
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
cargo xtask bench plot [FOLDER]: draw what --keep left there ({FOLDER})

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
        assert_eq!((args.benches.len(), args.members), (1, 3));
        assert!(args.quick && args.storage == Storage::Disk && !args.json && !args.check);
        assert_eq!(args.peers, ["limit", "go"]);
        assert!(parse("").benches.len() > 1);
        assert!(matches!(ask("--help").unwrap(), Asked::Help));
    }

    #[test]
    fn all_is_kept_and_has_other_kinds_of_etcd() {
        let Asked::All(runs) = ask("all --quick").unwrap() else {
            panic!("not all");
        };
        let kinds: Vec<_> = runs.iter().map(|run| (run.storage, run.members)).collect();
        let (memory, disk) = (Storage::Memory, Storage::Disk);
        assert_eq!(kinds, [(memory, 1), (disk, 1), (disk, 3)]);
        assert!(runs.iter().all(|run| run.quick && run.keep.is_some()));
        assert!(runs[1].benches.len() > 1 && runs[1].benches.len() < runs[0].benches.len());
        assert!(ask("all join").is_err());
    }

    #[test]
    fn only_what_is_used_is_needed() {
        let needs = |text| Vec::from_iter(parse(text).needs());
        assert!(needs("valid --needs").is_empty());
        assert_eq!(needs("join --peers eldest,kazoo"), ["kazoo", "zookeeper"]);
        assert_eq!(needs("many"), ["go"]);
        assert_eq!(needs("supervised --peers limit"), ["command"]);
        assert!(needs("--check").is_empty());
        assert!(needs("--help --needs").is_empty());
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        assert!(ask("no-such-bench").is_err());
        assert!(ask("--members 2").is_err());
        assert!(ask("--members").is_err());
    }
}

//! Keeps a run in a folder: its figures as the printed JSON, its table, and a description of the machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::options::{Keep, Options, Storage};

/// The beginning of the lines that repeat, at the end of a run, the missed targets.
pub(crate) const MISSED: &str = "NOT REACHED: ";

/// The peers that have a curve and a column of their own.
pub(crate) const PEERS: [&str; 6] = ["limit", "eldest", "go", "rpc", "etcdctl", "kazoo"];

/// One figure, in the shape that `--json` prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Line {
    /// The bench; after a slash the measurement, where a bench makes more than one.
    pub(crate) bench: String,
    pub(crate) peer: String,
    pub(crate) n: usize,
    pub(crate) unit: String,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) samples: usize,
    pub(crate) ratio_to_limit: Option<f64>,
    pub(crate) ratio_to_go: Option<f64>,
}

/// The time, the machine and the circumstances of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct About {
    pub(crate) begun: String,
    pub(crate) seconds: u64,
    pub(crate) command: String,
    pub(crate) optimised: bool,
    pub(crate) members: usize,
    pub(crate) storage: String,
    pub(crate) processors: usize,
    pub(crate) processor: String,
    pub(crate) kernel: String,
    /// The load of the whole machine, that is the number of runnable tasks, at the beginning and at the end.
    pub(crate) load: [f64; 2],
}

impl About {
    fn machine(&self) -> String {
        format!("{} x {}, {}", self.processors, self.processor, self.kernel)
    }
}

/// Collects a run.
pub(crate) struct Keeping {
    start: Instant,
    about: About,
    table: String,
    lines: String,
}

impl Keeping {
    pub(crate) fn start(options: &Options) -> Self {
        let mut words: Vec<String> = std::env::args().skip(1).collect();
        words.insert(0, "cargo xtask bench".to_owned());
        let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let mut cpus = cpus
            .lines()
            .filter_map(|line| line.strip_prefix("model name"));
        let processor = cpus.next().unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            start: Instant::now(),
            about: About {
                begun: jiff::Timestamp::now().strftime("%F %H:%M UTC").to_string(),
                seconds: 0,
                command: words.join(" "),
                optimised: !cfg!(debug_assertions),
                members: options.members,
                storage: options.storage.name().to_owned(),
                processors: std::thread::available_parallelism().map_or(0, usize::from),
                processor: processor.trim_start_matches([' ', '\t', ':']).to_owned(),
                kernel: kernel.trim().to_owned(),
                load: [load(), 0.0],
            },
            table: String::new(),
            lines: String::new(),
        }
    }

    pub(crate) fn say(&mut self, text: &str) {
        self.table += text;
        self.table.push('\n');
    }

    pub(crate) fn line(&mut self, line: &str) {
        self.lines += line;
        self.lines.push('\n');
    }

    /// Writes the whole run.
    pub(crate) fn finish(mut self, keep: &Keep) -> Result<()> {
        let folder = keep.folder();
        self.about.seconds = self.start.elapsed().as_secs();
        self.about.load[1] = load();
        fs::create_dir_all(folder)?;
        let name = name(&self.about.storage, self.about.members);
        let earlier = folder.join(format!("{name}.jsonl"));
        if matches!(keep, Keep::Beside(_)) && earlier.exists() {
            self = self.after(read_one(&earlier)?)?;
        }
        let about = serde_json::to_string_pretty(&self.about)?;
        for (ending, text) in [
            ("jsonl", self.lines),
            ("txt", self.table),
            ("about.json", about + "\n"),
        ] {
            let path = folder.join(format!("{name}.{ending}"));
            fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    }

    /// Merges two runs; of a bench that is in both, the figures of this one count.
    fn after(self, mut earlier: Kept) -> Result<Self> {
        let again = self.lines.lines().map(serde_json::from_str::<Line>);
        let again = again.map(|line| Ok(first_word(&line?.bench).to_owned()));
        earlier.forget(&again.collect::<Result<_>>()?);
        let mut lines = String::new();
        for line in &earlier.lines {
            lines += &serde_json::to_string(line)?;
            lines.push('\n');
        }
        let (one, other) = (earlier.about, self.about);
        // The header of the merged run describes the machine of all benches but these.
        let added = if one.machine() == other.machine() {
            other.begun
        } else {
            format!("{}, on {}", other.begun, other.machine())
        };
        Ok(Self {
            start: self.start,
            about: About {
                seconds: one.seconds + other.seconds,
                command: format!("{}; {} ({added})", one.command, other.command),
                load: [one.load[0], other.load[1]],
                ..one
            },
            table: earlier.table + &self.table,
            lines: lines + &self.lines,
        })
    }
}

/// Names the files of a run.
fn name(storage: &str, members: usize) -> String {
    format!("{storage}-{members}")
}

/// Returns the bench without the name of its measurement.
fn first_word(bench: &str) -> &str {
    bench.split('/').next().unwrap_or(bench)
}

/// A kept run.
pub(crate) struct Kept {
    pub(crate) about: About,
    pub(crate) lines: Vec<Line>,
    /// The table that was printed for people.
    pub(crate) table: String,
}

impl Kept {
    /// Returns the kind of etcd of the run.
    pub(crate) fn kind(&self) -> String {
        let place = if self.about.storage == "disk" {
            "on disk"
        } else {
            "in memory"
        };
        format!("{place}, {}", self.about.members)
    }

    /// Removes the figures and the printed lines of those benches.
    fn forget(&mut self, benches: &BTreeSet<String>) {
        let named = |text: &str| {
            let bench = text.split([' ', ':']).next().unwrap_or(text);
            benches.contains(first_word(bench))
        };
        self.lines.retain(|line| !named(&line.bench));
        let (mut table, mut forgets, mut begins) = (String::new(), false, false);
        for line in self.table.lines() {
            if line.is_empty() {
                begins = true;
                continue;
            }
            // The end of a run lists the missed targets of all its benches.
            let missed = line.strip_prefix(MISSED);
            if begins {
                forgets = named(line);
            }
            if !missed.map_or(forgets, named) {
                table += if begins { "\n" } else { "" };
                table += line;
                table.push('\n');
            }
            begins = false;
        }
        self.table = table;
    }
}

/// Reads all runs of a folder.
pub(crate) fn read(folder: &Path) -> Result<Vec<Kept>> {
    let files: Vec<PathBuf> = fs::read_dir(folder)
        .with_context(|| format!("reading {}", folder.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ending| ending == "jsonl"))
        .collect();
    let runs = files.iter().map(|path| read_one(path));
    let mut runs = runs.collect::<Result<Vec<Kept>>>()?;
    // The plainest kind of etcd comes first.
    runs.sort_by_key(|run| (run.about.storage == Storage::Disk.name(), run.about.members));
    Ok(runs)
}

fn read_one(path: &Path) -> Result<Kept> {
    let text = fs::read_to_string(path)?;
    let lines = text.lines().map(serde_json::from_str);
    let lines = lines.collect::<Result<_, _>>();
    let about = fs::read_to_string(path.with_extension("about.json"))?;
    Ok(Kept {
        about: serde_json::from_str(&about)?,
        lines: lines.with_context(|| format!("reading {}", path.display()))?,
        table: fs::read_to_string(path.with_extension("txt"))?,
    })
}

/// Returns the machine's load during the last minute; zero where the system does not report it.
fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split(' ').next().unwrap_or_default();
    first.parse().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Keeping, Line, MISSED, first_word, read};
    use crate::options::{Keep, Options};

    fn run(bench: &str, took: f64) -> Keeping {
        let mut keeping = Keeping::start(&Options::default());
        let line = Line {
            bench: bench.to_owned(),
            peer: "eldest".to_owned(),
            n: 1,
            unit: "ms".to_owned(),
            p50: took,
            p99: took,
            samples: 3,
            ratio_to_limit: None,
            ratio_to_go: None,
        };
        keeping.say(&format!("\n{}: 1 member of etcd", first_word(bench)));
        keeping.line(&serde_json::to_string(&line).unwrap());
        keeping.say(&format!("{bench} {took}"));
        keeping
    }

    /// Reads the kept runs: the benches with their times, and the printed table.
    fn kept(folder: &Path) -> (Vec<(String, f64)>, String) {
        let mut runs = read(folder).unwrap();
        assert_eq!(runs.len(), 1);
        let kept = runs.remove(0);
        let lines = kept.lines.into_iter().map(|line| (line.bench, line.p50));
        (lines.collect(), kept.table)
    }

    #[test]
    fn run_replaces_another_or_adds_to_the_results_of_other_benches() {
        let folder = tempfile::tempdir().unwrap();
        let instead = Keep::Instead(folder.path().into());
        let beside = Keep::Beside(folder.path().into());
        run("join", 1.0).finish(&instead).unwrap();
        run("locks/free", 2.0).finish(&instead).unwrap();
        let locks = "\nlocks: 1 member of etcd\nlocks/free 2\n";
        assert_eq!(kept(folder.path()).1, locks);
        let mut join = run("join", 3.0);
        for bench in ["join", "locks/free"] {
            join.say(&format!("{MISSED}{bench} n=1: much 1.00, at most 0.00"));
        }
        join.finish(&beside).unwrap();
        let missed = "NOT REACHED: locks/free n=1: much 1.00, at most 0.00\n";
        run("join", 4.0).finish(&beside).unwrap();
        let lines = vec![("locks/free".into(), 2.0), ("join".into(), 4.0)];
        let table = format!("{locks}{missed}\njoin: 1 member of etcd\njoin 4\n");
        assert_eq!(kept(folder.path()), (lines, table));
    }

    #[test]
    fn benches_of_another_machine_name_it_and_keep_the_runs_own() {
        let folder = tempfile::tempdir().unwrap();
        let on = |bench, processor: &str| {
            let mut keeping = run(bench, 1.0);
            keeping.about.processor = processor.to_owned();
            keeping
        };
        on("join", "A")
            .finish(&Keep::Instead(folder.path().into()))
            .unwrap();
        let beside = Keep::Beside(folder.path().into());
        on("locks/free", "A").finish(&beside).unwrap();
        on("valid", "B").finish(&beside).unwrap();
        let about = read(folder.path()).unwrap().remove(0).about;
        assert_eq!(about.processor, "A");
        let commands: Vec<_> = about.command.split("; ").collect();
        assert_eq!(
            commands
                .iter()
                .map(|it| it.contains(" on "))
                .collect::<Vec<_>>(),
            [false, false, true]
        );
        assert!(commands[2].contains(&format!("{} x B", about.processors)));
    }
}

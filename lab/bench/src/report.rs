//! Prints figures as a table, and compares them with their targets.

use crate::options::Options;
use crate::samples::Samples;

/// The factor by which figures may exceed their targets in a check, which finds mistakes, on machines that do other work
/// too.
const SLACK: f64 = 3.0;

/// A row: the figures of one peer.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) peer: String,
    pub(crate) samples: Samples,
}

impl Row {
    pub(crate) fn new(peer: &str, samples: Samples) -> Self {
        Self {
            peer: peer.to_owned(),
            samples,
        }
    }
}

/// Returns the row of that peer.
pub(crate) fn find<'a>(rows: &'a [Row], peer: &str) -> Option<&'a Samples> {
    let row = rows.iter().find(|row| row.peer == peer);
    row.map(|row| &row.samples)
}

/// The common properties of one group of rows, which are compared with one another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    pub(crate) bench: &'static str,
    /// The measured operation, if a bench measures more than one; else empty.
    pub(crate) what: &'static str,
    pub(crate) n: usize,
    pub(crate) unit: &'static str,
}

impl Group {
    /// Returns the bench and the measured operation.
    fn name(&self) -> String {
        let slash = if self.what.is_empty() { "" } else { "/" };
        format!("{}{slash}{}", self.bench, self.what)
    }

    /// Prints the rows, each with its ratios to others.
    pub(crate) fn print(&self, rows: &[Row]) {
        for Row { peer, samples } in rows {
            let ratio = |to| {
                let ratio = find(rows, to).map(|to| samples.p50() / to.p50());
                let ratio = ratio.filter(|ratio| ratio.is_finite());
                ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"))
            };
            println!(
                "{:<32} n={:<6} {peer:<10} {:>10} {:>10} {:>10} {:<4} {:>5} samples  {:>6} x limit {:>6} x Go",
                self.name(),
                self.n,
                figure(samples.p50()),
                figure(samples.p99()),
                figure(samples.max()),
                self.unit,
                samples.len(),
                ratio("limit"),
                ratio("go"),
            );
        }
    }
}

/// Compares figures with their targets, and collects the missed ones.
pub(crate) struct Report {
    check: bool,
    missed: Vec<String>,
    /// The number of benches that could not be measured.
    failed: usize,
}

impl Report {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            check: options.check,
            missed: Vec::new(),
            failed: 0,
        }
    }

    /// Compares a figure with its upper limit.
    pub(crate) fn target(&mut self, group: Group, what: &str, figure: f64, most: f64) {
        let slack = if self.check { SLACK } else { 1.0 };
        self.count(group, what, figure, most * slack);
    }

    /// Does the same as [`Report::target`], for a figure that no other program on the machine can change.
    pub(crate) fn count(&mut self, group: Group, what: &str, figure: f64, most: f64) {
        let reached = figure <= most;
        let verdict = if reached { "reached" } else { "NOT REACHED" };
        let text = format!(
            "{} n={}: {what} {figure:.2}, at most {most:.2}: {verdict}",
            group.name(),
            group.n
        );
        println!("  {text}");
        if !reached {
            self.missed.push(text);
        }
    }

    /// Compares the medians of two peers; prints a note if one of them is missing.
    pub(crate) fn ratio(&mut self, group: Group, rows: &[Row], of: (&str, &str), most: f64) {
        let what = format!("{} / {}", of.0, of.1);
        match (find(rows, of.0), find(rows, of.1)) {
            (Some(one), Some(other)) => self.target(group, &what, one.p50() / other.p50(), most),
            _ => println!("  {} n={}: {what}: not measured", group.name(), group.n),
        }
    }

    pub(crate) fn fail(&mut self, bench: &str, error: &anyhow::Error) {
        self.failed += 1;
        println!("FAILED {bench}: {error:#}");
    }

    /// Repeats the missed targets. Returns true if no bench failed and, in a check, no target was missed.
    pub(crate) fn finish(self) -> bool {
        for missed in &self.missed {
            println!("NOT REACHED: {missed}");
        }
        self.failed == 0 && (self.missed.is_empty() || !self.check)
    }
}

/// Formats a figure with three significant digits.
fn figure(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 1.0 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{Group, Report, Row, figure};
    use crate::options::Options;
    use crate::samples::Samples;

    const GROUP: Group = Group {
        bench: "join",
        what: "",
        n: 1,
        unit: "ms",
    };

    fn report(word: &[&str]) -> Report {
        Report::new(&Options::parse_from(["bench"].iter().chain(word)))
    }

    #[test]
    fn check_fails_for_a_figure_far_from_its_target_and_for_any_excessive_count() {
        let rows = [("eldest", 4.0), ("limit", 2.0)]
            .map(|(peer, figure)| Row::new(peer, Samples::from_iter([figure])));
        let ratio = |words: &[&str], most| {
            let mut report = report(words);
            report.ratio(GROUP, &rows, ("eldest", "limit"), most);
            report.finish()
        };
        assert!(ratio(&["--check"], 1.0));
        assert!(!ratio(&["--check"], 0.6));
        assert!(ratio(&[], 0.6));
        let mut counted = report(&["--check"]);
        counted.count(GROUP, "allocations", 2.0, 1.0);
        assert!(!counted.finish());
    }

    #[test]
    fn failed_bench_is_never_well() {
        let mut report = report(&[]);
        report.fail("join", &anyhow::anyhow!("no etcd"));
        assert!(!report.finish());
    }

    #[test]
    fn three_digits_count() {
        assert_eq!(
            [123.4, 12.34, 1.234, 0.1234].map(figure),
            ["123", "12.3", "1.23", "0.123"]
        );
    }
}

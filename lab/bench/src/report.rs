//! Prints figures as a table for people or as JSON lines for programs, and compares them with their targets.

use std::fmt;

use anyhow::Result;

use crate::kept::{Keeping, Line, MISSED};
use crate::options::{Keep, Options};
use crate::samples::Samples;

/// A row: the figures of one peer.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) peer: String,
    pub(crate) samples: Samples,
}

/// The common properties of one group of rows, which are compared with one another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group<'a> {
    pub(crate) bench: &'a str,
    /// The measured operation, if a bench measures more than one; else empty.
    pub(crate) what: &'a str,
    pub(crate) n: usize,
    pub(crate) unit: &'a str,
}

impl Group<'_> {
    /// Returns the bench and the measured operation.
    fn name(&self) -> String {
        let slash = if self.what.is_empty() { "" } else { "/" };
        format!("{}{slash}{}", self.bench, self.what)
    }
}

/// Collects and prints the figures.
pub(crate) struct Report {
    json: bool,
    /// The factor by which figures may exceed their targets.
    slack: f64,
    keeping: Keeping,
    keep: Option<Keep>,
    missed: Vec<String>,
    /// The number of benches that could not be measured, or of which a rule did not hold.
    failed: usize,
}

/// The result of all benches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// True if no bench failed.
    pub(crate) measured: bool,
    /// True if also every target was reached.
    pub(crate) reached: bool,
}

impl Report {
    /// Makes a report. With `check`, figures may be far from their targets: the check finds mistakes, on machines that
    /// do other work too.
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            json: options.json,
            slack: if options.check { 3.0 } else { 1.0 },
            keeping: Keeping::start(options),
            keep: options.keep.clone(),
            missed: Vec::new(),
            failed: 0,
        }
    }

    /// Prints a text for people, on stderr if stdout is for programs.
    pub(crate) fn say(&mut self, text: impl fmt::Display) {
        let text = text.to_string();
        if self.json {
            eprintln!("{text}");
        } else {
            println!("{text}");
        }
        self.keeping.say(&text);
    }

    fn line(&mut self, line: &Line) {
        let line = serde_json::to_string(line).expect("a struct with names");
        if self.json {
            println!("{line}");
        }
        self.keeping.line(&line);
    }

    /// Prints one group of rows, with each peer's median.
    pub(crate) fn rows(&mut self, group: Group, rows: &[Row]) {
        let median = |name: &str| {
            let found = rows.iter().find(|row| row.peer == name);
            found.map(|row| row.samples.p50())
        };
        for row in rows {
            let samples = &row.samples;
            let ratio = |to: Option<f64>| to.map(|to| samples.p50() / to).filter(|r| r.is_finite());
            let (to_limit, to_go) = (ratio(median("limit")), ratio(median("go")));
            let cell = |ratio: Option<f64>| {
                ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"))
            };
            let name = group.name();
            self.say(format_args!(
                "{name:<24} n={:<6} {:<10} {:>10} {:>10} {:>10} {:<4} {:>5} samples  {:>6} x limit {:>6} x Go",
                group.n,
                row.peer,
                figure(samples.p50()),
                figure(samples.quantile(0.99)),
                figure(samples.max()),
                group.unit,
                samples.len(),
                cell(to_limit),
                cell(to_go),
            ));
            self.line(&Line {
                bench: name,
                peer: row.peer.clone(),
                n: group.n,
                unit: group.unit.to_owned(),
                p50: samples.p50(),
                p99: samples.quantile(0.99),
                samples: samples.len(),
                ratio_to_limit: to_limit,
                ratio_to_go: to_go,
            });
        }
    }

    /// Compares a figure with its upper limit.
    pub(crate) fn target(&mut self, group: Group, what: &str, figure: f64, most: f64) {
        self.count(group, what, figure, most * self.slack);
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
        self.say(format_args!("  {text}"));
        if !reached {
            self.missed.push(text);
        }
    }

    /// Compares the medians of two peers; prints a note if one of them is missing.
    pub(crate) fn ratio(&mut self, group: Group, rows: &[Row], of: (&str, &str), most: f64) {
        let median = |name: &str| rows.iter().find(|row| row.peer == name);
        let what = format!("{} / {}", of.0, of.1);
        match (median(of.0), median(of.1)) {
            (Some(one), Some(other)) => {
                let figure = one.samples.p50() / other.samples.p50();
                self.target(group, &what, figure, most);
                // A target that the bare calls miss too is reported as unreachable.
                let limit = median("limit").map(|row| row.samples.p50() / other.samples.p50());
                if let Some(limit) = limit.filter(|limit| figure > most && *limit > most) {
                    self.say(format_args!("    the limit itself: {limit:.2} x {}", of.1));
                }
            }
            _ => self.say(format_args!(
                "  {} n={}: {what}: not measured",
                group.name(),
                group.n
            )),
        }
    }

    pub(crate) fn fail(&mut self, bench: &str, error: &anyhow::Error) {
        self.failed += 1;
        self.say(format_args!("FAILED {bench}: {error:#}"));
    }

    /// Repeats the missed targets.
    pub(crate) fn finish(mut self) -> Result<Verdict> {
        let missed = std::mem::take(&mut self.missed);
        let measured = self.failed == 0;
        let verdict = Verdict {
            measured,
            reached: measured && missed.is_empty(),
        };
        for missed in missed {
            self.say(format_args!("{MISSED}{missed}"));
        }
        if let Some(folder) = &self.keep {
            self.keeping.finish(folder)?;
        }
        Ok(verdict)
    }
}

/// Formats a figure with three significant digits.
pub(crate) fn figure(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 1.0 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{Line, figure};

    #[test]
    fn a_line_has_the_names_that_programs_read_and_no_others() {
        let line = Line {
            bench: "handover".to_owned(),
            peer: "eldest".to_owned(),
            n: 2,
            unit: "ms".to_owned(),
            p50: 0.5,
            p99: 1.25,
            samples: 200,
            ratio_to_limit: Some(1.5),
            ratio_to_go: None,
        };
        let text = r#"{"bench":"handover","peer":"eldest","n":2,"unit":"ms","p50":0.5,"p99":1.25,"samples":200,"ratio_to_limit":1.5,"ratio_to_go":null}"#;
        assert_eq!(serde_json::to_string(&line).unwrap(), text);
        assert_eq!(serde_json::from_str::<Line>(text).unwrap(), line);
    }

    #[test]
    fn three_digits_count() {
        assert_eq!(
            [123.4, 12.34, 1.234, 0.1234].map(figure),
            ["123", "12.3", "1.23", "0.123"]
        );
    }
}

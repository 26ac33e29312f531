//! Hides how figures are told: a table for people, one JSON object per line for programs, and what was to be reached.

use std::fmt;

use serde_json::{Map, Value, json};

use crate::samples::Samples;

/// One row: what one peer needed.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) peer: String,
    pub(crate) samples: Samples,
}

/// What one group of rows has in common; its rows are compared with one another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group<'a> {
    pub(crate) bench: &'a str,
    /// What was measured, where a bench measures more than one thing; else empty.
    pub(crate) what: &'a str,
    pub(crate) n: usize,
    pub(crate) unit: &'a str,
}

/// Collects what was measured and prints it.
pub(crate) struct Report {
    json: bool,
    /// By how much figures may be above their targets.
    slack: f64,
    /// In every JSON object.
    common: Map<String, Value>,
    missed: Vec<String>,
    failed: usize,
}

impl Report {
    /// With `check`, figures may be far from their targets: what is looked for are mistakes, on machines that do other
    /// things too.
    pub(crate) fn new(json: bool, check: bool) -> Self {
        Self {
            json,
            slack: if check { 3.0 } else { 1.0 },
            common: Map::new(),
            missed: Vec::new(),
            failed: 0,
        }
    }

    /// What etcd the next rows were measured with.
    pub(crate) fn with(&mut self, members: usize, storage: &str) {
        self.common.insert("members".into(), members.into());
        self.common.insert("storage".into(), storage.into());
    }

    /// For people: stderr if stdout is for programs.
    pub(crate) fn say(&self, text: impl fmt::Display) {
        if self.json {
            eprintln!("{text}");
        } else {
            println!("{text}");
        }
    }

    fn line(&self, line: Value) {
        if let (true, Value::Object(line)) = (self.json, line) {
            let mut line = line;
            line.extend(self.common.clone());
            line.insert("load".into(), json!(load()));
            println!("{}", Value::Object(line));
        }
    }

    /// Tells one group of rows; gives each peer's median.
    pub(crate) fn rows(&self, group: Group, rows: &[Row]) {
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
            let name = if group.what.is_empty() {
                group.bench.to_owned()
            } else {
                format!("{} {}", group.bench, group.what)
            };
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
            self.line(json!({
                "bench": group.bench,
                "what": group.what,
                "peer": row.peer,
                "n": group.n,
                "unit": group.unit,
                "p50": samples.p50(),
                "p99": samples.quantile(0.99),
                "max": samples.max(),
                "samples": samples.len(),
                "ratio_to_limit": to_limit,
                "ratio_to_go": to_go,
            }));
        }
    }

    /// Holds a figure against the most that it may be.
    pub(crate) fn target(&mut self, group: Group, what: &str, figure: f64, most: f64) {
        let most = most * self.slack;
        let reached = figure <= most;
        let verdict = if reached { "reached" } else { "NOT REACHED" };
        let text = format!(
            "{} {} n={}: {what} {figure:.2}, at most {most:.2}: {verdict}",
            group.bench, group.what, group.n
        );
        self.say(format_args!("  {text}"));
        self.line(json!({
            "bench": group.bench,
            "what": group.what,
            "n": group.n,
            "target": what,
            "figure": figure,
            "at_most": most,
            "reached": reached,
        }));
        if !reached {
            self.missed.push(text);
        }
    }

    /// Holds the medians of two peers against each other; says so if one of them is missing.
    pub(crate) fn ratio(&mut self, group: Group, rows: &[Row], of: (&str, &str), most: f64) {
        let median = |name: &str| rows.iter().find(|row| row.peer == name);
        let what = format!("{} / {}", of.0, of.1);
        match (median(of.0), median(of.1)) {
            (Some(one), Some(other)) => {
                let figure = one.samples.p50() / other.samples.p50();
                self.target(group, &what, figure, most);
                // What nobody can reach is said at once.
                let limit = median("limit").map(|row| row.samples.p50() / other.samples.p50());
                if let Some(limit) = limit.filter(|limit| figure > most && *limit > most) {
                    self.say(format_args!("    the limit itself: {limit:.2} x {}", of.1));
                }
            }
            _ => self.say(format_args!(
                "  {} n={}: {what}: not measured",
                group.bench, group.n
            )),
        }
    }

    pub(crate) fn fail(&mut self, bench: &str, error: &anyhow::Error) {
        self.failed += 1;
        eprintln!("FAILED {bench}: {error:#}");
    }

    /// Whether nothing failed and every target was reached.
    pub(crate) fn finish(self) -> bool {
        for missed in &self.missed {
            self.say(format_args!("NOT REACHED: {missed}"));
        }
        self.missed.is_empty() && self.failed == 0
    }
}

/// Three digits that count.
fn figure(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 1.0 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    }
}

/// How many tasks of the whole machine wanted to run during the last minute; nothing where the system does not tell.
fn load() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split(' ').next()?.parse().ok()
}

//! Collects the metrics of the library, and writes them in the text format of Prometheus.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use eldest::metrics::{RELEASE_BUCKETS, RENEWAL_BUCKETS, describe};
use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};

/// The `Content-Type` of a page.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The metrics of this process. All clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Page(Arc<Mutex<Families>>);

#[derive(Debug, Default)]
struct Families {
    help: HashMap<String, String>,
    /// The series of each name, by their formatted labels. All series of a name are of one kind.
    by_name: BTreeMap<String, BTreeMap<String, Series>>,
}

#[derive(Debug, Clone)]
enum Series {
    Counter(Arc<AtomicU64>),
    /// The value is the bits of a float.
    Gauge(Arc<AtomicU64>),
    Histogram(Arc<Distribution>),
}

/// The values that a histogram has recorded.
#[derive(Debug)]
struct Distribution {
    bounds: &'static [f64],
    recorded: Mutex<Recorded>,
}

#[derive(Debug, Clone, Default)]
struct Recorded {
    /// The number of values up to each bound.
    up_to: Vec<u64>,
    count: u64,
    sum: f64,
}

/// Installs the recorder of this process's metrics.
pub(crate) fn measure() -> Result<Page> {
    let page = Page::default();
    metrics::set_global_recorder(page.clone())?;
    describe();
    Ok(page)
}

impl Page {
    /// Writes all metrics.
    pub(crate) fn render(&self) -> String {
        let families = self.families();
        let mut page = String::new();
        for (name, family) in &families.by_name {
            if let Some(help) = families.help.get(name) {
                let help = help.replace('\\', "\\\\").replace('\n', "\\n");
                line(&mut page, format_args!("# HELP {name} {help}"));
            }
            for (number, (labels, series)) in family.iter().enumerate() {
                if number == 0 {
                    line(&mut page, format_args!("# TYPE {name} {}", series.kind()));
                }
                series.render(name, labels, &mut page);
            }
        }
        page
    }

    fn families(&self) -> MutexGuard<'_, Families> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn describe(&self, name: &KeyName, help: &SharedString) {
        let mut families = self.families();
        families
            .help
            .insert(name.as_str().to_owned(), help.to_string());
    }

    /// Returns the series of that key; a new key gets the series `new`. Returns `None` if the name has series of
    /// another kind.
    fn series(&self, key: &Key, new: Series) -> Option<Series> {
        let mut families = self.families();
        let family = families.by_name.entry(key.name().to_owned()).or_default();
        let kind = family.values().next().map_or(new.kind(), Series::kind);
        if kind != new.kind() {
            return None;
        }
        Some(family.entry(labels(key)).or_insert(new).clone())
    }
}

impl Recorder for Page {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&name, &help);
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&name, &help);
    }

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&name, &help);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match self.series(key, Series::Counter(Arc::default())) {
            Some(Series::Counter(counter)) => Counter::from_arc(counter),
            _ => Counter::noop(),
        }
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        match self.series(key, Series::Gauge(Arc::default())) {
            Some(Series::Gauge(gauge)) => Gauge::from_arc(gauge),
            _ => Gauge::noop(),
        }
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        let bounds = match key.name() {
            "eldest_agent_release_duration_seconds" => &RELEASE_BUCKETS,
            _ => &RENEWAL_BUCKETS,
        };
        let up_to = vec![0; bounds.len()];
        let recorded = Recorded {
            up_to,
            ..Recorded::default()
        };
        let new = Distribution {
            bounds,
            recorded: Mutex::new(recorded),
        };
        match self.series(key, Series::Histogram(Arc::new(new))) {
            Some(Series::Histogram(histogram)) => Histogram::from_arc(histogram),
            _ => Histogram::noop(),
        }
    }
}

impl HistogramFn for Distribution {
    fn record(&self, value: f64) {
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        for (bound, count) in self.bounds.iter().zip(&mut recorded.up_to) {
            *count += u64::from(value <= *bound);
        }
        recorded.count += 1;
        recorded.sum += value;
    }
}

impl Series {
    /// Returns the name that Prometheus has for this kind.
    fn kind(&self) -> &'static str {
        match self {
            Series::Counter(_) => "counter",
            Series::Gauge(_) => "gauge",
            Series::Histogram(_) => "histogram",
        }
    }

    fn render(&self, name: &str, labels: &str, page: &mut String) {
        match self {
            Series::Counter(value) => {
                let value = value.load(Ordering::Relaxed);
                line(page, format_args!("{name}{} {value}", braced(labels)));
            }
            Series::Gauge(value) => {
                let value = f64::from_bits(value.load(Ordering::Relaxed));
                line(page, format_args!("{name}{} {value}", braced(labels)));
            }
            Series::Histogram(distribution) => distribution.render(name, labels, page),
        }
    }
}

impl Distribution {
    fn render(&self, name: &str, labels: &str, page: &mut String) {
        let recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        let Recorded { up_to, count, sum } = recorded.clone();
        drop(recorded);
        let comma = if labels.is_empty() { "" } else { "," };
        let mut bucket = |bound: &dyn std::fmt::Display, count: u64| {
            let labels = format!("{labels}{comma}le=\"{bound}\"");
            line(page, format_args!("{name}_bucket{{{labels}}} {count}"));
        };
        for (bound, count) in self.bounds.iter().zip(up_to) {
            bucket(bound, count);
        }
        bucket(&"+Inf", count);
        let labels = braced(labels);
        line(page, format_args!("{name}_sum{labels} {sum}"));
        line(page, format_args!("{name}_count{labels} {count}"));
    }
}

fn line(page: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = writeln!(page, "{line}");
}

fn braced(labels: &str) -> String {
    if labels.is_empty() {
        String::new()
    } else {
        format!("{{{labels}}}")
    }
}

/// Returns the labels as they are formatted between the braces.
fn labels(key: &Key) -> String {
    let labels = key.labels().map(|label| {
        let value = label.value().replace('\\', "\\\\");
        let value = value.replace('"', "\\\"").replace('\n', "\\n");
        format!("{}=\"{value}\"", label.key())
    });
    labels.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use metrics::{counter, describe_counter, gauge, histogram, with_local_recorder};

    use super::*;

    #[test]
    fn a_page_has_help_type_and_value_of_each_series() {
        let page = Page::default();
        with_local_recorder(&page, || {
            describe_counter!("eldest_renewals_total", "Renewals.\nBy outcome.");
            counter!("eldest_renewals_total", "outcome" => "failed").increment(2);
            counter!("eldest_renewals_total", "outcome" => "failed").increment(1);
            counter!("eldest_renewals_total", "outcome" => "verified").increment(9);
            gauge!("eldest_rank", "identity" => "a\"b\\c\nd").set(1.5);
            gauge!("eldest_guarded").set(1.0);
            // A name has one kind of series.
            gauge!("eldest_renewals_total").set(7.0);
        });
        let expected = r#"# TYPE eldest_guarded gauge
eldest_guarded 1
# TYPE eldest_rank gauge
eldest_rank{identity="a\"b\\c\nd"} 1.5
# HELP eldest_renewals_total Renewals.\nBy outcome.
# TYPE eldest_renewals_total counter
eldest_renewals_total{outcome="failed"} 3
eldest_renewals_total{outcome="verified"} 9
"#;
        assert_eq!(page.render(), expected);
    }

    #[test]
    fn a_histogram_counts_each_value_in_every_bucket_that_holds_it() {
        let page = Page::default();
        with_local_recorder(&page, || {
            for seconds in [0.001, 0.3, 60.0] {
                histogram!("eldest_renewal_duration_seconds", "identity" => "a").record(seconds);
            }
            histogram!("eldest_agent_release_duration_seconds").record(0.0004);
        });
        let page = page.render();
        for line in [
            r#"eldest_renewal_duration_seconds_bucket{identity="a",le="0.001"} 1"#,
            r#"eldest_renewal_duration_seconds_bucket{identity="a",le="0.25"} 1"#,
            r#"eldest_renewal_duration_seconds_bucket{identity="a",le="0.5"} 2"#,
            r#"eldest_renewal_duration_seconds_bucket{identity="a",le="+Inf"} 3"#,
            r#"eldest_renewal_duration_seconds_sum{identity="a"} 60.301"#,
            r#"eldest_renewal_duration_seconds_count{identity="a"} 3"#,
            r#"eldest_agent_release_duration_seconds_bucket{le="0.0005"} 1"#,
            "eldest_agent_release_duration_seconds_count 1",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} in {page}");
        }
    }
}

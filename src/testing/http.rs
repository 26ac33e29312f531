//! Hides the little HTTP that etcd's health and metrics pages need, and the format of metrics.
#![allow(clippy::disallowed_methods)] // tests run in real time

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::BoxError;

/// The body of the page at `path`, whatever its status.
pub(super) async fn get(address: &str, path: &str, deadline: Duration) -> Result<String, BoxError> {
    let fetch = async {
        let mut stream = TcpStream::connect(address).await?;
        // Version 1.0: the answer then ends with the connection and never comes in chunks.
        let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = match tokio::time::timeout(deadline, fetch).await {
        Ok(answer) => answer.map_err(|error| format!("GET http://{address}{path}: {error}"))?,
        Err(_) => {
            return Err(format!("GET http://{address}{path}: no answer in {deadline:?}").into());
        }
    };
    let answer = String::from_utf8_lossy(&answer);
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.") => Ok(body.to_owned()),
        _ => Err(format!("GET http://{address}{path}: not an HTTP answer").into()),
    }
}

/// The sum of all samples in `page` that have the name of `query` and at least its labels.
pub(super) fn sum(page: &str, query: &str) -> Result<f64, BoxError> {
    let (wanted, rest) = Series::parse(query).ok_or_else(|| format!("not a metric: `{query}`"))?;
    if !rest.trim().is_empty() {
        return Err(format!("not a metric: `{query}`").into());
    }
    let samples = page
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(Series::parse)
        .filter(|(series, _)| series.has(&wanted))
        .filter_map(|(_, rest)| rest.split_whitespace().next()?.parse::<f64>().ok());
    // Not `sum()`: that of nothing is -0.
    Ok(samples.fold(0.0, |sum, value| sum + value))
}

/// `name{label="value",...}`
#[derive(Debug, PartialEq)]
struct Series<'a> {
    name: &'a str,
    labels: Vec<(&'a str, &'a str)>,
}

impl<'a> Series<'a> {
    /// Also answers what follows. Label values keep their escapes, on both sides of a comparison.
    fn parse(text: &'a str) -> Option<(Self, &'a str)> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        let end = text.find(|c| !is_name(c)).unwrap_or(text.len());
        let (name, mut rest) = text.split_at(end);
        let mut labels = Vec::new();
        if name.is_empty() {
            return None;
        }
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside.trim_start();
            while !rest.starts_with('}') {
                let (label, after) = rest.split_once('=')?;
                let value = after.trim_start().strip_prefix('"')?;
                let mut escaped = false;
                let end = value.find(|c| {
                    let ends = c == '"' && !escaped;
                    escaped = c == '\\' && !escaped;
                    ends
                })?;
                labels.push((label.trim(), &value[..end]));
                rest = value[end + 1..].trim_start();
                rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
            }
            rest = &rest[1..];
        }
        Some((Self { name, labels }, rest))
    }

    fn has(&self, wanted: &Self) -> bool {
        self.name == wanted.name && wanted.labels.iter().all(|l| self.labels.contains(l))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# HELP calls_total Calls.\n\
        # TYPE calls_total counter\n\
        calls_total{code=\"OK\",method=\"Put\"} 3\n\
        calls_total{code=\"OK\",method=\"Range\"} 4 1700000000000\n\
        calls_total{code=\"a \\\"} b, c=\\\\\",method=\"Put\"} 5\n\
        calls_total_other 100\n\
        plain 1.5e3\n";

    #[allow(clippy::float_cmp)] // whole numbers, exactly
    fn is(query: &str, value: f64) -> bool {
        ask(query) == value
    }

    fn ask(query: &str) -> f64 {
        sum(PAGE, query).expect("a metric")
    }

    #[test]
    fn samples_are_summed_whose_labels_include_those_asked_for() {
        assert!(is("calls_total", 12.0));
        assert!(is(r#"calls_total{code="OK"}"#, 7.0));
        assert!(is(r#"calls_total{method="Put", code="OK"}"#, 3.0));
        assert!(is(r#"calls_total{code="a \"} b, c=\\"}"#, 5.0));
        assert!(is("plain", 1500.0));
        assert!(is("plain{}", 1500.0));
        assert!(is("absent", 0.0));
    }

    #[test]
    fn a_query_that_is_no_metric_is_refused() {
        for query in ["", "{}", "a{b}", "a{b=\"c}", "a b", "a{b=\"c\"} 5"] {
            assert!(sum(PAGE, query).is_err(), "{query}");
        }
    }
}

//! Fetches etcd's health and metrics pages over plain HTTP, and sums the samples of a metric.
#![allow(clippy::disallowed_methods)] // tests run in real time

use std::time::Duration;

use eldest::BoxError;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::header::HOST;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::error::{Error, ErrorKind, Result};

/// Fetches the body of the page at `path`, whatever its status.
pub(super) async fn get(address: &str, path: &str, limit: Duration) -> Result<String> {
    let page = match tokio::time::timeout(limit, fetch(address, path)).await {
        Ok(page) => page,
        Err(_) => Err(format!("no answer in {limit:?}").into()),
    };
    page.map_err(|error| {
        let text = format!("cannot get http://{address}{path}");
        Error::because(ErrorKind::Unreachable, text, error)
    })
}

/// Reads exactly the answer and not up to the end of the connection, which etcd's peer port sometimes keeps open
/// for 5 s more (its read timeout races with the end of the request).
async fn fetch(address: &str, path: &str) -> Result<String, BoxError> {
    let stream = TokioIo::new(TcpStream::connect(address).await?);
    let (mut sender, connection) = handshake(stream).await?;
    tokio::spawn(connection);
    let request = Request::get(path).header(HOST, address);
    let answer = sender.send_request(request.body(Empty::<Bytes>::new())?);
    let body = answer.await?.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8_lossy(&body).into_owned())
}

/// Returns the sum of all samples in `page` with the name of `query` and at least its labels.
pub(super) fn sum(page: &str, query: &str) -> Result<f64> {
    let refused = || Error::new(ErrorKind::InvalidInput, format!("not a metric: `{query}`"));
    let (wanted, rest) = Series::parse(query).ok_or_else(refused)?;
    if !rest.trim().is_empty() {
        return Err(refused());
    }
    let samples = page
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(Series::parse)
        .filter(|(series, _)| series.has(&wanted))
        .filter_map(|(_, rest)| rest.split_whitespace().next()?.parse::<f64>().ok());
    // A plain `sum()` of no samples would be -0.
    Ok(samples.fold(0.0, |sum, value| sum + value))
}

/// A query `name{label="value",...}`.
#[derive(Debug, PartialEq)]
struct Series<'a> {
    name: &'a str,
    labels: Vec<(&'a str, &'a str)>,
}

impl<'a> Series<'a> {
    /// Parses the series, and returns the rest of the line too. Label values keep their escapes, on both sides of a
    /// comparison.
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
    use std::io;

    use tokio::io::AsyncWriteExt;

    use super::*;

    /// Answers one request with `answer`, and keeps the connection open.
    async fn got(answer: &'static str) -> Result<String, BoxError> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let server = async {
            let (mut stream, _) = listener.accept().await?;
            stream.write_all(answer.as_bytes()).await?;
            std::future::pending::<io::Result<()>>().await
        };
        tokio::select! {
            ended = server => Err(format!("the server ended: {ended:?}").into()),
            page = get(&address, "/", Duration::from_secs(5)) => Ok(page?),
        }
    }

    #[tokio::test]
    async fn an_answer_is_complete_before_the_connection_ends() -> Result<(), BoxError> {
        let plain = "HTTP/1.1 503 Busy\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(got(plain).await?, "hello");
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
            3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n";
        assert_eq!(got(chunked).await?, "hello");
        let error = got("SSH-2.0\r\n").await.expect_err("no HTTP");
        assert!(
            error.to_string().starts_with("cannot get http://"),
            "{error}"
        );
        Ok(())
    }

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

//! Tests that two nodes export the spans of a hand-over to a replacement of the collector: names, parents, links,
//! attributes and times.
#![cfg(unix)] // the nodes are ended by a signal
#![allow(clippy::disallowed_methods)] // tests run in real time

mod common;

use std::process::Stdio;
use std::time::Duration;

use eldest::{BoxError, Session, SessionOptions};
use eldest_testing::{Etcd, eventually};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use common::{Collector, Received};

type Result<T = ()> = std::result::Result<T, BoxError>;

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(30);

struct Node {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
}

impl Node {
    fn start(name: &str, etcd: &Etcd, collector: &str) -> Result<Self> {
        let mut child = Command::new(env!("CARGO_BIN_EXE_eldest-telemetry-example"))
            .env("NAME", name)
            .env("ETCD_ENDPOINTS", etcd.endpoint())
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", collector)
            .env("TTL_SECONDS", "2")
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let output = BufReader::new(child.stdout.take().ok_or("its output")?).lines();
        Ok(Self { child, output })
    }

    async fn writes(&mut self, line: &str) -> Result {
        let found = async {
            while let Some(next) = self.output.next_line().await? {
                if next == line {
                    return Ok(());
                }
            }
            Err(BoxError::from(format!("ended without {line:?}")))
        };
        timeout(LONG, found).await?
    }

    async fn stopped(mut self) -> Result {
        let pid = self.child.id().ok_or("it has ended")?;
        kill_process(
            Pid::from_raw(pid.cast_signed()).ok_or("a process")?,
            Signal::INT,
        )?;
        let status = timeout(LONG, self.child.wait()).await??;
        assert!(status.success(), "{status}");
        Ok(())
    }
}

/// Asserts that the span has these attributes.
fn says(received: &Received, attributes: &[(&str, &str)]) {
    for (name, value) in attributes {
        let is = received.attributes.get(*name).map(String::as_str);
        assert_eq!(is, Some(*value), "{name} of {received:?}");
    }
}

fn is_child(child: &Received, parent: &Received) {
    let (child, parent) = (&child.span, &parent.span);
    assert_eq!(child.parent_span_id, parent.span_id, "{child:?} {parent:?}");
    assert_eq!(child.trace_id, parent.trace_id);
    assert!(child.start_time_unix_nano >= parent.start_time_unix_nano);
    assert!(child.end_time_unix_nano <= parent.end_time_unix_nano);
}

/// Asserts that the span begins a trace.
fn is_root(received: &Received) {
    assert_eq!(received.span.parent_span_id, [0; 0], "{received:?}");
}

/// Checks the spans of a node that led once. Returns the spans of its campaign and its term.
fn led_once(collector: &Collector, node: &str) -> (Received, Received) {
    let who = [("identity", node), ("election", "reports")];
    let campaign = collector.span(node, "campaign");
    is_root(&campaign);
    says(&campaign, &who);
    says(&campaign, &[("outcome", "elected")]);
    for step in ["join", "hand_over"] {
        let step = collector.span(node, step);
        is_child(&step, &campaign);
        says(&step, &who);
    }
    let term = collector.span(node, "term");
    is_root(&term);
    says(&term, &who);
    says(&term, &[("reason", "shutdown")]);
    let links: Vec<_> = term.span.links.iter().map(|link| &link.span_id).collect();
    assert_eq!(
        links,
        [&campaign.span.span_id],
        "the term follows from the campaign"
    );
    assert!(term.span.start_time_unix_nano <= campaign.span.end_time_unix_nano);
    let reports = collector.spans(node, "report");
    assert!(reports.len() >= 2, "{reports:?}");
    for report in &reports {
        is_child(report, &term);
    }
    (campaign, term)
}

#[tokio::test]
async fn terms_renewals_and_a_hand_over_reach_the_collector() -> Result {
    let etcd = Etcd::start().await?;
    let (collector, endpoint) = Collector::start().await?;
    let mut first = Node::start("a", &etcd, &endpoint)?;
    first.writes("report 2").await?;
    let mut second = Node::start("b", &etcd, &endpoint)?;
    let session = Session::connect([etcd.endpoint()], SessionOptions::new("observer")).await?;
    let election = session.election("reports")?;
    let token = eventually(LONG, "the second waits", async || {
        let roster = election.roster().await.ok()?;
        let leader = roster.leader()?.create_revision();
        (roster.members().len() == 2).then_some(leader)
    })
    .await?;
    // Renewals are a third of the TTL apart.
    first.writes("report 10").await?;
    first.stopped().await?;
    second.writes("report 2").await?;
    second.stopped().await?;

    let (_, term) = led_once(&collector, "a");
    says(&term, &[("token", &token.to_string())]);
    assert_eq!(collector.spans("a", "wait").len(), 0, "nobody was ahead");
    let (campaign, next) = led_once(&collector, "b");
    let wait = collector.span("b", "wait");
    is_child(&wait, &campaign);
    says(&wait, &[("ahead", "1")]);
    // Both nodes use the clock of this machine.
    assert!(next.span.start_time_unix_nano >= term.span.end_time_unix_nano);
    let hand_over = collector.span("b", "hand_over").span;
    assert!(hand_over.start_time_unix_nano >= wait.span.end_time_unix_nano);

    for node in ["a", "b"] {
        let mut renewals = collector.spans(node, "renewal");
        // The stream was opened before the first renewal.
        renewals.retain(|renewal| renewal.attributes["outcome"] != "opened");
        assert!(!renewals.is_empty(), "no renewal of {node}");
        for renewal in &renewals {
            is_root(renewal);
            says(renewal, &[("identity", node), ("outcome", "verified")]);
            assert!(renewal.attributes["lease"].len() > 8, "{renewal:?}");
            assert!(renewal.span.end_time_unix_nano > renewal.span.start_time_unix_nano);
        }
    }
    Ok(())
}

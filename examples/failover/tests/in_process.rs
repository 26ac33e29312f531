//! Tests the failover of this service without Docker: the test starts its own etcd, and runs every instance in this
//! process, behind a proxy that can fall silent.
#![allow(clippy::disallowed_methods)] // tests run in real time

mod common;

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use eldest::{BoxError, CancellationToken, SessionOptions};
use eldest_failover_example::{ELECTION, Witness, serve};
use eldest_testing::history::{Outcome, Recorder, Rules, TruthRecorder, What, check};
use eldest_testing::{Etcd, Proxy, eventually, one_leader};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

const TTL: Duration = Duration::from_secs(5);
const SOON: Duration = Duration::from_secs(10);

struct Node {
    name: &'static str,
    address: SocketAddr,
    proxy: Proxy,
    task: JoinHandle<anyhow::Result<()>>,
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Waits until that many leaders have written: a leader may report that it leads before its first write was admitted.
async fn have_written(recorder: &Recorder, leaders: usize) -> Result<(), BoxError> {
    let what = format!("{leaders} leaders have written");
    eventually(SOON, what, async || {
        let history = recorder.history().ok()?;
        let admitted = history
            .events()
            .iter()
            .filter_map(|event| match event.what {
                What::FencedWrite {
                    token,
                    outcome: Outcome::Admitted { .. },
                } => Some(token),
                _ => None,
            });
        (admitted.collect::<BTreeSet<_>>().len() >= leaders).then_some(())
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn leader_without_answers_from_etcd_stops_before_another_leads() -> Result<(), BoxError> {
    let etcd = Etcd::start().await?;
    let recorder = Recorder::boottime();
    let prefix = format!("eldest/{ELECTION}/");
    let truth = TruthRecorder::start([etcd.endpoint()], recorder.clone(), ELECTION, prefix).await?;
    let shutdown = CancellationToken::new();
    let mut nodes = Vec::new();
    for name in ["n1", "n2", "n3"] {
        let proxy = Proxy::start(etcd.address()).await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (endpoint, witness) = ([proxy.endpoint()], Witness::new(&recorder, name));
        let (options, stop) = (SessionOptions::new(name).ttl(TTL), shutdown.clone());
        let task = async move { serve(listener, &endpoint, options, witness, stop).await };
        nodes.push(Node {
            name,
            address,
            proxy,
            task: tokio::spawn(task),
        });
    }
    let leads = async |node: &Node| common::says_that_it_leads(node.address).await;

    let old = one_leader(SOON, &nodes, leads).await?;
    have_written(&recorder, 1).await?;
    let name = "silent".to_owned();
    recorder.record(old.name, ELECTION, What::Fault { name: name.clone() });
    old.proxy.hold();
    // The old leader still answers, and says "yes" until its own deadline: both must not say so.
    let other = async |node: &Node| Ok::<_, BoxError>(leads(node).await? && node.name != old.name);
    let new = one_leader(TTL + Duration::from_secs(4), &nodes, other).await?;
    assert!(!leads(old).await?, "{new} leads");
    old.proxy.heal();
    recorder.record(old.name, ELECTION, What::Healed { name });
    have_written(&recorder, 2).await?;

    for node in &nodes {
        recorder.record(node.name, ELECTION, What::Left);
    }
    shutdown.cancel();
    for node in nodes {
        node.task.await??;
    }
    truth.stop().await;
    let report = check(&recorder.history()?, &Rules::new(TTL));
    report.assert_ok();
    report.require(2, 1);
    assert!(report.counts.elections_checked_for_seniority >= 2);
    assert!(report.counts.writes_admitted >= 2);
    Ok(())
}

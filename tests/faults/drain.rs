//! Tests a rolling restart as docs/rolling-restart.md describes it: three nodes, one change of leader.

use std::collections::BTreeMap;
use std::time::Duration;

use eldest_testing::Etcd;
use eldest_testing::history::{History, What};

use crate::stage::{ELECTION, Node, Result, SOON, Stage, millis, seconds};

/// A TTL so long that no change waits for an expiry: every change is a hand-over.
const TTL: Duration = seconds(30);
/// The longest hand-over: a deletion and its watch event, each of which may take a request timeout.
const HAND_OVER: Duration = millis(3000);

struct Deployment<'s> {
    stage: &'s Stage,
    endpoint: String,
    nodes: BTreeMap<String, Node>,
}

impl<'s> Deployment<'s> {
    async fn start(stage: &'s Stage, endpoint: String) -> Result<Self> {
        let mut nodes = BTreeMap::new();
        for name in ["a", "b", "c"] {
            let node = stage.node(name, &[&endpoint]).await?;
            nodes.insert(name.to_owned(), node);
        }
        nodes["a"].elected(SOON).await?;
        Ok(Self {
            stage,
            endpoint,
            nodes,
        })
    }

    /// Returns the candidates, eldest first.
    async fn order(&self) -> Result<Vec<String>> {
        let election = &self.nodes.values().next().ok_or("no nodes")?.election;
        let roster = election.roster().await?;
        let names = roster.members().iter().map(|m| m.identity().to_owned());
        Ok(names.collect())
    }

    /// Ends one node as SIGTERM does, starts it again, and waits until it has joined.
    async fn restart(&mut self, name: &str) -> Result {
        let node = self.nodes.remove(name).ok_or("no such node")?;
        node.stop().await?;
        let node = self.stage.node(name, &[&self.endpoint]).await?;
        self.nodes.insert(name.to_owned(), node);
        Ok(())
    }

    async fn stop(self) -> Result {
        let nodes: Vec<_> = self.order().await?;
        let mut all = self.nodes;
        for name in nodes.iter().rev() {
            all.remove(name).ok_or("no such node")?.stop().await?;
        }
        Ok(())
    }
}

/// Returns the tokens in the order in which nodes led, and the longest time between two leaders.
fn leaders(history: &History) -> (Vec<i64>, Duration) {
    let mut tokens = Vec::new();
    let mut gap = Duration::ZERO;
    let mut lost: Option<Duration> = None;
    for event in history.events().iter().filter(|e| e.election == ELECTION) {
        match &event.what {
            What::Elected { token } => {
                tokens.push(*token);
                gap = gap.max(lost.map_or(Duration::ZERO, |lost| event.at.saturating_sub(lost)));
            }
            What::LostToken { .. } => lost = Some(event.at),
            _ => {}
        }
    }
    (tokens, gap)
}

#[tokio::test]
async fn draining_followers_first_costs_one_change_of_leader_and_no_gap() -> Result {
    // Complaint: a restart of all nodes moved the leadership with every one of them.
    let etcd = Etcd::start().await?;
    let stage = Stage::new(&[etcd.endpoint()], TTL).await?;
    let mut deployment = Deployment::start(&stage, etcd.endpoint()).await?;
    let mut order = deployment.order().await?;
    assert_eq!(order, ["a", "b", "c"]);
    order.reverse();
    for name in &order {
        deployment.restart(name).await?;
    }
    // The first node to restart leads, the last one is at the back.
    assert_eq!(deployment.order().await?, order);
    deployment.nodes["c"].elected(SOON).await?;
    let (tokens, gap) = leaders(&stage.recorder.history()?);
    assert_eq!(tokens.len(), 2, "one change: {tokens:?}");
    assert!(gap <= HAND_OVER, "nobody led for {gap:?}");
    deployment.stop().await?;
    assert_eq!(stage.leases().await?, [0; 0]);
    stage.judge(2, 0).await?;
    Ok(())
}

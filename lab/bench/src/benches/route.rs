//! `route`: the cost of sending a request to the leader, by the routed client and through a node that does not lead,
//! beside a direct call of the leader; and the fate of requests while the leader changes.

mod callers;
mod node;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures::FutureExt;

use super::Bench;
use crate::peer::{Asked, Context, Peer};
use crate::report::{Group, Row};
use crate::run::Run;
use crate::samples::Samples;
use callers::Sent;

pub(super) const BENCH: Bench = Bench {
    name: "route",
    about: "a request to the leader: by the routed client, and through another node; requests lost and doubled in 100 hand-overs",
    checked: true,
    for_each_kind: false,
    others: &[],
    run: |run| measure(run).boxed(),
    peer: |context, asked| peer(context, asked).boxed(),
};

/// Calls the leader's address, without a route.
const DIRECT: &str = "limit";
/// Calls by the routed client.
const ROUTED: &str = "eldest";
/// Calls the node that does not lead.
const FORWARDED: &str = "forwarded";
/// The target: this many times a direct call.
const ROUTED_TO_LIMIT: f64 = 1.3;
const FORWARDED_TO_LIMIT: f64 = 2.5;
/// The election of the hand-overs.
const ELECTION: &str = "route";
const PATIENCE: Duration = Duration::from_secs(30);
/// The pause between two hand-overs, so that requests also meet leaders that stay.
const SETTLED: Duration = Duration::from_millis(20);

async fn measure(run: &mut Run<'_>) -> Result<()> {
    let Some((mut leader, at_leader)) = node(run).await? else {
        return Ok(());
    };
    until(&mut leader, "leads").await?;
    let Some((mut other, at_other)) = node(run).await? else {
        return Ok(());
    };
    until(&mut other, "waits").await?;
    requests(run, at_leader, at_other).await?;
    hand_overs(run, [leader, other], [at_leader, at_other]).await
}

/// Starts a node that serves requests, and returns its port.
async fn node(run: &mut Run<'_>) -> Result<Option<(Peer, f64)>> {
    let Some(mut node) = run.peer(ROUTED).await? else {
        return Ok(None);
    };
    let port = node.ask(&format!("serve {ELECTION}")).await?;
    Ok(Some((node, *port.first().context("a port")?)))
}

/// Waits until a node answers the question with yes.
async fn until(node: &mut Peer, question: &str) -> Result<()> {
    let start = Instant::now();
    while node.ask(question).await? != [1.0] {
        ensure!(start.elapsed() < PATIENCE, "never: {question}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// Measures one request: each caller has one in flight at a time.
async fn requests(run: &mut Run<'_>, leader: f64, other: f64) -> Result<()> {
    let mut callers = run.peers(&[DIRECT, ROUTED, FORWARDED]).await?;
    for caller in &mut callers {
        let at = if caller.name == FORWARDED {
            other
        } else {
            leader
        };
        caller.ask(&format!("reach {ELECTION} {at}")).await?;
    }
    let samples = run.samples(2000, 500);
    let ask = |_: &str| "call".to_owned();
    let rows = run
        .interleave(&mut callers, samples, Duration::ZERO, ask)
        .await;
    for (what, caller, most) in [
        ("client", ROUTED, ROUTED_TO_LIMIT),
        ("through another node", FORWARDED, FORWARDED_TO_LIMIT),
    ] {
        let group = Group {
            what,
            ..run.group(2, "ms")
        };
        let own = rows
            .iter()
            .filter(|row| [DIRECT, caller].contains(&&*row.peer));
        let own = own.cloned().map(|row| match &*row.peer {
            FORWARDED => Row {
                peer: ROUTED.to_owned(),
                ..row
            },
            _ => row,
        });
        let own: Vec<_> = own.collect();
        run.report.rows(group, &own);
        run.report.ratio(group, &own, (ROUTED, DIRECT), most);
    }
    Ok(())
}

/// Counts the outcomes of several callers' requests while the two nodes take turns to lead.
async fn hand_overs(run: &mut Run<'_>, mut nodes: [Peer; 2], at: [f64; 2]) -> Result<()> {
    let Some(mut callers) = run.peer(ROUTED).await? else {
        return Ok(());
    };
    let count = run.samples(100, 30);
    let [one, two] = at;
    callers.ask(&format!("load {ELECTION} {one} {two}")).await?;
    for _ in 0..count {
        let [leader, next] = &mut nodes;
        until(next, "waits").await?;
        leader.ask("step-down").await?;
        until(next, "leads").await?;
        tokio::time::sleep(SETTLED).await;
        nodes.reverse();
    }
    let sent = Sent::read(&callers.ask("stop").await?);
    let mut taken: HashMap<u64, usize> = HashMap::new();
    for node in &mut nodes {
        for request in node.ask("taken").await? {
            *taken.entry(request as u64).or_default() += 1;
        }
    }
    ensure!(sent.len() > count, "too few requests: {}", sent.len());
    let (lost, doubled) = fate(&sent, &taken);
    for (what, figure, most) in [
        ("sent", sent.len(), None),
        ("lost", lost, Some(0.0)),
        ("doubled", doubled, Some(0.0)),
    ] {
        let group = Group {
            what,
            ..run.group(count, "requests")
        };
        let samples: Samples = [figure as f64].into_iter().collect();
        let peer = ROUTED.to_owned();
        run.report.rows(group, &[Row { peer, samples }]);
        if let Some(most) = most {
            run.report.count(group, "requests", figure as f64, most);
        }
    }
    Ok(())
}

/// Returns how many requests were lost, that is without an answer or never carried out, and how many were carried out
/// twice although they may be sent again only if no handler worked on them.
fn fate(sent: &[Sent], taken: &HashMap<u64, usize>) -> (usize, usize) {
    let times = |sent: &Sent| taken.get(&sent.request).copied().unwrap_or(0);
    let lost = sent
        .iter()
        .filter(|sent| !sent.answered || times(sent) == 0);
    let doubled = sent
        .iter()
        .filter(|sent| !sent.is_idempotent() && times(sent) > 1);
    (lost.count(), doubled.count())
}

async fn peer(context: Context, mut asked: Asked) -> Result<()> {
    let Some(words) = asked.next().await? else {
        return Ok(());
    };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match *words {
        ["serve", election] => node::serve(&context, asked, election).await,
        ["reach", election, port] => callers::one(&context, asked, election, port).await,
        ["load", election, one, two] => callers::many(&context, asked, election, [one, two]).await,
        _ => bail!("no question {words:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{Sent, fate};

    #[test]
    fn request_is_lost_without_answer_or_taker_and_doubled_by_two_takers() {
        let sent = |caller: u64, number: u64, answered| Sent {
            request: Sent::request(caller, number),
            answered,
        };
        let (post, put) = (0, 2);
        let all = [
            sent(post, 0, true),
            sent(post, 1, true),
            sent(post, 2, false),
            sent(post, 3, true),
            sent(put, 0, true),
            sent(put, 1, true),
        ];
        let times = [1, 2, 1, 0, 1, 2];
        let taken = all.iter().map(|sent| sent.request).zip(times).collect();
        assert_eq!(fate(&all, &taken), (2, 1));
        let answers: Vec<f64> = all.iter().flat_map(Sent::written).collect();
        assert_eq!(Sent::read(&answers), all);
    }
}

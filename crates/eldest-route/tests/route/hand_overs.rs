//! Tests hand-overs under load: a request that is safe to repeat is never lost, and no other is applied twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use eldest_route::{Error, ErrorKind, Http, Route, Routed};
use eldest_testing::{Etcd, eventually};

use crate::stage::{Done, Node, Result, SOON, ask, observer, request};

/// Returns how often the leader changes: 100 with `ELDEST_HAND_OVERS=100`.
fn hand_overs() -> usize {
    let given = std::env::var("ELDEST_HAND_OVERS").ok();
    given.and_then(|given| given.parse().ok()).unwrap_or(12)
}

/// Counts the outcomes of the requests of a load.
#[derive(Debug, Default)]
struct Tally {
    sent: AtomicUsize,
    lost: AtomicUsize,
}

/// Sends one request after the other until the test stops it. A request may only be lost if its method forbids a
/// repetition.
async fn load(
    name: String,
    method: &'static str,
    route: Route,
    done: Done,
    stop: Arc<AtomicBool>,
) -> Result<Tally> {
    let client = Routed::new(route, Http::new()).wait(SOON);
    let tally = Tally::default();
    while !stop.load(Ordering::Relaxed) {
        let number = tally.sent.fetch_add(1, Ordering::Relaxed);
        let order = format!("{name}-{number}");
        let answer = ask(&client, request(method, &format!("/orders/{order}"))?).await;
        match answer {
            Ok((status, _)) => {
                assert_eq!(status, 200, "{order}");
                let times = done.times(&order);
                assert!(
                    if method == "POST" {
                        times == 1
                    } else {
                        times >= 1
                    },
                    "{order}: {times} times"
                );
            }
            Err(error) => {
                // A leader's answer that broke off in its body is an error of hyper's, not of this crate.
                let kind = error.downcast_ref::<Error>().map(Error::kind);
                assert!(
                    method == "POST" && matches!(kind, Some(ErrorKind::Lost) | None),
                    "{order}: {error:?}"
                );
                assert!(done.times(&order) <= 1, "{order}");
                tally.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    Ok(tally)
}

/// Returns how many POSTs were lost.
async fn across(cut: bool) -> Result<usize> {
    let etcd = Etcd::start().await?;
    let done = Done::default();
    let mut nodes = [
        Node::start(&etcd, "a", &done).await?,
        Node::start(&etcd, "b", &done).await?,
    ];
    let (_session, route) = observer(&etcd).await?;
    route.wait(SOON).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let loads = ["POST", "POST", "GET", "PUT"]
        .iter()
        .enumerate()
        .map(|(n, method)| {
            tokio::spawn(load(
                format!("{method}{n}"),
                method,
                route.clone(),
                done.clone(),
                Arc::clone(&stop),
            ))
        });
    let loads: Vec<_> = loads.collect();
    let mut tokens = Vec::new();
    for _ in 0..hand_overs() {
        let leading = async || nodes.iter().position(|node| node.election.is_leader());
        let leader = eventually(SOON, "one leads", leading).await?;
        nodes[1 - leader].waits().await?;
        let term = nodes[leader].election.term().ok_or("a term")?;
        if cut {
            nodes[leader].cut().await;
        }
        nodes[leader].election.step_down().await?;
        nodes[1 - leader].leads().await?;
        if cut {
            nodes[leader].listen().await?;
        }
        tokens.push(term.fencing_token());
    }
    assert!(tokens.is_sorted_by(|one, next| one < next));
    stop.store(true, Ordering::Relaxed);
    let (mut sent, mut lost) = (0, 0);
    for load in loads {
        let tally = load.await??;
        sent += tally.sent.load(Ordering::Relaxed);
        lost += tally.lost.load(Ordering::Relaxed);
    }
    println!(
        "{} hand-overs, {sent} requests, {lost} POSTs without an answer",
        tokens.len()
    );
    assert!(sent > tokens.len());
    for node in nodes {
        node.end().await?;
    }
    Ok(lost)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_is_lost_and_none_is_doubled_while_leaders_step_down() -> Result {
    assert_eq!(across(false).await?, 0, "nobody worked on what was refused");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idempotent_request_survives_leaders_whose_connections_are_cut() -> Result {
    across(true).await?;
    Ok(())
}

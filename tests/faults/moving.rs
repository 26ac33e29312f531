//! Tests members of etcd that are replaced one by one, under a leader and a waiting candidate that follow them.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eldest::internal::{Env as _, System};
use eldest::sim::Scripted;
use eldest::{Session, SessionOptions};
use eldest_testing::{EtcdCluster, eventually};
use futures::FutureExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::capture::Logs;
use crate::stage::{Node, Result, SOON, Stage, Work, options, seconds};

/// A TTL long enough to survive a change of etcd's leader on a busy machine.
const TTL: Duration = seconds(15);
/// Two rounds of lookups.
const ROUNDS: Duration = seconds(60);

/// Waits until the node uses these endpoints, in any order.
async fn follows(node: &Node, mut endpoints: Vec<String>) -> Result {
    endpoints.sort();
    eventually(ROUNDS, format!("{} follows", node.name), async || {
        let seen = node.session.endpoints();
        let seen = seen.borrow();
        let mut urls: Vec<String> = seen.iter().map(|one| one.url().to_owned()).collect();
        urls.sort();
        (urls == endpoints).then_some(())
    })
    .await?;
    Ok(())
}

/// Replaces each member by a new one; in between, `announce` publishes the present endpoints.
async fn replaces_every_member(
    stage: &Stage,
    cluster: &mut EtcdCluster,
    nodes: [&Node; 2],
    announce: impl AsyncFn(usize, &EtcdCluster) -> Result<Vec<String>>,
) -> Result {
    let [a, b] = nodes;
    let led = a.elected(SOON).await?;
    let waits = stage.await_candidate("b").await?;
    for index in 0..3 {
        let before = cluster.endpoints();
        let fault = format!("member {index} replaced");
        stage.fault("", &fault);
        cluster.replace(index).await?;
        cluster.leader().await;
        stage.healed("", &fault);
        stage
            .client
            .add_endpoint(cluster.endpoints()[index].as_str())
            .await?;
        stage.client.remove_endpoint(before[index].as_str()).await?;
        let endpoints = announce(index, cluster).await?;
        for node in [a, b] {
            follows(node, endpoints.clone()).await?;
        }
        stage.renewed(&led).await?;
    }
    assert_eq!(a.leads().map(|now| now.token()), Some(led.token()));
    assert_eq!((a.terms().len(), b.terms().len()), (1, 0));
    assert_eq!(stage.await_candidate("b").await?, waits, "the same key");
    Ok(())
}

async fn node(stage: &Stage, endpoints: &[String], options: SessionOptions) -> Result<Node> {
    let session = Session::connect(endpoints, options).await?;
    let name = session.identity().to_owned();
    let node = Node::of(stage, session, Work::UntilLost)?;
    stage.await_candidate(&name).await?;
    Ok(node)
}

/// Checks that the waiting candidate leads next, and nothing is left.
async fn ends_well(stage: Stage, [a, b]: [Node; 2]) -> Result {
    a.stop().await?;
    b.elected(SOON).await?;
    b.stop().await?;
    stage.judge(2, 0).await?;
    Ok(())
}

#[tokio::test]
async fn term_survives_replaced_members_if_its_session_follows_them() -> Result {
    let (logs, _guard) = Logs::capture();
    let mut cluster = EtcdCluster::start(3).await?;
    cluster.leader().await;
    let stage = Stage::new(&cluster.endpoints(), TTL).await?;
    let following = |name| options(name, TTL).follow_members();
    let a = node(&stage, &cluster.endpoints(), following("a")).await?;
    // The node `b` begins with a single endpoint.
    let b = node(&stage, &cluster.endpoints()[..1], following("b")).await?;
    replaces_every_member(&stage, &mut cluster, [&a, &b], async |_, cluster| {
        Ok(cluster.endpoints())
    })
    .await?;
    let mut refused = logs.of("eldest::etcd", "endpoint not used", &[]);
    // While the members elect a leader, none of them answers. No member may be considered another cluster's, or an
    // older one.
    let judged = ["another cluster", "an older state"];
    refused.retain(|line| judged.iter().any(|why| line.fields["why"].contains(why)));
    assert!(refused.is_empty(), "{refused:?}");
    ends_well(stage, [a, b]).await
}

/// The addresses of `etcd.test` in DNS.
#[derive(Default)]
struct Dns(Mutex<Vec<IpAddr>>);

impl Dns {
    fn options(self: &Arc<Self>, name: &str) -> SessionOptions {
        let dns = Arc::clone(self);
        let addresses = move |host: String| {
            let known = dns.0.lock().unwrap().clone();
            let answer = match &*host {
                "etcd.test" => Ok(known),
                _ => Err(io::ErrorKind::NotFound.into()),
            };
            std::future::ready(answer).boxed()
        };
        let system = System::new().expect("in a runtime");
        let (clock, alarm) = (system.clone(), system.clone());
        let (watchdog, bell) = (system.clone(), system);
        options(name, TTL).env(Arc::new(Scripted {
            now: Box::new(move || clock.now()),
            wake_at: Box::new(move |at| alarm.wake_at(at)),
            watch: Box::new(move |watched| watchdog.watch(watched)),
            rewatch: Box::new(move || bell.rewatch()),
            addresses: Box::new(addresses),
            ..Scripted::real()
        }))
    }
}

/// Forwards connections at the address to the endpoint, until it is dropped.
async fn serve(at: IpAddr, port: u16, endpoint: &str) -> Result<JoinSet<()>> {
    let listener = TcpListener::bind((at, port)).await?;
    let to = endpoint.replace("http://", "");
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut from, _)) = listener.accept().await {
            let to = to.clone();
            connections.spawn(async move {
                let mut to = TcpStream::connect(to).await?;
                tokio::io::copy_bidirectional(&mut from, &mut to).await
            });
        }
    });
    Ok(tasks)
}

#[tokio::test]
async fn term_survives_replaced_members_if_dns_names_the_new_ones() -> Result {
    let mut cluster = EtcdCluster::start(3).await?;
    cluster.leader().await;
    let stage = Stage::new(&cluster.endpoints(), TTL).await?;
    let port = std::net::TcpListener::bind("127.0.1.1:0")?
        .local_addr()?
        .port();
    let at = |last: usize| IpAddr::from([127, 0, 1, last as u8]);
    let dns = Arc::<Dns>::default();
    let mut served = Vec::new();
    for (index, endpoint) in cluster.endpoints().iter().enumerate() {
        served.push(serve(at(index + 1), port, endpoint).await?);
        dns.0.lock().unwrap().push(at(index + 1));
    }
    let name = [format!("dns+http://etcd.test:{port}")];
    let a = node(&stage, &name, dns.options("a")).await?;
    let b = node(&stage, &name, dns.options("b")).await?;
    let served = Mutex::new(served);
    let announce = async |index: usize, cluster: &EtcdCluster| {
        let new = serve(at(index + 4), port, &cluster.endpoints()[index]).await?;
        served.lock().unwrap()[index] = new;
        let mut known = dns.0.lock().unwrap();
        known[index] = at(index + 4);
        Ok(known
            .iter()
            .map(|at| format!("http://{at}:{port}"))
            .collect())
    };
    replaces_every_member(&stage, &mut cluster, [&a, &b], announce).await?;
    ends_well(stage, [a, b]).await
}

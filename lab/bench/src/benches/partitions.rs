//! `partitions/moves`: a steady stream of requests by key while partitions move between two members that prepare for them,
//! until each is answered.

use std::collections::BTreeMap;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use axum::Router;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use eldest::{
    Announcement, BoxError, CancellationToken, ComingPartition, Partition, PartitionMap,
    Partitions, Session, SessionOptions, Term,
};
use eldest_http::{Limits, serve};
use eldest_route::{Http, NOT_LEADER, RouteExt, Routed, not_leader};
use futures::FutureExt;
use http::StatusCode;
use http::request::Parts;
use tokio::net::TcpListener;
use tokio::sync::RwLock;
use tokio::task::JoinHandle;

use super::Bench;
use crate::load::{CarriedOut, Compared, connect};
use crate::run::Run;

pub(super) const BENCH: Bench = Bench {
    name: "partitions/moves",
    about: "1,000 POSTs a second by key, while partitions move 1,000 times to owners that are ready, until each is answered",
    checked: false,
    run: |run| measure(run).boxed(),
    peer: |context, _| async move { bail!("{}: no peer", context.peer) }.boxed(),
};

/// The number of partitions. Each change of the data centres moves half of them.
const COUNT: u32 = 64;
/// The time from one change of the data centres to the next.
const APART: Duration = Duration::from_millis(250);
const SOON: Duration = Duration::from_secs(30);
const NAME: &str = "moves";
/// The members, each of which is alone in the data centre of its name.
const MEMBERS: [&str; 2] = ["a", "b"];

async fn measure(run: &mut Run<'_>) -> Result<()> {
    let moves = run.samples(1000, 160);
    let endpoint = run.endpoint().await?;
    let counts = Counts::default();
    let [a, b] = MEMBERS;
    let nodes = [
        Node::start(&endpoint, a, &counts).await?,
        Node::start(&endpoint, b, &counts).await?,
    ];
    let observer = connect(&endpoint, SessionOptions::new("observer")).await?;
    let partitions = observer.partitions(NAME, COUNT)?;
    shared(&partitions, [COUNT / 2; 2]).await?;
    let by_order: fn(&Parts) -> Option<Vec<u8>> =
        |parts| Some(parts.uri.path().strip_prefix('/')?.into());
    let client = Routed::new(partitions.route().await?.by_key(by_order), Http::new());

    let before = counts.terms();
    let moving = move_all(&observer, &partitions, (&counts, before + moves));
    // Each change of the data centres moves a half.
    let as_long = APART * (2 * moves as u32).div_ceil(COUNT);
    let compared = Compared::send(&client, as_long, moving).await?;
    let group = run.group("", counts.terms() - before, "ms");
    compared.report(run.report, group, &counts.done);
    for node in nodes {
        node.end().await?;
    }
    Ok(observer.close().await?)
}

/// Waits until the two members own so many partitions.
async fn shared(partitions: &Partitions, wanted: [u32; 2]) -> Result<()> {
    let mut maps = partitions.observe().await?;
    let reached = async {
        while let Some(map) = maps.next().await {
            let map = map?;
            if MEMBERS.map(|identity| owns(&map, identity)) == wanted {
                return Ok(());
            }
        }
        bail!("the observer has ended")
    };
    let reached = tokio::time::timeout(SOON, reached).await;
    reached.with_context(|| format!("the members do not own {wanted:?} partitions"))?
}

fn owns(map: &PartitionMap, identity: &str) -> u32 {
    let owners = map.iter().filter(|(_, owner)| owner.identity() == identity);
    owners.count() as u32
}

/// Moves partitions until so many terms have begun in all: the evacuation of a member's data centre moves its half to the
/// other member, and the end of the evacuation moves a half back.
async fn move_all(
    session: &Session,
    partitions: &Partitions,
    (counts, terms): (&Counts, usize),
) -> Result<()> {
    let mut turns = [[0, COUNT], [COUNT, 0]].into_iter().zip(MEMBERS).cycle();
    let mut pace = tokio::time::interval(APART);
    while counts.terms() < terms {
        let (all, away) = turns.next().context("turns never end")?;
        pace.tick().await;
        session.evacuate(away).await?;
        shared(partitions, all).await?;
        pace.tick().await;
        session.lift(away).await?;
        shared(partitions, [COUNT / 2; 2]).await?;
    }
    Ok(())
}

/// The work of all nodes.
#[derive(Debug, Clone, Default)]
struct Counts {
    done: CarriedOut,
    /// The number of terms that began.
    terms: Arc<AtomicUsize>,
}

impl Counts {
    fn terms(&self) -> usize {
        self.terms.load(Ordering::Relaxed)
    }
}

/// A partition that its owner serves. Each request under way holds a read lock.
struct Served {
    term: Term,
    busy: Arc<RwLock<()>>,
}

/// A member's work: it carries out the requests for the partitions that it owns.
#[derive(Clone)]
struct Work {
    partitions: Partitions,
    served: Arc<Mutex<BTreeMap<u32, Served>>>,
    counts: Counts,
}

impl Work {
    /// Serves a partition until its term ends; then finishes the requests under way and refuses others.
    async fn serve(self, partition: Partition) -> Result<(), BoxError> {
        let busy = Arc::new(RwLock::new(()));
        let served = Served {
            term: partition.term(),
            busy: Arc::clone(&busy),
        };
        self.all_served().insert(partition.number(), served);
        self.counts.terms.fetch_add(1, Ordering::Relaxed);
        partition.lost().cancelled().await;
        self.all_served().remove(&partition.number());
        let _all_ended = busy.write().await;
        Ok(())
    }

    fn all_served(&self) -> std::sync::MutexGuard<'_, BTreeMap<u32, Served>> {
        self.served.lock().expect("no thread panics here")
    }

    fn answer(State(work): State<Self>, Path(order): Path<String>) -> Ready<Response> {
        let partition = work.partitions.partition_for(&order);
        let busy = {
            let served = work.all_served();
            let mine = served.get(&partition).filter(|one| one.term.is_valid());
            mine.and_then(|one| Arc::clone(&one.busy).try_read_owned().ok())
        };
        ready(if busy.is_some() {
            work.counts.done.add(order);
            StatusCode::OK.into_response()
        } else {
            let refused = [(NOT_LEADER, not_leader(NAME))];
            (StatusCode::SERVICE_UNAVAILABLE, refused).into_response()
        })
    }
}

/// A member that prepares for partitions and serves them.
struct Node {
    session: Session,
    shutdown: CancellationToken,
    run: JoinHandle<eldest::Result<Option<()>>>,
    server: JoinHandle<std::io::Result<()>>,
}

impl Node {
    async fn start(endpoint: &str, identity: &str, counts: &Counts) -> Result<Self> {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let me = Announcement::default()
            .with_address(listener.local_addr()?.to_string())
            .with_data_center(identity);
        let session = connect(endpoint, SessionOptions::new(identity).announcement(me)).await?;
        let work = Work {
            partitions: session.partitions(NAME, COUNT)?.warm_within(SOON),
            served: Arc::default(),
            counts: counts.clone(),
        };
        let app = Router::new()
            .route("/{order}", post(Work::answer))
            .with_state(work.clone());
        let shutdown = CancellationToken::new();
        let stopped = shutdown.clone();
        let run = tokio::spawn(async move {
            let prepare = async |_: ComingPartition| Ok::<_, BoxError>(());
            let runner = work.partitions.runner().prepare(prepare);
            runner
                .run(stopped, move |partition| work.clone().serve(partition))
                .await
        });
        Ok(Self {
            session,
            shutdown,
            run,
            server: tokio::spawn(serve(
                listener,
                app,
                Limits::default(),
                CancellationToken::new(),
            )),
        })
    }

    async fn end(self) -> Result<()> {
        self.shutdown.cancel();
        self.run.await??;
        self.server.abort();
        Ok(self.session.close().await?)
    }
}

//! Implements a service's own election trait, which has the shape of a public metadata server's, by this library: the
//! library has everything that the trait needs.
#![allow(clippy::disallowed_methods)] // tests run in real time

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use eldest::{
    Announcement, BoxError, Election, Group, GroupMembership, Session, SessionOptions, Term,
};
use eldest_testing::{Etcd, MemoryEtcd, eventually};
use futures::future::BoxFuture;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

type Result<T = ()> = std::result::Result<T, BoxError>;

const TTL: Duration = Duration::from_secs(5);
/// The limit: the TTL, etcd's interval for expired leases and its election timeout, and room for the machine.
const SOON: Duration = Duration::from_secs(12);
/// How long a service needs to stop its work; less than the grace period of [`TTL`].
const STOPPING: Duration = Duration::from_millis(700);

/// The description of a server for the others.
#[derive(Debug, Clone, PartialEq)]
struct NodeInfo {
    address: String,
    version: String,
}

/// The key of a term, as subscribers get it.
#[derive(Debug, Clone, PartialEq)]
struct LeaderKey {
    election: String,
    key: Vec<u8>,
    revision: i64,
    lease: i64,
}

#[derive(Debug, Clone, PartialEq)]
enum Change {
    Elected(LeaderKey),
    SteppedDown(LeaderKey),
}

/// The service's trait. It is used as `Arc<dyn Metasrv>`, beside implementations on databases.
trait Metasrv: Send + Sync {
    /// Returns true while this node leads; called on every request.
    fn is_leader(&self) -> bool;
    /// Returns true once for each term, while this leader still has to load its state.
    fn begins(&self) -> bool;
    /// Makes this node known to all, for as long as it lives, also without a campaign.
    fn register(&self) -> BoxFuture<'_, Result>;
    fn candidates(&self) -> BoxFuture<'_, Result<Vec<NodeInfo>>>;
    /// Waits for the leadership, and returns when it is over; the service calls it in a loop.
    fn campaign(&self) -> BoxFuture<'_, Result>;
    /// The address of the leader.
    fn leader(&self) -> BoxFuture<'_, Result<Option<String>>>;
    fn resign(&self) -> BoxFuture<'_, Result>;
    /// Reports that the service's work under that key has ended.
    fn stopped(&self, key: &LeaderKey);
    fn subscribe(&self) -> broadcast::Receiver<Change>;
}

struct OnEldest {
    election: Election,
    nodes: Group,
    /// The membership, kept for as long as this node must be known.
    known: OnceLock<GroupMembership>,
    /// The token of the last term whose beginning was reported.
    begun: AtomicI64,
    /// The token of the last term whose work has ended.
    stopped: watch::Sender<i64>,
    changes: broadcast::Sender<Change>,
}

impl OnEldest {
    fn options(me: &NodeInfo) -> SessionOptions {
        let announcement = Announcement::new(&me.address)
            .with_address(&me.address)
            .with_metadata("version", &me.version);
        SessionOptions::new(&me.address)
            .ttl(TTL)
            .announcement(announcement)
    }

    fn on(session: &Session) -> Result<Arc<dyn Metasrv>> {
        Ok(Arc::new(Self {
            election: session.election("metasrv")?,
            nodes: session.group("metasrv/nodes")?,
            known: OnceLock::new(),
            begun: AtomicI64::new(0),
            stopped: watch::channel(0).0,
            changes: broadcast::channel(16).0,
        }))
    }

    fn key_of(&self, term: &Term) -> LeaderKey {
        LeaderKey {
            election: self.election.prefix().to_owned(),
            key: term.key().to_vec(),
            revision: term.fencing_token(),
            lease: term.lease_id(),
        }
    }
}

impl Metasrv for OnEldest {
    fn is_leader(&self) -> bool {
        self.election.is_leader()
    }

    fn begins(&self) -> bool {
        let term = self.election.term().filter(Term::is_valid);
        term.is_some_and(|term| {
            let token = term.fencing_token();
            self.begun.swap(token, Ordering::AcqRel) != token
        })
    }

    fn register(&self) -> BoxFuture<'_, Result> {
        Box::pin(async {
            let _ = self.known.set(self.nodes.join().await?);
            Ok(())
        })
    }

    fn candidates(&self) -> BoxFuture<'_, Result<Vec<NodeInfo>>> {
        Box::pin(async {
            let roster = self.nodes.members().await?;
            let info = |announced: &Announcement| NodeInfo {
                address: announced.address().unwrap_or_default().to_owned(),
                version: announced.metadata("version").unwrap_or_default().to_owned(),
            };
            let members = roster.members().iter();
            Ok(members.map(|member| info(member.announcement())).collect())
        })
    }

    fn campaign(&self) -> BoxFuture<'_, Result> {
        Box::pin(async {
            let leadership = self.election.campaign().await?.elected().await?;
            let (key, lost) = (self.key_of(&leadership.term()), leadership.lost());
            let (changes, mut stopped) = (self.changes.clone(), self.stopped.subscribe());
            // There may be no subscriber.
            let _ = changes.send(Change::Elected(key.clone()));
            let working = async move {
                lost.cancelled().await;
                let token = key.revision;
                let _ = changes.send(Change::SteppedDown(key));
                let _ = stopped.wait_for(|stopped| *stopped >= token).await;
            };
            Ok(leadership.hold_until_stopped(working).await?)
        })
    }

    fn leader(&self) -> BoxFuture<'_, Result<Option<String>>> {
        Box::pin(async {
            let leader = self.election.leader().await?;
            let address = |announced: &Announcement| announced.address().map(str::to_owned);
            Ok(leader.and_then(|leader| address(leader.announcement())))
        })
    }

    fn resign(&self) -> BoxFuture<'_, Result> {
        Box::pin(async { Ok(self.election.resign().await?) })
    }

    fn stopped(&self, key: &LeaderKey) {
        self.stopped
            .send_modify(|stopped| *stopped = key.revision.max(*stopped));
    }

    fn subscribe(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }
}

fn node(number: u16) -> NodeInfo {
    NodeInfo {
        address: format!("10.0.0.{number}:3002"),
        version: "1.2.3".to_owned(),
    }
}

/// Starts a server: it registers, and campaigns again and again.
async fn server(session: &Session) -> Result<(Arc<dyn Metasrv>, JoinHandle<Result>)> {
    let server = OnEldest::on(session)?;
    server.register().await?;
    let campaigning = Arc::clone(&server);
    let campaigns = tokio::spawn(async move {
        loop {
            campaigning.campaign().await?;
        }
    });
    Ok((server, campaigns))
}

/// The beginning or the end of a term's work, with its token.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Work {
    Began(Instant, i64),
    Ended(Instant, i64),
}

/// Works as long as its server leads, and needs some time to stop.
async fn service(server: Arc<dyn Metasrv>, works: mpsc::UnboundedSender<Work>) {
    let mut changes = server.subscribe();
    while let Ok(change) = changes.recv().await {
        match change {
            Change::Elected(key) => drop(works.send(Work::Began(Instant::now(), key.revision))),
            Change::SteppedDown(key) => {
                tokio::time::sleep(STOPPING).await;
                let _ = works.send(Work::Ended(Instant::now(), key.revision));
                server.stopped(&key);
            }
        }
    }
}

#[tokio::test]
async fn a_service_s_trait_is_kept_by_the_library() -> Result {
    let etcd = Etcd::start().await?;
    let connect = async |me| Session::connect([etcd.endpoint()], OnEldest::options(&me)).await;
    let (first, of_first) = server(&connect(node(1)).await?).await?;
    let mut changes = first.subscribe();
    let elected = timeout(SOON, changes.recv()).await??;
    let Change::Elected(key) = elected else {
        panic!("{elected:?}");
    };
    assert!(first.is_leader() && first.begins() && !first.begins());

    let (second, of_second) = server(&connect(node(2)).await?).await?;
    let mut of_the_second = second.subscribe();
    eventually(SOON, "both are known", async || {
        (first.candidates().await.ok()? == [node(1), node(2)]).then_some(())
    })
    .await?;
    assert_eq!(second.leader().await?, Some(node(1).address));
    assert!(!second.is_leader() && !second.begins());

    // The node campaigns again, at the back of the queue.
    timeout(SOON, first.resign()).await??;
    assert_eq!(
        timeout(SOON, changes.recv()).await??,
        Change::SteppedDown(key.clone())
    );
    let elected = timeout(SOON, of_the_second.recv()).await??;
    let Change::Elected(next) = elected else {
        panic!("{elected:?}");
    };
    assert!(next.revision > key.revision && next.lease != key.lease);
    assert!(second.begins() && !first.is_leader());

    // An operator deletes its key.
    assert!(etcd.delete(&next.key).await?);
    let lost = timeout(SOON, of_the_second.recv()).await??;
    assert_eq!(lost, Change::SteppedDown(next));
    let elected = timeout(SOON, changes.recv()).await??;
    assert!(matches!(elected, Change::Elected(_)), "{elected:?}");
    assert!(first.begins(), "another term");

    // Each campaign begins right after the former one has dropped its candidate.
    for _ in 0..10 {
        let leads = if first.is_leader() { &first } else { &second };
        timeout(SOON, leads.resign()).await??;
        eventually(SOON, "one leads", async || {
            (first.is_leader() || second.is_leader()).then_some(())
        })
        .await?;
    }
    assert!(!of_first.is_finished() && !of_second.is_finished());
    of_first.abort();
    of_second.abort();
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn next_servers_work_begins_after_the_previous_work_ended() -> Result {
    println!("this test runs in virtual time");
    let etcd = MemoryEtcd::start();
    let (works, mut worked) = mpsc::unbounded_channel();
    let mut servers = Vec::new();
    for number in 1..=2 {
        let session = etcd.session(OnEldest::options(&node(number))).await?;
        let (server, campaigns) = server(&session).await?;
        let working = tokio::spawn(service(Arc::clone(&server), works.clone()));
        if number == 1 {
            eventually(SOON, "the first leads", async || {
                server.is_leader().then_some(())
            })
            .await?;
        }
        servers.push((session, server, campaigns, working));
    }
    let mut last = timeout(SOON, worked.recv()).await?.expect("work");
    for turn in 0..6 {
        let (_, leads, campaigns, _) = &servers[turn % 2];
        // The second way drops the task that campaigns: only the term's own work is left.
        if turn < 4 {
            timeout(SOON, leads.resign()).await??;
        } else {
            campaigns.abort();
        }
        for _ in 0..2 {
            let Ok(Some(next)) = timeout(SOON, worked.recv()).await else {
                assert_eq!(turn, 5, "the other one campaigns");
                return Ok(());
            };
            match (last, next) {
                (Work::Began(_, began), Work::Ended(_, ended)) => assert_eq!(began, ended),
                (Work::Ended(ended, before), Work::Began(began, token)) => {
                    assert!(began >= ended && token > before, "{last:?}, then {next:?}");
                }
                _ => panic!("{last:?}, then {next:?}"),
            }
            last = next;
        }
    }
    panic!("both have stopped to campaign");
}

//! A service's own election trait, of the shape that a public metadata server has, implemented by this library: what such a
//! service asks for, it finds.
#![allow(clippy::disallowed_methods)] // tests run in real time

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use eldest::{
    Announcement, BoxError, Election, Group, GroupMembership, Session, SessionOptions, Term,
};
use eldest_testing::{Etcd, eventually};
use futures::future::BoxFuture;
use tokio::sync::broadcast;
use tokio::time::timeout;

type Result<T = ()> = std::result::Result<T, BoxError>;

const TTL: Duration = Duration::from_secs(5);
/// The TTL, etcd's round for expired leases and its election timeout, and the machine's share.
const SOON: Duration = Duration::from_secs(12);

/// What a server says of itself to the others.
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
    /// Asked on every request.
    fn is_leader(&self) -> bool;
    /// Whether this leader still has to load its state: true once for each term.
    fn begins(&self) -> bool;
    /// Makes this node known to all, for as long as it lives, whether or not it campaigns.
    fn register(&self) -> BoxFuture<'_, Result>;
    fn candidates(&self) -> BoxFuture<'_, Result<Vec<NodeInfo>>>;
    /// Waits for the leadership, and returns when it is over; the service calls it in a loop.
    fn campaign(&self) -> BoxFuture<'_, Result>;
    /// The address of the leader.
    fn leader(&self) -> BoxFuture<'_, Result<Option<String>>>;
    fn resign(&self) -> BoxFuture<'_, Result>;
    fn subscribe(&self) -> broadcast::Receiver<Change>;
}

struct OnEldest {
    election: Election,
    nodes: Group,
    /// Kept for as long as this node is to be known.
    known: OnceLock<GroupMembership>,
    /// The token of the last term whose beginning was told.
    begun: AtomicI64,
    changes: broadcast::Sender<Change>,
}

impl OnEldest {
    async fn connect(endpoints: [String; 1], me: NodeInfo) -> Result<Arc<dyn Metasrv>> {
        let announcement = Announcement::new(&me.address)
            .with_address(&me.address)
            .with_metadata("version", &me.version);
        let options = SessionOptions::new(&me.address)
            .ttl(TTL)
            .announcement(announcement);
        let session = Session::connect(endpoints, options).await?;
        Ok(Arc::new(Self {
            election: session.election("metasrv")?,
            nodes: session.group("metasrv/nodes")?,
            known: OnceLock::new(),
            begun: AtomicI64::new(0),
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
            let mut candidate = self.election.campaign().await?;
            let leadership = candidate.elected().await?;
            let key = self.key_of(&leadership.term());
            // Nobody has to listen.
            let _ = self.changes.send(Change::Elected(key.clone()));
            leadership.lost().cancelled().await;
            let _ = self.changes.send(Change::SteppedDown(key));
            Ok(())
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
async fn server(
    etcd: &Etcd,
    me: NodeInfo,
) -> Result<(Arc<dyn Metasrv>, tokio::task::JoinHandle<Result>)> {
    let server = OnEldest::connect([etcd.endpoint()], me).await?;
    server.register().await?;
    let campaigning = Arc::clone(&server);
    let campaigns = tokio::spawn(async move {
        loop {
            campaigning.campaign().await?;
        }
    });
    Ok((server, campaigns))
}

#[tokio::test]
async fn a_service_s_trait_is_kept_by_the_library() -> Result {
    let etcd = Etcd::start().await?;
    let (first, of_first) = server(&etcd, node(1)).await?;
    let mut changes = first.subscribe();
    let elected = timeout(SOON, changes.recv()).await??;
    let Change::Elected(key) = elected else {
        panic!("{elected:?}");
    };
    assert!(first.is_leader() && first.begins() && !first.begins());

    let (second, of_second) = server(&etcd, node(2)).await?;
    let mut of_the_second = second.subscribe();
    eventually(SOON, "both are known", async || {
        (first.candidates().await.ok()? == [node(1), node(2)]).then_some(())
    })
    .await?;
    assert_eq!(second.leader().await?, Some(node(1).address));
    assert!(!second.is_leader() && !second.begins());

    // It campaigns again, at the back of the queue.
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

    // Each campaign begins right after the one before has dropped its candidate.
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

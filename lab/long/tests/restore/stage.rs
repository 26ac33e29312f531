//! Provides the nodes of a test, the reports of their sessions, and the assertions after each restore.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use eldest::{
    BoxError, CancellationToken, Election, Leadership, LostReason, Observer, Session,
    SessionOptions, SessionState, Term,
};
use eldest_testing::{Etcd, eventually};
use etcd_client::{Client, GetOptions, KeyValue};
use tokio::task::JoinHandle;
use tracing::subscriber::DefaultGuard;

use crate::capture::Logs;

pub(crate) type Result<T = ()> = std::result::Result<T, BoxError>;

/// The prefix of all keys in the one election.
const PREFIX: &str = "eldest/jobs/";
/// The identity of a candidate that joins and leaves.
const GUEST: &str = "guest";
/// The limit for events that follow the expiry of a lease, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);
/// A TTL that a test can wait for.
pub(crate) const TTL: Duration = Duration::from_secs(5);
/// The most transactions of one node. A session that loses everything sends those of one or two joins and of one or two
/// removals; one that repeats this in a loop sends thousands.
const TRANSACTIONS_OF_A_NODE: f64 = 10.0;

/// The nodes in the election, and everything that the library logs about them.
pub(crate) struct Stage {
    logs: Logs,
    _guard: DefaultGuard,
    ttl: Duration,
    endpoints: Vec<String>,
    nodes: Vec<Node>,
}

/// A session that runs for the election until it must leave.
pub(crate) struct Node {
    pub(crate) name: &'static str,
    pub(crate) session: Session,
    pub(crate) election: Election,
    terms: Arc<Mutex<Vec<Elected>>>,
    shutdown: CancellationToken,
    task: JoinHandle<eldest::Result<Option<()>>>,
}

/// A term, and how often its session had reported another store before.
#[derive(Clone)]
struct Elected {
    term: Term,
    changes: usize,
}

impl Stage {
    /// Starts a stage on which the node `a` leads in this etcd.
    pub(crate) async fn begin(ttl: Duration, endpoints: Vec<String>) -> Result<Self> {
        let (logs, guard) = Logs::capture();
        let mut stage = Self {
            logs,
            _guard: guard,
            ttl,
            endpoints,
            nodes: Vec::new(),
        };
        stage.await_candidate("a").await?;
        stage.leads("a").await?;
        Ok(stage)
    }

    /// Starts one more node, which is in the queue when this returns.
    pub(crate) async fn await_candidate(&mut self, name: &'static str) -> Result {
        let options = SessionOptions::new(name).ttl(self.ttl);
        let session = Session::connect(&self.endpoints, options).await?;
        let election = session.election("jobs")?;
        let terms = Arc::new(Mutex::new(Vec::new()));
        let shutdown = CancellationToken::new();
        let work = {
            let (terms, logs) = (Arc::clone(&terms), self.logs.clone());
            move |leadership: Leadership| {
                let elected = Elected {
                    term: leadership.term(),
                    changes: changes(&logs, name),
                };
                lock(&terms).push(elected);
                async move {
                    leadership.lost().cancelled().await;
                    Ok::<_, eldest::BoxError>(())
                }
            }
        };
        let run = { election.clone() };
        let stop = shutdown.clone();
        let task = tokio::spawn(async move { run.run(stop, work).await });
        eventually(PATIENCE, format!("{name} stands"), async || {
            let roster = election.roster().await.ok()?;
            { roster.members().iter() }.find(|member| member.identity() == name)?;
            Some(())
        })
        .await?;
        self.nodes.push(Node {
            name,
            session,
            election,
            terms,
            shutdown,
            task,
        });
        Ok(())
    }

    pub(crate) fn node(&self, name: &str) -> &Node {
        let mut nodes = self.nodes.iter();
        nodes.find(|node| node.name == name).expect("it stands")
    }

    /// Waits until this node leads.
    pub(crate) async fn leads(&self, name: &str) -> Result<Term> {
        let node = self.node(name);
        let what = format!("{name} leads");
        Ok(eventually(PATIENCE, what, async || node.terms().pop()).await?)
    }

    /// Lets a node leave, and waits until its key is gone.
    pub(crate) async fn leaves(&mut self, name: &str) -> Result {
        let index = self.nodes.iter().position(|node| node.name == name);
        let mut node = self.nodes.remove(index.ok_or("it stands")?);
        node.shutdown.cancel();
        tokio::time::timeout(PATIENCE, &mut node.task).await???;
        node.elects_no_token_twice();
        node.session.close().await?;
        Ok(())
    }

    /// Waits until etcd has `watches` watches. Those of the sessions may be missing for a while after a restart of
    /// etcd.
    pub(crate) async fn watched(&self, etcd: &Etcd, watches: usize) -> Result {
        Ok(
            eventually(PATIENCE, format!("{watches} watches"), async || {
                let standing = etcd.metric("etcd_debugging_mvcc_watcher_total").await;
                (standing as usize == watches).then_some(())
            })
            .await?,
        )
    }

    /// Waits until each session has verified a renewal that it sent after this call. Then each knows all revisions of
    /// etcd up to now, whether or not its watch is open.
    pub(crate) async fn renew(&self) -> Result {
        let begun = Instant::now();
        Ok(eventually(PATIENCE, "all sessions renew", async || {
            let renewed = |node: &Node| match &*node.session.state().borrow() {
                SessionState::Live(lease) => self.is_renewed(lease.time_left(), begun),
                _ => false,
            };
            self.nodes.iter().all(renewed).then_some(())
        })
        .await?)
    }

    /// Returns true if a deadline this far away comes from a renewal that was sent after `begun`.
    fn is_renewed(&self, time_left: Duration, begun: Instant) -> bool {
        time_left + begun.elapsed() + self.ttl / 20 >= self.ttl.mul_f64(0.999)
    }

    /// Lets a candidate of a separate session join and leave `times` times, while an observer of every node sees it.
    pub(crate) async fn guests(&self, times: usize) -> Result {
        let options = SessionOptions::new(GUEST);
        let session = Session::connect(&self.endpoints, options).await?;
        let election = session.election("jobs")?;
        let mut observers = Vec::new();
        for node in &self.nodes {
            observers.push(node.election.observe().await?);
        }
        for _ in 0..times {
            let mut guest = election.campaign().await?;
            for observer in &mut observers {
                sees(observer, true).await?;
            }
            guest.leave().await?;
            for observer in &mut observers {
                sees(observer, false).await?;
            }
        }
        session.close().await?;
        Ok(())
    }

    /// Returns how often this session has reported that another store answers.
    pub(crate) fn changes(&self, name: &str) -> usize {
        changes(&self.logs, name)
    }

    /// Waits until these sessions have reported that another store answers.
    pub(crate) async fn reported(&self, names: &[&str]) -> Result {
        eventually(PATIENCE, format!("{names:?} report it"), async || {
            { names.iter() }
                .all(|name| self.changes(name) > 0)
                .then_some(())
        })
        .await
        .map_err(|error| format!("{error}\n{:?}", self.logs).into())
    }

    /// Waits until the restore has settled: each node is in the queue, one of them leads and stays, and etcd has little
    /// to do. Then the nodes leave, the leader first, and each of them leads in turn. Nothing of them is left. Returns
    /// all tokens of the new leaders.
    ///
    /// `etcd` was started after the restore, so that it counts only the later requests.
    pub(crate) async fn settles(&mut self, etcd: &Etcd) -> Result<Vec<i64>> {
        let mut client = etcd.client().await;
        let begun = Instant::now();
        let settled = eventually(PATIENCE, "all stand behind one leader", async || {
            let leader = self.only_leader()?;
            // A later renewal counts only if its session finds no other store. Until then, a term may be about to end.
            if !self.is_renewed(leader.valid_until().time_left(), begun) {
                return None;
            }
            let keys = keys(&mut client).await.ok()?;
            let first = keys.first()? == &leader.fencing_token();
            (first && keys.len() == self.nodes.len()).then_some(leader.fencing_token())
        });
        let token = settled
            .await
            .map_err(|error| format!("{error}\n{:?}", self.logs))?;
        self.stays(token).await?;
        let sent = transactions(etcd).await;
        let most = TRANSACTIONS_OF_A_NODE * self.nodes.len() as f64;
        assert!(
            sent <= most,
            "{sent} transactions since the restore\n{:?}",
            self.logs
        );
        let mut tokens = Vec::new();
        while !self.nodes.is_empty() {
            let what = format!("a next leader after {tokens:?}");
            let next = eventually(PATIENCE, what, async || self.only_leader()).await;
            let next = next.map_err(|error| format!("{error}\n{:?}", self.logs))?;
            tokens.push(next.fencing_token());
            let leader = self.nodes.iter().find(|node| !node.terms().is_empty());
            let leader = leader.ok_or("it leads")?.name;
            self.leaves(leader).await?;
        }
        assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
        eventually(PATIENCE, "no key and no lease is left", async || {
            let keys = keys(&mut client).await.ok()?;
            let leases = client.leases().await.ok()?.leases().len();
            (keys.is_empty() && leases == 0).then_some(())
        })
        .await?;
        Ok(tokens)
    }

    /// Returns the term of the one node that leads; `None` if no node leads, or several do.
    fn only_leader(&self) -> Option<Term> {
        let mut valid = self.nodes.iter().flat_map(Node::terms);
        valid.next().filter(|_| valid.next().is_none())
    }

    /// Checks that for a TTL this term is valid, and no other.
    async fn stays(&self, token: i64) -> Result {
        let end = Instant::now() + self.ttl.min(TTL);
        Ok(eventually(PATIENCE, "a TTL passes", async || {
            let leader = self.only_leader().map(|term| term.fencing_token());
            assert_eq!(leader, Some(token), "{:?}", self.logs);
            (Instant::now() >= end).then_some(())
        })
        .await?)
    }
}

impl Node {
    /// Returns the node's valid terms: more than one means that it leads twice.
    fn terms(&self) -> Vec<Term> {
        let terms = lock(&self.terms);
        let terms = terms.iter().map(|elected| elected.term.clone());
        terms.filter(Term::is_valid).collect()
    }

    /// Returns why the node's first term has ended, if it has.
    pub(crate) fn first_loss(&self) -> Option<LostReason> {
        lock(&self.terms).first()?.term.lost_reason()
    }

    /// Checks that one token belongs to one term, unless the session reported another store in between.
    fn elects_no_token_twice(&self) {
        let elected = lock(&self.terms).clone();
        let mut seen: Vec<_> = { elected.iter() }
            .map(|elected| (elected.term.fencing_token(), elected.changes))
            .collect();
        seen.sort_unstable();
        let terms = seen.len();
        seen.dedup();
        assert_eq!(terms, seen.len(), "{}: {seen:?}", self.name);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn changes(logs: &Logs, name: &str) -> usize {
    let line = "etcd is another cluster or was restored from a backup: fencing tokens may repeat";
    { logs.of("eldest::session", line, &[("identity", name)]) }.len()
}

/// Returns how many transactions this etcd has answered since it was started.
pub(crate) async fn transactions(etcd: &Etcd) -> f64 {
    etcd.metric("grpc_server_handled_total{grpc_method=\"Txn\"}")
        .await
}

/// Returns the create revisions of all candidates, eldest first.
async fn keys(client: &mut Client) -> Result<Vec<i64>> {
    let all = GetOptions::new().with_prefix();
    let answer = client.get(PREFIX, Some(all)).await?;
    let mut keys: Vec<_> = answer.kvs().iter().map(KeyValue::create_revision).collect();
    keys.sort_unstable();
    Ok(keys)
}

/// Waits until the observer sees that a guest is present, or that it is gone.
async fn sees(observer: &mut Observer, present: bool) -> Result {
    let seen = async {
        while let Some(roster) = observer.next().await {
            let roster = roster?;
            let mut members = roster.members().iter();
            if members.any(|member| member.identity() == GUEST) == present {
                return Ok(());
            }
        }
        Err("the observer ended".into())
    };
    tokio::time::timeout(PATIENCE, seen).await?
}

//! Shares sessions, views of etcd and ways to wait among the tests of the API.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eldest::{
    BoxError, CancellationToken, Candidate, Election, Heartbeats, Leadership, Member, Roster,
    Runner, Session, SessionOptions, Status, Term,
};
use eldest_testing::{Etcd, MemoryEtcd, Proxy, eventually};
use etcd_client::{Client, GetOptions, PutOptions};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub(crate) type Result<T = ()> = std::result::Result<T, BoxError>;

/// The deadline of events that must happen; far below the TTL of [`options`].
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// How long a test watches that an event does not happen.
pub(crate) const WHILE: Duration = Duration::from_millis(300);

/// Options with a TTL so long that no test waits for an expiry, and no renewal is due within a test.
pub(crate) fn options(identity: &str) -> SessionOptions {
    SessionOptions::new(identity)
        .ttl(Duration::from_secs(60))
        .grace(Duration::from_secs(1))
}

/// Options with a TTL that a test can wait for, and as much patience for a busy machine as that allows.
pub(crate) fn short(identity: &str) -> SessionOptions {
    SessionOptions::new(identity)
        .ttl(Duration::from_secs(3))
        .request_timeout(Duration::from_millis(500))
        .grace(Duration::from_millis(500))
}

/// An etcd for tests, a server or in the memory of the test.
pub(crate) trait Store {
    async fn session(&self, options: SessionOptions) -> eldest::Result<Session>;
}

impl Store for Etcd {
    async fn session(&self, options: SessionOptions) -> eldest::Result<Session> {
        Session::connect([self.endpoint()], options).await
    }
}

impl Store for MemoryEtcd {
    async fn session(&self, options: SessionOptions) -> eldest::Result<Session> {
        Self::session(self, options).await
    }
}

/// Starts an etcd in the memory of the test, in the time of the test's runtime. No load of the machine can make such a
/// test fail; the line printed here keeps `cargo xtask test` from repeating it.
pub(crate) fn in_memory() -> MemoryEtcd {
    println!("this test runs in virtual time");
    MemoryEtcd::start()
}

/// An etcd in the memory of the test, at a port and in real time: for effects of a network or a machine on a session.
pub(crate) struct OnPort {
    etcd: MemoryEtcd,
    endpoint: String,
}

impl OnPort {
    pub(crate) async fn start() -> Result<Self> {
        let etcd = MemoryEtcd::start();
        let endpoint = etcd.listen("127.0.0.1:0").await?;
        Ok(Self { etcd, endpoint })
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }
}

impl Deref for OnPort {
    type Target = MemoryEtcd;

    fn deref(&self) -> &MemoryEtcd {
        &self.etcd
    }
}

impl Store for OnPort {
    async fn session(&self, options: SessionOptions) -> eldest::Result<Session> {
        Session::connect([self.endpoint()], options).await
    }
}

/// Starts an etcd at a port, and a proxy in front of it.
pub(crate) async fn behind_a_proxy() -> Result<(OnPort, Proxy)> {
    let etcd = OnPort::start().await?;
    let proxy = Proxy::start(etcd.endpoint()).await?;
    Ok((etcd, proxy))
}

pub(crate) async fn session(etcd: &impl Store, identity: &str) -> Result<Session> {
    Ok(etcd.session(options(identity)).await?)
}

/// Awaits an event that must happen.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future)
        .await
        .unwrap_or_else(|_| panic!("not within {SOON:?}: {what}"))
}

/// Checks repeatedly that a condition stays true.
pub(crate) async fn stays(
    during: Duration,
    what: &str,
    mut condition: impl AsyncFnMut() -> bool,
) -> Result {
    let end = Instant::now() + during;
    Ok(eventually(during + SOON, what, async || {
        assert!(condition().await, "no longer: {what}");
        (Instant::now() >= end).then_some(())
    })
    .await?)
}

/// Joins the election "e" in a new session.
pub(crate) async fn join_election(
    etcd: &impl Store,
    identity: &str,
) -> Result<(Session, Election, Candidate)> {
    let session = session(etcd, identity).await?;
    let election = session.election("e")?;
    let candidate = soon("campaign", election.campaign()).await?;
    Ok((session, election, candidate))
}

pub(crate) async fn elected(candidate: &mut Candidate) -> Result<Leadership> {
    Ok(soon("elected", candidate.elected()).await?)
}

/// Waits for the wanted status of the candidate, and returns it.
pub(crate) async fn status(
    candidate: &Candidate,
    wanted: impl FnMut(&Status) -> bool,
) -> Result<Status> {
    let mut status = candidate.subscribe();
    let status = soon("status", status.wait_for(wanted)).await?;
    Ok(*status)
}

/// A key as etcd stores it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Key {
    pub(crate) path: String,
    pub(crate) value: String,
    pub(crate) created: i64,
    pub(crate) lease: i64,
}

impl Key {
    /// Returns true if its value names that identity.
    pub(crate) fn is_of(&self, identity: &str) -> bool {
        let announced: serde_json::Value = serde_json::from_str(&self.value).unwrap_or_default();
        announced["identity"] == identity || self.value == identity
    }
}

/// Returns all keys under a prefix, in order of the keys.
pub(crate) async fn keys(client: &mut Client, prefix: &str) -> Vec<Key> {
    let all = GetOptions::new().with_prefix();
    let answer = client.get(prefix, Some(all)).await.expect("etcd answers");
    let keys = answer.kvs().iter().map(|kv| Key {
        path: String::from_utf8_lossy(kv.key()).into_owned(),
        value: String::from_utf8_lossy(kv.value()).into_owned(),
        created: kv.create_revision(),
        lease: kv.lease(),
    });
    keys.collect()
}

/// Returns the one key under a prefix.
pub(crate) async fn only_key(client: &mut Client, prefix: &str) -> Key {
    let keys = keys(client, prefix).await;
    assert_eq!(keys.len(), 1, "{keys:?}");
    keys.into_iter().next().expect("there is one")
}

/// Returns true if exactly the key of a term exists, not a later one of that name.
pub(crate) async fn key_exists(client: &mut Client, key: &[u8], created: i64) -> bool {
    let answer = client.get(key, None).await.expect("etcd answers");
    answer
        .kvs()
        .first()
        .is_some_and(|kv| kv.create_revision() == created)
}

/// Waits until no key is left under a prefix.
pub(crate) async fn nothing_under(client: &mut Client, prefix: &str) -> Result {
    Ok(
        eventually(SOON, format!("nothing under {prefix}"), async || {
            keys(client, prefix).await.is_empty().then_some(())
        })
        .await?,
    )
}

/// Returns the number of leases in etcd.
pub(crate) async fn leases(client: &mut Client) -> usize {
    client.leases().await.expect("etcd answers").leases().len()
}

/// Adds a foreign candidate: a key with a lease of its own.
pub(crate) async fn foreign(client: &mut Client, key: &str, value: &str) -> Result<i64> {
    let lease = client.lease_grant(60, None).await?.id();
    let with_lease = PutOptions::new().with_lease(lease);
    client.put(key, value, Some(with_lease)).await?;
    Ok(lease)
}

/// Records, when it is dropped, whether a key still exists: for the order of work and release.
///
/// The drop keeps its thread busy for a while, so that a release in another thread would be seen. So the test needs a
/// runtime with several threads.
pub(crate) struct Probe {
    endpoint: String,
    key: Vec<u8>,
    seen: Arc<Mutex<Vec<bool>>>,
}

impl Probe {
    pub(crate) fn new(endpoint: &str, key: &[u8], seen: &Arc<Mutex<Vec<bool>>>) -> Self {
        Self {
            endpoint: endpoint.to_owned(),
            key: key.to_vec(),
            seen: Arc::clone(seen),
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let (endpoint, key) = (self.endpoint.clone(), self.key.clone());
        let look = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let mut client = Client::connect([endpoint], None).await.expect("no I/O");
                let end = Instant::now() + Duration::from_millis(150);
                while Instant::now() < end {
                    let answer = client.get(&*key, None).await.expect("etcd answers");
                    if answer.kvs().is_empty() {
                        return false;
                    }
                }
                true
            })
        };
        let exists = std::thread::spawn(look).join().expect("no panic");
        self.seen.lock().expect("no panic").push(exists);
    }
}

/// Returns etcd's revision.
pub(crate) async fn revision(client: &mut Client) -> Result<i64> {
    let answer = client.get("nothing", None).await?;
    Ok(answer.header().ok_or("a header")?.revision())
}

/// Waits until `length` keys exist under a prefix.
pub(crate) async fn queue_of(client: &mut Client, prefix: &str, length: usize) -> Result {
    Ok(
        eventually(SOON, format!("{length} keys under {prefix}"), async || {
            (keys(client, prefix).await.len() == length).then_some(())
        })
        .await?,
    )
}

/// Returns the identities of the candidates, eldest first.
pub(crate) fn identities(roster: &Roster) -> Vec<&str> {
    roster.members().iter().map(Member::identity).collect()
}

/// Returns the lock or permit for which a task waited.
pub(crate) async fn held<T>(waiting: JoinHandle<eldest::Result<T>>) -> Result<T> {
    Ok(soon("its turn", waiting).await??)
}

/// Counts how often it, or its owner, was dropped.
pub(crate) struct CountOnDrop(pub(crate) Arc<AtomicUsize>);

impl Drop for CountOnDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A run in a separate task, which hands out the term of every call of its work.
pub(crate) struct Running {
    pub(crate) shutdown: CancellationToken,
    pub(crate) terms: mpsc::UnboundedReceiver<Term>,
    hearts: mpsc::UnboundedReceiver<Heartbeats>,
    pub(crate) task: JoinHandle<eldest::Result<Option<()>>>,
}

impl Running {
    pub(crate) fn start<W, WF>(election: &Election, work: W) -> Self
    where
        W: FnMut(Leadership) -> WF + Send + 'static,
        WF: Future<Output = Result> + Send + 'static,
    {
        Self::with(election.runner(), work)
    }

    pub(crate) fn with<W, WF>(runner: Runner<'static>, work: W) -> Self
    where
        W: FnMut(Leadership) -> WF + Send + 'static,
        WF: Future<Output = Result> + Send + 'static,
    {
        Self::on(&Handle::current(), runner, work)
    }

    /// Runs on another runtime than the test's.
    pub(crate) fn on<W, WF>(runtime: &Handle, runner: Runner<'static>, mut work: W) -> Self
    where
        W: FnMut(Leadership) -> WF + Send + 'static,
        WF: Future<Output = Result> + Send + 'static,
    {
        let (starts, terms) = mpsc::unbounded_channel();
        let (beats, hearts) = mpsc::unbounded_channel();
        let shutdown = CancellationToken::new();
        let work = move |leadership: Leadership| {
            let _ = starts.send(leadership.term());
            let _ = beats.send(leadership.heartbeats());
            work(leadership)
        };
        let task = runtime.spawn(runner.run(shutdown.clone(), work));
        Self {
            shutdown,
            terms,
            hearts,
            task,
        }
    }

    pub(crate) async fn term(&mut self) -> Term {
        soon("work begins", self.terms.recv())
            .await
            .expect("it runs")
    }

    /// Returns the heartbeats for the work of the next term.
    pub(crate) async fn heart(&mut self) -> Heartbeats {
        soon("work begins", self.hearts.recv())
            .await
            .expect("it runs")
    }

    pub(crate) async fn end(self) -> eldest::Result<()> {
        let ended = soon("run returns", self.task).await.expect("no panic");
        ended.map(drop)
    }

    /// Stops the run and waits for it.
    pub(crate) async fn stop(self) -> Result {
        self.shutdown.cancel();
        Ok(self.end().await?)
    }
}

/// A thread with a runtime of its own, for work that blocks: a blocked thread may delay other tasks, and which tasks of
/// the session these are is chance.
pub(crate) struct Thread(Option<Runtime>);

impl Thread {
    pub(crate) fn start() -> Result<Self> {
        let mut runtime = Builder::new_multi_thread();
        Ok(Self(Some(runtime.worker_threads(1).enable_all().build()?)))
    }

    pub(crate) fn handle(&self) -> &Handle {
        self.0.as_ref().expect("until it is dropped").handle()
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Work that ends when its token is cancelled.
pub(crate) async fn until_lost(leadership: Leadership) -> Result {
    leadership.lost().cancelled().await;
    Ok(())
}

/// Waits until exactly those nodes are in the election "e", in that order.
pub(crate) async fn queue(election: &Election, names: &[&str]) -> Result {
    Ok(
        eventually(SOON, format!("the queue is {names:?}"), async || {
            let roster = election.roster().await.ok()?;
            let members = roster.members().iter().map(eldest::Member::identity);
            members.eq(names.iter().copied()).then_some(())
        })
        .await?,
    )
}

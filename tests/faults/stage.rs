//! Runs the nodes of a test on a real etcd, samples whether they consider themselves the leader, and checks the
//! recorded history.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use eldest::{BoxError, CancellationToken, Leadership, LostReason, Session, SessionOptions, Term};
use eldest_testing::eventually;
use eldest_testing::history::{History, Recorder, Report, Rules, TruthRecorder, What, check};
use etcd_client::{Client, GetOptions, LeaseStatus};
use tokio::task::JoinHandle;

pub(crate) type Result<T = ()> = std::result::Result<T, BoxError>;

/// The election of a stage.
pub(crate) const ELECTION: &str = "jobs";
/// The keys of that election.
const PREFIX: &str = "eldest/jobs/";
/// The limit for events that should happen at once; far longer, because the machine may be busy.
pub(crate) const SOON: Duration = Duration::from_secs(10);

pub(crate) const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Options with a request timeout for a busy machine.
pub(crate) fn options(name: &str, ttl: Duration) -> SessionOptions {
    let timeout = (ttl / 20).max(if ttl < seconds(3) {
        millis(300)
    } else {
        millis(500)
    });
    SessionOptions::new(name).ttl(ttl).request_timeout(timeout)
}

/// Options with the longest request timeout that fits in the TTL: a busy machine alone fails no request and no renewal.
pub(crate) fn patient_options(name: &str, ttl: Duration) -> SessionOptions {
    SessionOptions::new(name).ttl(ttl).request_timeout(ttl / 5)
}

/// Returns the latest deadline of `options(_, ttl)` after a renewal that was sent at `sent`.
pub(crate) fn deadline(sent: Duration, ttl: Duration) -> Duration {
    sent + ttl.mul_f64(0.999).saturating_sub(ttl / 20)
}

/// Returns the time between `lost()` and the end of validity under `options(_, ttl)`.
pub(crate) fn grace(ttl: Duration) -> Duration {
    ttl / 5
}

/// One election on a real etcd: its nodes, its history, and the independent eye that observes both.
pub(crate) struct Stage {
    pub(crate) recorder: Recorder,
    /// A client that reaches etcd despite all faults of the nodes.
    pub(crate) client: Client,
    pub(crate) ttl: Duration,
    truth: TruthRecorder,
    pub(crate) sampler: Arc<Sampler>,
    nodes: Mutex<Vec<String>>,
    files: Mutex<Vec<PathBuf>>,
}

/// A key of the election.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) path: String,
    /// The identity in the value, or the whole value of a foreign key.
    pub(crate) identity: String,
    pub(crate) create_revision: i64,
    pub(crate) lease: i64,
}

fn identity(value: &[u8]) -> String {
    let announced: serde_json::Value = serde_json::from_slice(value).unwrap_or_default();
    let said = announced["identity"].as_str().map(str::to_owned);
    said.unwrap_or_else(|| String::from_utf8_lossy(value).into_owned())
}

impl Stage {
    /// Makes a stage; `endpoints` are etcd's own, not those of a proxy.
    pub(crate) async fn new<E: AsRef<str>>(endpoints: &[E], ttl: Duration) -> Result<Self> {
        let client = Client::connect(endpoints, None).await?;
        let recorder = Recorder::boottime();
        let truth =
            TruthRecorder::with_client(client.clone(), recorder.clone(), ELECTION, PREFIX).await?;
        Ok(Self {
            sampler: Sampler::start(recorder.clone()),
            recorder,
            client,
            ttl,
            truth,
            nodes: Mutex::default(),
            files: Mutex::default(),
        })
    }

    pub(crate) fn now(&self) -> Duration {
        self.recorder.now()
    }

    /// Waits until a renewal that is sent from now on is verified. The term must not end meanwhile.
    pub(crate) async fn renewed(&self, led: &Led) -> Result {
        let now = self.now();
        eventually(self.ttl, "renewed", async || {
            assert!(!led.lost.is_cancelled(), "lost: {:?}", led.reason());
            (led.deadline() > deadline(now, self.ttl)).then_some(())
        })
        .await?;
        Ok(())
    }

    /// Starts a node that runs for as long as the test. The node is in the election when this returns.
    pub(crate) async fn node<E: AsRef<str>>(&self, name: &str, endpoints: &[E]) -> Result<Node> {
        let node = Node::start(self, name, endpoints).await?;
        self.await_candidate(name).await?;
        Ok(node)
    }

    /// Like [`Self::node`], with [`patient_options`].
    pub(crate) async fn patient_node(&self, name: &str, endpoints: &[String]) -> Result<Node> {
        let session = Session::connect(endpoints, patient_options(name, self.ttl)).await?;
        let node = Node::of(self, session, Work::UntilLost)?;
        self.await_candidate(name).await?;
        Ok(node)
    }

    /// Like [`Self::node`], with work that continues for as long as its term is valid.
    pub(crate) async fn stubborn_node(&self, name: &str, endpoint: &str) -> Result<Node> {
        let session = Session::connect([endpoint], options(name, self.ttl)).await?;
        let node = Node::of(self, session, Work::UntilInvalid)?;
        self.await_candidate(name).await?;
        Ok(node)
    }

    pub(crate) async fn await_candidate(&self, name: &str) -> Result<Key> {
        Ok(eventually(SOON, format!("{name} stands"), async || {
            self.keys()
                .await
                .into_iter()
                .find(|key| key.identity == name)
        })
        .await?)
    }

    /// Samples the term from now on.
    pub(crate) fn elected(&self, node: &str, term: &Term) -> Arc<Led> {
        self.sampler.add(node, term)
    }

    pub(crate) fn expect(&self, node: &str) {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.push(node.to_owned());
    }

    /// Adds the records that another process writes to the file to the history.
    pub(crate) fn include(&self, file: impl Into<PathBuf>) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.push(file.into());
    }

    /// Records a fault of that node; of all nodes if the name is empty.
    pub(crate) fn fault(&self, node: &str, name: &str) {
        let name = name.to_owned();
        self.recorder.record(node, ELECTION, What::Fault { name });
    }

    pub(crate) fn healed(&self, node: &str, name: &str) {
        let name = name.to_owned();
        self.recorder.record(node, ELECTION, What::Healed { name });
    }

    /// Returns the keys below the prefix, eldest first; none if etcd does not answer.
    pub(crate) async fn keys(&self) -> Vec<Key> {
        let mut client = self.client.clone();
        let options = Some(GetOptions::new().with_prefix());
        let answer = client.get(PREFIX, options);
        let Ok(Ok(answer)) = tokio::time::timeout(seconds(1), answer).await else {
            return Vec::new();
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut keys: Vec<Key> = answer
            .kvs()
            .iter()
            .map(|kv| Key {
                path: text(kv.key()),
                identity: identity(kv.value()),
                create_revision: kv.create_revision(),
                lease: kv.lease(),
            })
            .collect();
        keys.sort_by_key(|key| key.create_revision);
        keys
    }

    /// Waits until exactly those nodes are in the queue, in that order.
    pub(crate) async fn queue(&self, names: &[&str], deadline: Duration) -> Result<Vec<Key>> {
        Ok(
            eventually(deadline, format!("the queue is {names:?}"), async || {
                let keys = self.keys().await;
                let same = keys
                    .iter()
                    .map(|key| key.identity.as_str())
                    .eq(names.iter().copied());
                same.then_some(keys)
            })
            .await?,
        )
    }

    /// Returns the leases that etcd holds.
    pub(crate) async fn leases(&self) -> Result<Vec<i64>> {
        let answer = self.client.clone().leases().await?;
        Ok(answer.leases().iter().map(LeaseStatus::id).collect())
    }

    /// Checks I1 to I5, and that enough happened for the check to prove something.
    pub(crate) async fn judge(self, elections: usize, leader_hits: usize) -> Result<Report> {
        self.sampler.stop();
        self.truth.stop().await;
        let nodes = std::mem::take(&mut *self.nodes.lock().unwrap_or_else(PoisonError::into_inner));
        let files = std::mem::take(&mut *self.files.lock().unwrap_or_else(PoisonError::into_inner));
        let mut history = self.recorder.history()?;
        history.extend(History::load(files)?.events().iter().cloned());
        let report = check(&history, &Rules::new(self.ttl).live(nodes));
        report.assert_ok();
        report.require(elections, leader_hits);
        assert!(
            report.counts.samples >= elections,
            "hardly sampled\n{report}"
        );
        assert!(
            report.counts.elections_checked_for_seniority >= elections,
            "seniority was not checked\n{report}"
        );
        Ok(report)
    }
}

/// The work of a node while it leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// The work ends when the token is cancelled.
    UntilLost,
    /// The work uses all the time that its term has left.
    UntilInvalid,
}

/// A session that runs for the election, on its own task, until it is stopped.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) session: Session,
    recorder: Recorder,
    terms: Arc<Mutex<Vec<Arc<Led>>>>,
    shutdown: CancellationToken,
    task: JoinHandle<eldest::Result<Option<()>>>,
}

impl Node {
    pub(crate) async fn start<E: AsRef<str>>(
        stage: &Stage,
        name: &str,
        endpoints: &[E],
    ) -> Result<Self> {
        let endpoints = endpoints.iter().map(AsRef::as_ref);
        let session = Session::connect(endpoints, options(name, stage.ttl)).await?;
        Self::of(stage, session, Work::UntilLost)
    }

    pub(crate) fn of(stage: &Stage, session: Session, kind: Work) -> Result<Self> {
        let name = session.identity().to_owned();
        stage.expect(&name);
        let election = session.election(ELECTION)?;
        let terms = Arc::new(Mutex::new(Vec::new()));
        let shutdown = CancellationToken::new();
        let run = {
            let shutdown = shutdown.clone();
            let (name, terms) = (name.clone(), Arc::clone(&terms));
            let (recorder, sampler) = (stage.recorder.clone(), Arc::clone(&stage.sampler));
            async move {
                let work = |leadership: Leadership| {
                    let led = sampler.add(&name, &leadership);
                    terms
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(Arc::clone(&led));
                    let recorder = recorder.clone();
                    async move {
                        led.lost.cancelled().await;
                        led.record_loss(&recorder);
                        while kind == Work::UntilInvalid && leadership.is_valid() {
                            tokio::time::sleep(millis(2)).await;
                        }
                        Ok::<_, eldest::BoxError>(())
                    }
                };
                election.run(shutdown, work).await
            }
        };
        Ok(Self {
            name,
            session,
            recorder: stage.recorder.clone(),
            terms,
            shutdown,
            task: tokio::spawn(run),
        })
    }

    /// Returns all terms up to now.
    pub(crate) fn terms(&self) -> Vec<Arc<Led>> {
        let terms = self.terms.lock().unwrap_or_else(PoisonError::into_inner);
        terms.clone()
    }

    /// Returns the term in which the node leads now.
    pub(crate) fn leads(&self) -> Option<Arc<Led>> {
        let last = self.terms().pop()?;
        (!last.lost.is_cancelled() && last.term.is_valid()).then_some(last)
    }

    /// Waits until the node leads.
    pub(crate) async fn elected(&self, deadline: Duration) -> Result<Arc<Led>> {
        let what = format!("{} leads", self.name);
        Ok(eventually(deadline, what, async || self.leads()).await?)
    }

    /// Shuts down as a program does: `run` returns once the key is gone.
    pub(crate) async fn stop(mut self) -> Result {
        self.recorder.record(&*self.name, ELECTION, What::Left);
        self.shutdown.cancel();
        (&mut self.task).await??;
        self.session.close().await?;
        Ok(())
    }

    /// Returns true if `run` has returned.
    pub(crate) fn has_ended(&self) -> bool {
        self.task.is_finished()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// Waits until exactly one of the nodes leads.
pub(crate) async fn one_leads<'n>(
    nodes: &[&'n Node],
    deadline: Duration,
) -> Result<(&'n Node, Arc<Led>)> {
    Ok(eventually(deadline, "exactly one node leads", async || {
        let mut leaders = nodes.iter().filter_map(|node| Some((*node, node.leads()?)));
        leaders.next().filter(|_| leaders.next().is_none())
    })
    .await?)
}

/// One term, as an outside observer sees it.
pub(crate) struct Led {
    pub(crate) node: String,
    pub(crate) term: Term,
    pub(crate) lost: CancellationToken,
    pub(crate) elected_at: Duration,
    lost_at: OnceLock<Duration>,
    /// The latest deadline seen, in nanoseconds.
    deadline: AtomicU64,
    /// The time before the last check that returned true, in nanoseconds.
    last_valid: AtomicU64,
}

impl Led {
    pub(crate) fn token(&self) -> i64 {
        self.term.fencing_token()
    }

    /// Returns until when the term is valid, or was valid before its work ended.
    pub(crate) fn deadline(&self) -> Duration {
        let now = self.term.valid_until().since_boot();
        let seen = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let before = self.deadline.fetch_max(seen, Ordering::SeqCst);
        Duration::from_nanos(before.max(seen))
    }

    /// Returns when the token was seen to be cancelled, a few milliseconds late at most.
    pub(crate) fn lost_at(&self) -> Option<Duration> {
        self.lost_at.get().copied()
    }

    /// Returns a time shortly before the last check that returned true.
    pub(crate) fn last_valid(&self) -> Duration {
        Duration::from_nanos(self.last_valid.load(Ordering::SeqCst))
    }

    /// Waits until the token is cancelled.
    pub(crate) async fn is_lost(&self, deadline: Duration) -> Result<Duration> {
        let what = format!("{} learns that its term {} ends", self.node, self.token());
        Ok(eventually(deadline, what, async || self.lost_at()).await?)
    }

    pub(crate) fn reason(&self) -> Option<LostReason> {
        self.term.lost_reason()
    }

    pub(crate) fn record_loss(&self, recorder: &Recorder) {
        let reason = self.reason().map_or("unknown", LostReason::as_str);
        let what = What::LostToken {
            token: self.token(),
            reason: reason.to_owned(),
        };
        recorder.record(&*self.node, ELECTION, what);
    }
}

/// Checks every 2 ms whether each term is valid, on a separate thread so that a blocked runtime is sampled too.
pub(crate) struct Sampler {
    recorder: Recorder,
    terms: Mutex<Vec<Arc<Led>>>,
    stopped: AtomicBool,
}

impl Sampler {
    pub(crate) fn start(recorder: Recorder) -> Arc<Self> {
        let sampler = Arc::new(Self {
            recorder,
            terms: Mutex::default(),
            stopped: AtomicBool::new(false),
        });
        let own = Arc::downgrade(&sampler);
        std::thread::spawn(move || {
            while let Some(sampler) = own.upgrade().filter(|s| !s.stopped.load(Ordering::SeqCst)) {
                sampler.round();
                drop(sampler);
                std::thread::sleep(millis(2));
            }
        });
        sampler
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    pub(crate) fn add(&self, node: &str, term: &Term) -> Arc<Led> {
        let token = term.fencing_token();
        let led = Arc::new(Led {
            node: node.to_owned(),
            term: term.clone(),
            lost: term.lost(),
            elected_at: self.recorder.now(),
            lost_at: OnceLock::new(),
            deadline: AtomicU64::new(0),
            last_valid: AtomicU64::new(0),
        });
        self.recorder
            .record(node, ELECTION, What::Elected { token });
        let mut terms = self.terms.lock().unwrap_or_else(PoisonError::into_inner);
        terms.push(Arc::clone(&led));
        led
    }

    fn round(&self) {
        let terms = self
            .terms
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        for led in terms {
            let before = self.recorder.now();
            let valid = self
                .recorder
                .sample(&*led.node, ELECTION, led.token(), || led.term.is_valid());
            if valid {
                led.deadline();
                let before = u64::try_from(before.as_nanos()).unwrap_or(u64::MAX);
                led.last_valid.store(before, Ordering::SeqCst);
            }
            if led.lost.is_cancelled() {
                led.lost_at.get_or_init(|| self.recorder.now());
            }
        }
    }
}

/// Lets a fault last, for tests of its length.
pub(crate) async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

//! Starts an etcd and three nodes as containers on a network, and checks the resulting history of faults.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use eldest::BoxError;
use eldest_testing::docker::{Container, Network};
use eldest_testing::eventually;
use eldest_testing::history::{
    History, Recorder, Report, Resources, Rules, TruthRecorder, What, check,
};
use eldest_testing::internal::Port;
use etcd_client::GetOptions;
use tempfile::TempDir;
use testcontainers::core::{IntoContainerPort, Mount};
use testcontainers::{ContainerAsync, GenericImage, ImageExt};

use crate::images;
use crate::member::{Member, owned};
use crate::ports;
use crate::pulse::Pulse;

pub(crate) type Result<T = ()> = std::result::Result<T, BoxError>;

/// The election of the nodes.
const ELECTION: &str = "demo";
/// The prefix of the election's keys.
const PREFIX: &str = "eldest/demo/";
/// The names of the nodes, in the order in which they join.
const NODES: [&str; 3] = ["a", "b", "c"];

/// The limit for events that should happen at once; far longer, because the machine may be busy.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// The time from a lease's expiry to the successor: etcd checks for expired leases every 500 ms, and the rest is for
/// the notification.
const EXPIRY: Duration = Duration::from_millis(1500);
/// The time without a sample after which a node counts as stopped or cut off. A leader samples every 10 ms.
const SILENCE: Duration = Duration::from_millis(500);

pub(crate) const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// An etcd in a container, three nodes in containers, and the independent eye that observes both.
pub(crate) struct Lab {
    // Containers are dropped before networks, because a network in use cannot be removed.
    pub(crate) nodes: Vec<Node>,
    // Boxed, because the future of `start` would be too large with it inside.
    etcd: Box<Member>,
    pub(crate) clients: Network,
    recorder: Recorder,
    ttl: Duration,
    /// The recorder of etcd's truth.
    truth: TruthRecorder,
    /// Measures how slow etcd and this machine are.
    pulse: Pulse,
    folder: TempDir,
}

/// One node.
pub(crate) struct Node {
    pub(crate) name: &'static str,
    history: PathBuf,
    container: ContainerAsync<GenericImage>,
    pub(crate) control: Container,
    /// Reserved for the container, also while it is down or cut off.
    _port: Port,
}

/// A term in which a node leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leads {
    pub(crate) node: &'static str,
    pub(crate) token: i64,
    /// When the node learned that it leads.
    pub(crate) since: Duration,
}

/// A key of the election.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) node: String,
    pub(crate) create_revision: i64,
}

impl Lab {
    /// Starts everything; the node `a` leads.
    pub(crate) async fn start(ttl: Duration) -> Result<Self> {
        let name = unique_name();
        let clients = Network::create(format!("{name}-clients")).await?;
        let folder = tempfile::tempdir()?;
        let etcd = Box::new(Member::start(format!("{name}-etcd"), &clients).await?);
        let recorder = Recorder::boottime();
        let client = etcd.client().await?;
        // It has just been started, so its first answer may take a moment.
        let truth = eventually(SOON, "etcd answers", async || {
            let started =
                TruthRecorder::with_client(client.clone(), recorder.clone(), ELECTION, PREFIX)
                    .await;
            started.ok()
        })
        .await?;
        let pulse = Box::pin(Pulse::start(etcd.client().await?)).await?;
        let mut lab = Self {
            nodes: Vec::new(),
            etcd,
            clients,
            recorder,
            ttl,
            truth,
            pulse,
            folder,
        };
        // The eye's own watch is part of the baseline.
        let held = eventually(SOON, "one watch, the eye's", async || {
            lab.held().await.ok().filter(|held| held.watchers == 1)
        })
        .await?;
        lab.record("etcd", What::Baseline(held));
        for name in NODES {
            let node = lab.node(name).await?;
            lab.nodes.push(node);
            lab.await_candidate(name).await?;
        }
        let first = lab.leads(NODES[0], SOON).await?;
        assert_eq!(first.token, lab.keys().await?[0].create_revision);
        Ok(lab)
    }

    async fn node(&self, name: &'static str) -> Result<Node> {
        let container_name = format!("{}-{name}", self.clients.name());
        let image = |port: u16| {
            let image = GenericImage::new(images::node().as_str(), "latest")
                // The folder with the node's history belongs to our user.
                .with_user("0:0")
                .with_network(self.clients.name())
                .with_container_name(&container_name)
                .with_mapped_port(port, 8080.tcp())
                .with_env_var("ETCD_ENDPOINTS", self.etcd.endpoint())
                .with_env_var("NODE_NAME", name)
                .with_env_var("ELECTION", ELECTION)
                .with_env_var("TTL_SECONDS", self.ttl.as_secs().to_string())
                .with_env_var("HISTORY", format!("/history/{name}.jsonl"))
                .with_env_var("RUST_LOG", "eldest=debug")
                .with_mount(Mount::bind_mount(
                    self.folder.path().display().to_string(),
                    "/history",
                ));
            owned(image)
        };
        // The engine publishes the image's port in any case. A port that it chose itself could be taken while the node
        // is down or cut off.
        let (port, container) = ports::start(&container_name, image).await?;
        let control = Container::find(container.id()).await?;
        Ok(Node {
            name,
            history: self.folder.path().join(format!("{name}.jsonl")),
            control: control.recorded(&self.recorder, name),
            container,
            _port: port,
        })
    }

    pub(crate) fn now(&self) -> Duration {
        self.recorder.now()
    }

    fn record(&self, node: &str, what: What) {
        self.recorder.record(node, ELECTION, what);
    }

    pub(crate) fn get(&self, name: &str) -> &Node {
        let found = self.nodes.iter().find(|node| node.name == name);
        found.expect("a node of that name")
    }

    /// Returns everything that was recorded up to now, by all nodes.
    fn history(&self) -> Result<History> {
        let mut history = self.recorder.history()?;
        let files = self.nodes.iter().map(|node| &node.history);
        let files: Vec<_> = files.filter(|file| file.exists()).collect();
        history.extend(History::load(files)?.events().iter().cloned());
        Ok(history)
    }

    /// Returns the nodes that lead now by their own histories.
    fn believers(&self) -> Result<Vec<Leads>> {
        let now = self.now();
        let mut found = Vec::new();
        for node in self.nodes.iter().filter(|node| node.history.exists()) {
            found.extend(node.leads(now)?);
        }
        Ok(found)
    }

    /// Waits until that node leads, and no other considers itself the leader.
    pub(crate) async fn leads(&self, name: &str, deadline: Duration) -> Result<Leads> {
        let what = format!("{name} leads, and nobody else");
        self.until(deadline, &what, |lab| {
            let believers = lab.believers()?;
            Ok(match &believers[..] {
                [one] if one.node == name => Some(one.clone()),
                _ => None,
            })
        })
        .await
    }

    /// Waits until exactly one node leads.
    pub(crate) async fn one_leads(&self, deadline: Duration) -> Result<Leads> {
        self.until(deadline, "exactly one node leads", |lab| {
            let believers = lab.believers()?;
            Ok(match &believers[..] {
                [one] => Some(one.clone()),
                _ => None,
            })
        })
        .await
    }

    /// Waits for a condition that the histories show.
    pub(crate) async fn until<T>(
        &self,
        deadline: Duration,
        what: &str,
        condition: impl Fn(&Self) -> Result<Option<T>>,
    ) -> Result<T> {
        let found = eventually(deadline, what, async || match condition(self) {
            Ok(Some(found)) => Some(Ok(found)),
            Ok(None) => {
                // Each check reads whole files.
                tokio::time::sleep(Duration::from_millis(50)).await;
                None
            }
            Err(error) => Some(Err(error)),
        })
        .await;
        match found {
            Ok(found) => found,
            Err(error) => {
                let believers = self.believers()?;
                let keys = self.keys().await;
                Err(format!(
                    "{error}; these take themselves for the leader: {believers:?}; in etcd: {keys:?}\n{}",
                    self.logs().await
                )
                .into())
            }
        }
    }

    /// Waits until a term has ended for its node; returns when, and why.
    pub(crate) async fn lost(
        &self,
        term: &Leads,
        deadline: Duration,
    ) -> Result<(Duration, String)> {
        let what = format!("{} says that its term {} ends", term.node, term.token);
        self.until(deadline, &what, |lab| {
            let history = lab.get(term.node).events()?;
            Ok(history.events().iter().find_map(|event| match &event.what {
                What::LostToken { token, reason } if *token == term.token => {
                    Some((event.at, reason.clone()))
                }
                _ => None,
            }))
        })
        .await
    }

    /// Returns the last time at which the node found that term valid.
    pub(crate) fn last_valid(&self, term: &Leads) -> Result<Duration> {
        let history = self.get(term.node).events()?;
        let yes = history.events().iter().filter(|event| {
            matches!(event.what, What::Valid { token } | What::Elected { token } if token == term.token)
        });
        Ok(yes.map(|event| event.at).max().unwrap_or_default())
    }

    /// Returns how often a node was elected.
    pub(crate) fn elections(&self) -> Result<usize> {
        let history = self.history()?;
        let elected = history.events().iter();
        Ok(elected
            .filter(|event| matches!(event.what, What::Elected { .. }))
            .count())
    }

    /// Checks the takeover after the leader was certainly gone, without a message, at `gone`: `next` leads in time, and
    /// not before the end of the old trust.
    pub(crate) async fn takeover(&self, old: &Leads, gone: Duration, next: &str) -> Result<Leads> {
        let led = self.leads(next, self.ttl * 2 + SOON).await?;
        // A busy machine delays etcd and its clients alike.
        let late = self.pulse.silence(gone) + self.pulse.lateness(gone);
        let bound = self.ttl + EXPIRY + late * 2;
        let took = led.since.saturating_sub(gone);
        assert!(
            took <= bound,
            "{next} led only {took:?} after {} was gone, {bound:?} at most",
            old.node
        );
        assert!(led.token > old.token, "tokens only grow");
        assert!(led.since >= self.last_valid(old)?, "two leaders");
        Ok(led)
    }

    async fn await_candidate(&self, name: &str) -> Result {
        Ok(eventually(SOON, format!("{name} stands"), async || {
            let keys = self.keys().await.ok()?;
            keys.iter().any(|key| key.node == name).then_some(())
        })
        .await?)
    }

    /// Returns the keys of the election, eldest first.
    async fn keys(&self) -> Result<Vec<Key>> {
        let mut client = self.etcd.client().await?;
        let options = Some(GetOptions::new().with_prefix());
        let answer = tokio::time::timeout(seconds(2), client.get(PREFIX, options)).await??;
        let mut keys = Vec::new();
        for kv in answer.kvs() {
            let value: serde_json::Value = serde_json::from_slice(kv.value())?;
            keys.push(Key {
                node: value["identity"].as_str().unwrap_or_default().to_owned(),
                create_revision: kv.create_revision(),
            });
        }
        keys.sort_by_key(|key| key.create_revision);
        Ok(keys)
    }

    /// Waits until exactly those nodes are in the queue, in that order.
    pub(crate) async fn queue(&self, names: &[&str]) -> Result<Vec<Key>> {
        let mut last = Vec::new();
        let found = eventually(SOON, format!("the queue is {names:?}"), async || {
            last = self.keys().await.ok()?;
            let order = last.iter().map(|key| key.node.as_str());
            order.eq(names.iter().copied()).then(|| last.clone())
        })
        .await;
        found.map_err(|error| format!("{error}; it is {last:?}").into())
    }

    /// Counts etcd's leases, keys of the election and watches.
    async fn held(&self) -> Result<Resources> {
        let mut client = self.etcd.client().await?;
        let leases = client.leases().await?.leases().len();
        let watchers = self
            .etcd
            .metric("etcd_debugging_mvcc_watcher_total")
            .await?;
        Ok(Resources {
            leases: leases as u64,
            keys: self.keys().await?.len() as u64,
            watchers: watchers as u64,
            ..Resources::default()
        })
    }

    /// Ends the nodes one by one, the leader always first, and checks I1 to I6 on all records.
    ///
    /// `elections` and `hits` are the least numbers of elections, and of faults that hit a leader, without which the
    /// check would prove nothing.
    pub(crate) async fn judge(self, elections: usize, hits: usize) -> Result<Report> {
        for _ in NODES {
            let leader = self.one_leads(SOON).await?;
            self.get(leader.node)
                .control
                .stop(self.ttl * 2 + seconds(5))
                .await?;
        }
        // The nodes' keys and leases must be gone by now, or with the leases of killed nodes.
        let nothing = eventually(self.ttl + SOON, "nothing is held", async || {
            let held = self.held().await.ok()?;
            (held.leases == 0 && held.keys == 0 && held.watchers <= 1).then_some(held)
        })
        .await;
        let held = match nothing {
            Ok(held) => held,
            Err(_) => self.held().await?,
        };
        self.record("etcd", What::Final(held));
        let logs = self.logs().await;
        let history = self.history()?;
        let (recorder, truth) = (self.recorder.clone(), self.truth);
        truth.stop().await;
        let mut whole = recorder.history()?;
        whole.extend(
            history
                .events()
                .iter()
                .filter(|event| NODES.contains(&&*event.node))
                .cloned(),
        );
        let report = check(&whole, &Rules::new(self.ttl).live(NODES));
        println!("{report}");
        assert!(report.is_ok(), "{report}\n{logs}");
        report.require(elections, hits);
        let seen = report.counts.elections_checked_for_seniority;
        assert!(seen >= elections, "seniority was not checked\n{report}");
        Ok(report)
    }

    /// Returns the output of the nodes.
    async fn logs(&self) -> String {
        let mut text = String::new();
        for node in &self.nodes {
            let printed = node.container.stdout_to_vec().await.unwrap_or_default();
            let logged = node.container.stderr_to_vec().await.unwrap_or_default();
            for part in [printed, logged] {
                let part = String::from_utf8_lossy(&part).into_owned();
                for line in part.lines() {
                    // Writing to a String cannot fail.
                    let _ = writeln!(text, "{} | {line}", node.name);
                }
            }
        }
        text
    }
}

impl Node {
    fn events(&self) -> Result<History> {
        Ok(History::load([&self.history])?)
    }

    /// Returns the term in which the node leads at `now`, by its own record.
    fn leads(&self, now: Duration) -> Result<Option<Leads>> {
        let history = self.events()?;
        let mut leads = None;
        let mut heard = Duration::ZERO;
        for event in history.events() {
            match event.what {
                What::Elected { token } => {
                    let (node, since) = (self.name, event.at);
                    leads = Some(Leads { node, token, since });
                    heard = event.at;
                }
                What::Valid { .. } => heard = event.at,
                What::Invalid { .. } | What::Left => leads = None,
                _ => {}
            }
        }
        Ok(leads.filter(|_| now.saturating_sub(heard) < SILENCE))
    }
}

fn unique_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("eldest-{}-{number}", std::process::id())
}

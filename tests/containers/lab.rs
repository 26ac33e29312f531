//! Starts three etcd members and three nodes as containers on two networks, records faults, and checks the resulting
//! history.

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
use crate::member::{Member, agreed_leader, leader_of, owned, peer_url};
use crate::ports;
use crate::pulse::Pulse;

pub(crate) type Result<T = ()> = std::result::Result<T, BoxError>;

/// The election of the nodes.
const ELECTION: &str = "demo";
/// The prefix of the election's keys.
const PREFIX: &str = "eldest/demo/";
/// The number of etcd members, and of nodes.
const SIZE: usize = 3;
/// The names of the nodes, in the order in which they join.
pub(crate) const NODES: [&str; SIZE] = ["a", "b", "c"];

/// The limit for events that should happen at once; far longer, because the machine may be busy.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// The time from a lease's expiry to the successor: etcd checks for expired leases every 500 ms, and the rest is for
/// the notification.
const EXPIRY: Duration = Duration::from_millis(1500);
/// The time without a message from etcd's leader after which its members elect another.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(1);
/// The time without a sample after which a node counts as stopped or cut off. A leader samples every 10 ms.
const SILENCE: Duration = Duration::from_millis(500);

pub(crate) const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Three etcd members in containers, three nodes in containers, and the independent eye that observes both.
pub(crate) struct Lab {
    // Containers are dropped before networks, because a network in use cannot be removed.
    pub(crate) nodes: Vec<Node>,
    pub(crate) members: Vec<Member>,
    pub(crate) clients: Network,
    pub(crate) peers: Network,
    pub(crate) recorder: Recorder,
    ttl: Duration,
    /// The recorder of etcd's truth. Its client uses one member only, so a member that hangs cannot delay it.
    truth: TruthRecorder,
    /// Measures how slow that member and this machine are.
    pulse: Pulse,
    /// The index of that member. No test breaks it alone.
    pub(crate) eye: usize,
    /// The member to which the node `a` connects first.
    pub(crate) first: usize,
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
    /// Starts everything; the node `a` leads, and is connected to etcd's leader.
    pub(crate) async fn start(ttl: Duration) -> Result<Self> {
        let name = unique_name();
        let clients = Network::create(format!("{name}-clients")).await?;
        let peers = Network::internal(format!("{name}-peers")).await?;
        let folder = tempfile::tempdir()?;
        let names: Vec<String> = (1..=SIZE).map(|i| format!("{name}-etcd{i}")).collect();
        let start = |index| Member::start(&names, index, "new", &clients, &peers);
        let (one, two, three) = tokio::try_join!(start(0), start(1), start(2))?;
        let members = vec![one, two, three];
        let leader = leader_of(&members, SOON).await?;
        let eye = (leader + 1) % SIZE;
        let recorder = Recorder::boottime();
        let client = members[eye].client().await?;
        // The leader was just elected, so its first answer may take a moment.
        let truth = eventually(SOON, "etcd answers", async || {
            let started =
                TruthRecorder::with_client(client.clone(), recorder.clone(), ELECTION, PREFIX)
                    .await;
            started.ok()
        })
        .await?;
        let pulse = Box::pin(Pulse::start(members[eye].client().await?)).await?;
        let mut lab = Self {
            nodes: Vec::new(),
            members,
            clients,
            peers,
            recorder,
            ttl,
            truth,
            pulse,
            eye,
            first: leader,
            folder,
        };
        // The eye's own watch is part of the baseline.
        let held = eventually(SOON, "one watch, the eye's", async || {
            lab.held().await.ok().filter(|held| held.watchers == 1)
        })
        .await?;
        lab.record("etcd", What::Baseline(held));
        for name in NODES {
            let node = lab.node(name, leader).await?;
            lab.nodes.push(node);
            lab.await_candidate(name).await?;
        }
        let first = lab.leads(NODES[0], SOON).await?;
        assert_eq!(first.token, lab.keys().await?[0].create_revision);
        Ok(lab)
    }

    async fn node(&self, name: &'static str, first: usize) -> Result<Node> {
        let mut endpoints: Vec<String> = self.members.iter().map(Member::endpoint).collect();
        endpoints.rotate_left(first);
        let container_name = format!("{}-{name}", self.clients.name());
        let image = |port: u16| {
            let image = GenericImage::new(images::node().as_str(), "latest")
                // The folder with the node's history belongs to our user.
                .with_user("0:0")
                .with_network(self.clients.name())
                .with_container_name(&container_name)
                .with_mapped_port(port, 8080.tcp())
                .with_env_var("ETCD_ENDPOINTS", endpoints.join(","))
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

    pub(crate) fn record(&self, node: &str, what: What) {
        self.recorder.record(node, ELECTION, what);
    }

    /// Records a fault that affects all nodes: before it happens, and again when it has certainly happened.
    pub(crate) fn fault(&self, name: &str) {
        let name = name.to_owned();
        self.record("", What::Fault { name });
    }

    /// Causes a fault that affects all nodes. Returns when everything was certainly whole for the last time, and when
    /// it was certainly broken.
    pub(crate) async fn breaks<E: Into<BoxError>>(
        &self,
        name: &str,
        breaking: impl Future<Output = std::result::Result<(), E>>,
    ) -> Result<(Duration, Duration)> {
        let whole = self.now();
        self.fault(name);
        breaking.await.map_err(Into::into)?;
        self.fault(name);
        Ok((whole, self.now()))
    }

    pub(crate) fn healed(&self, name: &str) {
        let name = name.to_owned();
        self.record("", What::Healed { name });
    }

    pub(crate) fn get(&self, name: &str) -> &Node {
        let found = self.nodes.iter().find(|node| node.name == name);
        found.expect("a node of that name")
    }

    /// Returns everything that was recorded up to now, by all nodes.
    pub(crate) fn history(&self) -> Result<History> {
        let mut history = self.recorder.history()?;
        let files = self.nodes.iter().map(|node| &node.history);
        let files: Vec<_> = files.filter(|file| file.exists()).collect();
        history.extend(History::load(files)?.events().iter().cloned());
        Ok(history)
    }

    /// Returns the nodes that lead now by their own histories.
    pub(crate) fn believers(&self) -> Result<Vec<Leads>> {
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
        // A busy machine delays etcd and its clients alike; a new leader of etcd restarts each lease with its whole
        // time.
        let late = self.pulse.silence(gone) + self.pulse.lateness(gone);
        let again = if late > ELECTION_TIMEOUT {
            self.ttl
        } else {
            Duration::ZERO
        };
        let bound = self.ttl + EXPIRY + late * 2 + again;
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
    pub(crate) async fn keys(&self) -> Result<Vec<Key>> {
        let mut client = self.members[self.eye].client().await?;
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

    /// Waits until etcd has a leader, and returns that member.
    pub(crate) async fn etcd_leader(&self) -> Result<usize> {
        leader_of(&self.members, SOON).await
    }

    /// Returns the leader of etcd, for a test to break. On a busy machine it may have changed since the start, perhaps
    /// to the eye's member. So this moves it to the member to which the leading node is connected, and which the eye
    /// does not need.
    pub(crate) async fn etcd_leader_to_break(&self) -> Result<usize> {
        let first = self.members[self.first].id().await?;
        eventually(SOON, "etcd is led by the member to break", async || {
            let leader = agreed_leader(&self.members).await?;
            if leader == self.first {
                return Some(());
            }
            let mut client = self.members[leader].client().await.ok()?;
            // etcd refuses this while the other member is not ready for it.
            drop(tokio::time::timeout(seconds(2), client.move_leader(first)).await);
            None
        })
        .await?;
        assert_ne!(self.first, self.eye);
        Ok(self.first)
    }

    /// Waits until another member than `index` leads etcd, and returns how long after `since` that was seen.
    pub(crate) async fn another_leads_etcd(
        &self,
        than: usize,
        since: Duration,
    ) -> Result<Duration> {
        eventually(SOON, "etcd has another leader", async || {
            let leader = agreed_leader(&self.members).await?;
            (leader != than).then_some(())
        })
        .await?;
        Ok(self.now().saturating_sub(since))
    }

    /// Removes a member from the cluster, and puts a new and empty one with the same name in its place.
    pub(crate) async fn replace(&mut self, index: usize) -> Result {
        let names: Vec<String> = self
            .members
            .iter()
            .map(|member| member.name.clone())
            .collect();
        let id = self.members[index].id().await?;
        let mut client = self.members[self.eye].client().await?;
        // etcd refuses this for the first seconds of a cluster's life, until its members count as connected.
        eventually(SOON, "the old member is taken out", async || {
            let listed = async {
                drop(client.member_remove(id).await);
                client.member_list().await
            };
            let listed = tokio::time::timeout(seconds(2), listed).await.ok()?.ok()?;
            listed
                .members()
                .iter()
                .all(|member| member.id() != id)
                .then_some(())
        })
        .await?;
        let gone = self.members.remove(index);
        gone.container.rm().await?;
        // The others first elect a leader, if the removed member was the leader.
        eventually(SOON, "the new member is added", async || {
            let added = client.member_add([peer_url(&names[index])], None);
            let added = tokio::time::timeout(seconds(2), added).await;
            added.ok()?.ok()
        })
        .await?;
        let new = Member::start(&names, index, "existing", &self.clients, &self.peers).await?;
        let new_id = eventually(SOON, "the new member tells its id", async || {
            // The new member contacts the others at once, and ends if it was not yet listed among them.
            if !new.container.is_running().await.ok()? {
                new.control.start().await.ok()?;
            }
            Some(new.view().await?.id)
        })
        .await?;
        assert_ne!(new_id, id);
        self.members.insert(index, new);
        // The new member serves requests once it has caught up.
        let mut client = self.members[index].client().await?;
        eventually(SOON, "the new member serves", async || {
            let read = tokio::time::timeout(seconds(2), client.get(PREFIX, None)).await;
            read.ok()?.ok()
        })
        .await?;
        Ok(())
    }

    /// Waits until all nodes are in the queue, in any order.
    pub(crate) async fn await_all_candidates(&self) -> Result {
        for name in NODES {
            self.await_candidate(name).await?;
        }
        Ok(())
    }

    /// Counts etcd's leases, keys of the election and watches.
    async fn held(&self) -> Result<Resources> {
        let mut client = self.members[self.eye].client().await?;
        let leases = client.leases().await?.leases().len();
        let mut watchers = 0.0;
        for member in &self.members {
            watchers += member.metric("etcd_debugging_mvcc_watcher_total").await?;
        }
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
        for _ in 0..SIZE {
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

//! Starts the cluster, the nodes and the watchers of both, gives access to them during a run, and stops them.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::time::Duration;

use eldest_testing::history::{History, Recorder, Resources, TruthRecorder, What};
use eldest_testing::{Etcd, EtcdBuilder, EtcdCluster, eventually};
use etcd_client::{Client, Error, GetOptions};
use tempfile::TempDir;
use tokio::sync::Mutex;

use crate::agent::Agent;
use crate::certificates::{Certificates, TWIN};
use crate::ledger::Ledger;
use crate::links::{self, Links};
use crate::member::{Common, Member};
pub(crate) use crate::shared::ELECTION;
use crate::wide::Wide;
use crate::wire::{Way, Wire};
use crate::{Result, Settings, shared, users};

/// The keys of that election.
pub(crate) const PREFIX: &str = "eldest/chaos/";
/// Where the nodes keep their fenced counter.
const COUNTER: &str = "eldest-node/count/chaos";
/// Room for a gigabyte, and for the data before it.
const QUOTA: &str = "--quota-backend-bytes=8000000000";
/// The log line of a session that challenges another one, and of one that condemns it.
pub(crate) const CHALLENGED: &str = "session challenged";
pub(crate) const CONDEMNED: &str = "silent session condemned";
/// The time limit of one request to one server.
const REQUEST: Duration = Duration::from_secs(1);

/// The cluster, the nodes, and the observers of both.
pub struct Lab {
    pub(crate) settings: Settings,
    pub(crate) recorder: Recorder,
    pub(crate) cluster: Mutex<EtcdCluster>,
    /// The proxies of each node; empty among data centres, where the wire makes the faults.
    pub(crate) links: Vec<Links>,
    pub(crate) nodes: Vec<Member>,
    /// A second process under the first node's identity, which rarely runs.
    pub(crate) twin: Member,
    /// The agent that guards all nodes; there is none among data centres.
    pub(crate) agent: Option<Agent>,
    /// The certificates; there are none among data centres.
    certificates: Option<Certificates>,
    ledger: RefCell<Ledger>,
    /// True if this step has only one fault.
    pub(crate) alone: Cell<bool>,
    /// The faults that had no target since the list was last taken.
    misses: RefCell<Vec<&'static str>>,
    /// One recorder for each server: a single one would record changes late while its server is stopped.
    truths: Vec<TruthRecorder>,
    /// One client for each server, because an operator uses a server that answers.
    clients: Vec<Client>,
    /// The links between data centres, if there are some.
    pub(crate) wire: Option<Wire>,
    folder: TempDir,
}

/// A key of the election.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) path: Vec<u8>,
    pub(crate) create_revision: i64,
    pub(crate) lease: i64,
}

/// A leading node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Leads {
    pub(crate) node: usize,
    pub(crate) token: i64,
}

/// Connects a client to each member, and records what each of them reports of the election.
async fn watched(
    cluster: &EtcdCluster,
    recorder: &Recorder,
    settings: &Settings,
) -> Result<(Vec<Client>, Vec<TruthRecorder>)> {
    let (mut clients, mut truths) = (Vec::new(), Vec::new());
    for member in cluster.members() {
        let client = if settings.auth {
            users::root(member.endpoint()).await?
        } else {
            member.client().await
        };
        clients.push(client.clone());
        let mut followed = vec![(ELECTION, PREFIX.to_owned())];
        followed.extend(settings.ready.map(|_| (shared::TRUTH, shared::owners())));
        for (name, prefix) in followed {
            let (client, recorder) = (client.clone(), recorder.clone());
            truths.push(TruthRecorder::with_client(client, recorder, name, prefix).await?);
        }
    }
    Ok((clients, truths))
}

/// Starts the cluster: in data centres if there is a wire between them, over TLS if there are certificates, and with
/// users if they are wanted.
async fn cluster(
    settings: &Settings,
    wire: Option<&Wire>,
    certificates: Option<&Certificates>,
) -> Result<EtcdCluster> {
    let mut builder = Etcd::builder()
        .heartbeat(settings.heartbeat)
        .election_timeout(settings.election_timeout)
        .arg(QUOTA);
    for site in wire.into_iter().flat_map(Wire::sites) {
        builder = builder.member_at(site.address.into(), site.command());
    }
    if let Some(certificates) = certificates {
        builder = certificates.demanded(builder);
    }
    if let Some(etcd) = settings.etcds.first() {
        builder = builder.binary(etcd);
    }
    if settings.auth {
        builder = users::ARGS.into_iter().fold(builder, EtcdBuilder::arg);
    }
    let mut cluster = builder.start_cluster(settings.members).await?;
    if settings.auth {
        users::enable(&mut cluster, settings.nodes).await?;
    }
    Ok(cluster)
}

/// Makes the nodes without starting them. Those that are not in data centres have links of their own.
async fn members(
    common: &Common<'_>,
    count: usize,
    cluster: &EtcdCluster,
    far: Option<(&Wide, &Wire)>,
) -> Result<(Vec<Links>, Vec<Member>)> {
    let (mut links, mut nodes) = (Vec::new(), Vec::new());
    for number in 0..count {
        if let Some(far) = far {
            nodes.push(Member::far(common, number, cluster.endpoints(), far)?);
            continue;
        }
        let own = Links::start(cluster).await?;
        nodes.push(Member::near(common, number, &own)?);
        links.push(own);
    }
    Ok((links, nodes))
}

impl Lab {
    /// Starts everything. With data centres, each has a server, and the nodes are spread over them. With clocks, each
    /// node has a wall clock of its own.
    pub(crate) async fn start(
        settings: &Settings,
        far: Option<&Wide>,
        clocks: bool,
    ) -> Result<Self> {
        let wire = far.map(|far| Wire::start(settings.members, Way::from(far), far.seed));
        let wire = wire.transpose()?;
        let folder = tempfile::Builder::new().prefix("eldest-chaos-").tempdir()?;
        let issued = || Certificates::new(folder.path(), settings.nodes);
        let certificates = far.is_none().then(issued).transpose()?;
        let cluster = cluster(settings, wire.as_ref(), certificates.as_ref()).await?;
        let recorder = Recorder::boottime();
        let (clients, truths) = watched(&cluster, &recorder, settings).await?;
        let register = folder.path().join("register.sqlite");
        let agent = match &certificates {
            Some(certificates) => Some(Agent::new(&cluster, folder.path(), certificates).await?),
            None => None,
        };
        let common = Common {
            folder: folder.path(),
            register: &register,
            election: ELECTION,
            guard: agent.as_ref().map(Agent::socket),
            certificates: certificates.as_ref(),
            clocks,
        };
        let mut ledger = Ledger::default();
        let apart = far.zip(wire.as_ref());
        let (links, nodes) = members(&common, settings.nodes, &cluster, apart).await?;
        for node in &nodes {
            ledger.follow(node.history.clone());
        }
        let endpoints: Vec<String> = cluster.members().iter().map(links::endpoint).collect();
        let twin = Member::new(&common, TWIN, "n1", endpoints.join(","))?;
        ledger.follow(twin.history.clone());
        let mut lab = Self {
            settings: settings.clone(),
            recorder,
            cluster: Mutex::new(cluster),
            wire,
            links,
            nodes,
            twin,
            agent,
            certificates,
            ledger: RefCell::new(ledger),
            alone: Cell::new(true),
            misses: RefCell::default(),
            truths,
            clients,
            folder,
        };
        lab.record("", What::Baseline(lab.held().await?));
        if let Some(agent) = &lab.agent {
            agent.start(settings).await?;
        }
        lab.start_nodes().await?;
        lab.settings.ttl = lab.granted().await?;
        Ok(lab)
    }

    /// Starts the nodes one after the other, so that they join in that order. Where they share partitions, each has prepared for its
    /// share before the next one joins.
    async fn start_nodes(&self) -> Result {
        for node in &self.nodes {
            node.start(&self.settings)?;
            let wanted = self.nodes.iter().filter(|node| node.runs()).count();
            self.until(format!("{} stands", node.name), async || {
                Ok((self.keys().await?.len() == wanted).then_some(()))
            })
            .await?;
            if self.settings.ready.is_some() {
                self.shared_by(wanted).await?;
            }
        }
        Ok(())
    }

    /// Returns the TTL of the nodes' leases, which the nodes may have chosen themselves.
    async fn granted(&self) -> Result<Duration> {
        let keys = self.keys().await?;
        let lease = keys.first().ok_or("nobody stands")?.lease;
        let asked = self.operate("a lease's TTL is asked for", async |mut client| {
            Ok(client.lease_time_to_live(lease, None).await?.granted_ttl())
        });
        Ok(Duration::from_secs(asked.await?.try_into()?))
    }

    pub(crate) fn say(&self, line: &str) {
        if self.settings.verbose {
            println!("{line}");
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.recorder.now()
    }

    pub(crate) fn record(&self, node: &str, what: What) {
        self.recorder.record(node, ELECTION, what);
    }

    /// Records that a fault begins for that node, or for all; recorded again when it is certainly there.
    pub(crate) fn fault(&self, node: &str, name: &str) {
        let name = name.to_owned();
        self.record(node, What::Fault { name });
    }

    pub(crate) fn healed(&self, node: &str, name: &str) {
        let name = name.to_owned();
        self.record(node, What::Healed { name });
    }

    /// Records that a fault had no target, because the other one of a pair had removed it.
    pub(crate) fn missed(&self, name: &'static str) {
        self.misses.borrow_mut().push(name);
    }

    /// Takes the faults that had no target since the last call.
    pub(crate) fn take_misses(&self) -> Vec<&'static str> {
        self.misses.take()
    }

    /// Kills a node. On return it is dead, and its earlier records no longer make it a leader.
    pub(crate) fn kill(&self, node: &Member) -> Result {
        node.kill();
        self.record(&node.name, What::Killed);
        self.ledger.borrow_mut().died(&node.name, self.now())
    }

    /// Returns the ledger with all records up to now.
    pub(crate) fn ledger(&self) -> Result<std::cell::Ref<'_, Ledger>> {
        self.ledger.borrow_mut().refresh()?;
        Ok(self.ledger.borrow())
    }

    /// Returns the running nodes that take themselves for the leader.
    pub(crate) fn believers(&self) -> Result<Vec<Leads>> {
        // Its sampler checks every 10 ms.
        const FRESH: Duration = Duration::from_secs(1);
        let (ledger, now) = (self.ledger()?, self.now());
        let nodes = self.nodes.iter().enumerate();
        let believers = nodes
            .filter(|(_, node)| node.is_up())
            .filter_map(|(index, node)| {
                let (token, term) = ledger.latest(&node.name)?;
                let fresh = term.ended.is_none() && term.valid + FRESH > now;
                fresh.then_some(Leads { node: index, token })
            });
        Ok(believers.collect())
    }

    /// Returns true if the agent guards the leases of these keys, and has finished with all dead processes.
    async fn is_guarded(&self, keys: &[Key]) -> bool {
        let Some(agent) = &self.agent else {
            return true;
        };
        let Some((pids, leases)) = agent.guarded().await else {
            return false;
        };
        let nodes = self.nodes.iter().chain([&self.twin]);
        let living: Vec<u32> = nodes.filter_map(Member::pid).collect();
        pids.iter().all(|pid| living.contains(pid))
            && keys.iter().all(|key| leases.contains(&key.lease))
    }

    /// Returns how many processes of nodes have ended.
    pub(crate) fn ended(&self) -> usize {
        let nodes = self.nodes.iter().chain([&self.twin]);
        nodes.map(Member::ended_processes).sum()
    }

    /// Returns the leases whose keys agents have deleted, and when.
    pub(crate) fn released(&self) -> Result<Vec<(Duration, i64)>> {
        self.agent.as_ref().map_or(Ok(Vec::new()), Agent::released)
    }

    /// How long the successor of a dead leader may take. A lease is renewed after a third of its TTL, so at the death of its
    /// process two thirds are left. A node that leads after half the TTL does so because a guard deleted its keys.
    pub(crate) fn takeover_of_dead(&self) -> Duration {
        match self.agent {
            Some(_) => self.settings.ttl / 2,
            None => self.settings.takeover(),
        }
    }

    /// Waits until all nodes are guarded candidates and there is no other candidate, the eldest leads, and every server
    /// answers.
    pub(crate) async fn settled(&self) -> Result<Leads> {
        self.until("one node leads and all stand", async || {
            for node in self.nodes.iter().chain([&self.twin]) {
                node.check()?;
            }
            let [leads] = self.believers()?[..] else {
                return Ok(None);
            };
            for client in &self.clients {
                let answer = tokio::time::timeout(REQUEST, keys(client.clone())).await;
                let Ok(Ok(keys)) = answer else {
                    return Ok(None);
                };
                let eldest = keys.first().map(|key| key.create_revision);
                if keys.len() != self.nodes.len() || eldest != Some(leads.token) {
                    return Ok(None);
                }
            }
            // Their owners are determined later.
            let keys = self.keys().await?;
            if !self.is_guarded(&keys).await {
                return Ok(None);
            }
            let mut keys = keys.into_iter();
            let ledger = self.ledger()?;
            let known = keys.all(|key| ledger.is_known(key.create_revision));
            Ok(known.then_some(leads))
        })
        .await
    }

    /// Waits until the condition yields a value; an error of the condition ends the wait.
    pub(crate) async fn until<T>(
        &self,
        what: impl std::fmt::Display,
        mut condition: impl AsyncFnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let patience = self.settings.patience();
        eventually(patience, what, async || condition().await.transpose()).await?
    }

    /// Lets that much time pass.
    pub(crate) async fn pass(&self, time: Duration) -> Result {
        let end = self.now() + time;
        let what = "time passes";
        Ok(eventually(time * 2 + REQUEST, what, async || {
            (self.now() >= end).then_some(())
        })
        .await?)
    }

    /// Makes a change in etcd through any server that answers.
    pub(crate) async fn operate<T>(
        &self,
        what: &str,
        mut ask: impl AsyncFnMut(Client) -> std::result::Result<T, Error>,
    ) -> Result<T> {
        let mut last = String::new();
        let mut next = 0;
        let asked = eventually(self.settings.patience(), what, async || {
            let client = self.clients[next % self.clients.len()].clone();
            next += 1;
            match tokio::time::timeout(REQUEST, ask(client)).await {
                Ok(Ok(answer)) => Some(answer),
                Ok(Err(error)) => {
                    last = error.to_string();
                    None
                }
                Err(_) => None,
            }
        })
        .await;
        asked.map_err(|error| format!("{error} ({last})").into())
    }

    /// Does the same without a second server, for changes that must not be made twice.
    pub(crate) async fn operate_once(
        &self,
        ask: impl AsyncFnOnce(Client) -> std::result::Result<(), Error>,
    ) -> Result {
        let answer = tokio::time::timeout(REQUEST * 5, ask(self.clients[0].clone()));
        Ok(answer.await??)
    }

    /// Returns the certificates; an error if TLS is not used.
    pub(crate) fn certificates(&self) -> Result<&Certificates> {
        let certificates = self.certificates.as_ref();
        certificates.ok_or_else(|| "data centres do without TLS".into())
    }

    /// Returns the data centre of that node, and the server in it, if there are some.
    pub(crate) fn site(&self, node: usize) -> usize {
        node % self.settings.members
    }

    /// Returns the server that the leading node uses.
    pub(crate) fn server_of_leader(&self) -> Result<usize> {
        let node = self.believers()?.first().map_or(0, |leads| leads.node);
        let links = self.links.get(node);
        Ok(links
            .and_then(Links::server_in_use)
            .unwrap_or_else(|| self.site(node)))
    }

    /// Returns a client of that server.
    pub(crate) fn client(&self, server: usize) -> Client {
        self.clients[server].clone()
    }

    /// Returns how often the nodes have logged that text.
    pub(crate) fn logged(&self, what: &str) -> usize {
        let logs = self.nodes.iter().map(Member::log);
        logs.map(|log| log.matches(what).count()).sum()
    }

    /// Makes that server the leader of the cluster.
    pub(crate) async fn lead_etcd_by(&self, server: usize) -> Result {
        let status = self.clients[server].clone().status().await?;
        let member = status
            .header()
            .ok_or("a server without a name")?
            .member_id();
        let cluster = self.cluster.lock().await;
        self.until("etcd's leader is where it is wanted", async || {
            let leader = cluster.leader().await;
            if leader == server {
                return Ok(Some(()));
            }
            // etcd refuses this while the other server is behind.
            let mut client = self.clients[leader].clone();
            let _ = tokio::time::timeout(REQUEST, client.move_leader(member)).await;
            Ok(None)
        })
        .await
    }

    /// Waits until that server answers a linearizable read.
    pub(crate) async fn answers(&self, server: usize) -> Result {
        let client = &self.clients[server];
        self.until("a server answers", async || {
            let answer = tokio::time::timeout(REQUEST, keys(client.clone())).await;
            Ok(answer.is_ok_and(|keys| keys.is_ok()).then_some(()))
        })
        .await
    }

    /// Returns the create revision of that node's latest key, by its own record.
    pub(crate) fn revision_of(&self, node: usize) -> Result<Option<i64>> {
        let ledger = self.ledger()?;
        let mut own = ledger.events().iter().filter_map(|event| match event.what {
            What::Joined {
                create_revision, ..
            } if event.node == self.nodes[node].name => Some(create_revision),
            _ => None,
        });
        Ok(own.next_back())
    }

    /// Returns the keys of the election, oldest first.
    pub(crate) async fn keys(&self) -> Result<Vec<Key>> {
        self.operate("the election's keys are read", keys).await
    }

    async fn held(&self) -> Result<Resources> {
        let keys = self.keys().await?.len() as u64;
        let leases = self.operate("the leases are listed", async |mut client| {
            Ok(client.leases().await?.leases().len())
        });
        let leases = leases.await? as u64;
        Ok(Resources {
            keys,
            leases,
            ..Resources::default()
        })
    }

    /// Stops all nodes, and counts the resources that they left. Returns the history, the problems, and the folder of
    /// all files.
    pub(crate) async fn finish(self) -> Result<(History, Vec<String>, TempDir)> {
        let mut problems = Vec::new();
        let patience = self.settings.patience();
        // Waiting nodes stop before the leader, so that none is elected only to leave.
        let leader = self.believers()?.first().map(|leads| leads.node);
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        order.sort_by_key(|node| Some(*node) == leader);
        for node in order {
            if let Err(error) = self.nodes[node].stop(patience).await {
                problems.push(error.to_string());
            }
        }
        let mut held = self.held().await?;
        let nothing = eventually(patience, "nothing is held", async || {
            held = self.held().await.ok()?;
            (held.keys == 0 && held.leases == 0).then_some(())
        });
        // The checker reports any rest from the records.
        let _ = nothing.await;
        self.record("", What::Final(held));
        let counted = self.operate("the counter is read", async |mut client| {
            let answer = client.get(COUNTER, None).await?;
            Ok(answer.kvs().first().map(|kv| kv.value().to_vec()))
        });
        let counted = counted.await?.unwrap_or_else(|| b"0".to_vec());
        let value = String::from_utf8(counted)?.parse()?;
        self.record("", What::FinalCounter { value });
        let value = eldest_node::register::value(&self.register(), ELECTION)?;
        let register = eldest_node::record::register_name(ELECTION);
        self.recorder
            .record("", register, What::FinalCounter { value });
        for (at, lease) in self.released()? {
            let partitions = shared::names().filter(|_| self.settings.ready.is_some());
            for election in partitions.chain([ELECTION.to_owned()]) {
                let what = What::ReleasedByGuard { lease };
                self.recorder.record_at(at, "agent", election, what);
            }
        }
        for truth in self.truths {
            truth.stop().await;
        }
        let mut ledger = self.ledger.into_inner();
        ledger.refresh()?;
        let mut history = History::new(shared::split(self.recorder.history()?.events()));
        history.extend(ledger.events().iter().cloned());
        Ok((history, problems, self.folder))
    }

    fn register(&self) -> std::path::PathBuf {
        self.folder.path().join("register.sqlite")
    }

    /// Returns the folder of all files.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

async fn keys(mut client: Client) -> std::result::Result<Vec<Key>, Error> {
    let options = Some(GetOptions::new().with_prefix());
    let answer = client.get(PREFIX, options).await?;
    let own = |path: &[u8]| !path[PREFIX.len()..].contains(&b'/');
    let mut keys: Vec<Key> = answer
        .kvs()
        .iter()
        .filter(|kv| own(kv.key()))
        .map(|kv| Key {
            path: kv.key().to_vec(),
            create_revision: kv.create_revision(),
            lease: kv.lease(),
        })
        .collect();
    keys.sort_by_key(|key| key.create_revision);
    Ok(keys)
}

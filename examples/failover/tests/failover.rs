//! Tests the failover of this service in containers: its leader is killed, frozen, or cut off from etcd.
//!
//! Needs a Docker Engine, and builds the image of the service by itself.
#![allow(clippy::disallowed_methods)] // tests run in real time

mod common;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use eldest::BoxError;
use eldest_failover_example::{ELECTION, INVOICES};
use eldest_testing::docker::{Container, Network, owner_label, sweep};
use eldest_testing::history::{History, Recorder, Rules, TruthRecorder, What, check};
use eldest_testing::{eventually, one_leader, one_leader_stays};
use etcd_client::Client;
use testcontainers::core::{IntoContainerPort, Mount};
use testcontainers::runners::{AsyncBuilder, AsyncRunner};
use testcontainers::{
    ContainerAsync, ContainerRequest, GenericBuildableImage, GenericImage, ImageExt,
};

type Result<T = ()> = std::result::Result<T, BoxError>;

const ETCD: (&str, &str) = ("quay.io/coreos/etcd", "v3.7.2");
const TTL: Duration = Duration::from_secs(5);
/// The longest takeover: the TTL, half a second in which etcd checks for expired leases, and room for a busy machine.
const TAKEOVER: Duration = Duration::from_secs(5 + 4);
/// Limit for events that should happen at once.
const SOON: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn when_the_leader_is_killed_another_leads() -> Result {
    let stage = Stage::start("killed").await?;
    let old = stage.leader(SOON).await?;
    old.container.kill().await?;
    let new = stage.leader(TAKEOVER).await?;
    assert_ne!(new.name, old.name);
    old.container.start().await?;
    stage.stays(new).await?; // who comes back waits at the end of the queue
    stage.judge().await
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_leader_does_not_act_while_another_leads() -> Result {
    let stage = Stage::start("frozen").await?;
    let old = stage.leader(SOON).await?;
    old.container.freeze().await?;
    let new = stage.leader(TAKEOVER).await?;
    assert_ne!(new.name, old.name);
    old.container.thaw().await?; // in the middle of what it did, long after its lease
    stage.stays(new).await?;
    stage.judge().await
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_leader_is_cut_off_it_stops_and_another_leads() -> Result {
    let stage = Stage::start("cut").await?;
    let old = stage.leader(SOON).await?;
    old.container.cut_all().await?;
    let new = stage.leader(TAKEOVER).await?;
    assert_ne!(new.name, old.name);
    old.container.heal().await?;
    stage.stays(new).await?;
    stage.judge().await
}

/// An instance of the service.
struct Node {
    name: String,
    container: Container,
    history: PathBuf,
    _running: ContainerAsync<GenericImage>,
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Node {
    /// Starts an instance that writes its history into a file of the folder.
    async fn start(
        container: ContainerRequest<GenericImage>,
        name: &str,
        recorder: &Recorder,
        histories: &Path,
    ) -> Result<Self> {
        let folder = Mount::bind_mount(histories.display().to_string(), "/histories");
        let running = container
            .with_env_var("NAME", name)
            .with_env_var("TTL_SECONDS", TTL.as_secs().to_string())
            .with_env_var("HISTORY", format!("/histories/{name}"))
            .with_mount(folder)
            .start()
            .await?;
        let container = Container::find(running.id()).await?;
        Ok(Self {
            name: name.to_owned(),
            container: container.recorded(recorder, name),
            history: histories.join(name),
            _running: running,
        })
    }
}

async fn leads(node: &Node) -> Result<bool> {
    // A published port may change whenever its container is started or connected.
    let address = node.container.address(8080).await?;
    Ok(common::says_that_it_leads(address).await?)
}

/// An etcd, three instances, and everything recorded about them. Fields are dropped in this order: a network must go
/// last.
struct Stage {
    nodes: Vec<Node>,
    _etcd: ContainerAsync<GenericImage>,
    _network: Network,
    client: Client,
    recorder: Recorder,
    truth: TruthRecorder,
    _histories: tempfile::TempDir,
}

impl Stage {
    async fn start(test: &str) -> Result<Self> {
        sweep().await?; // what a test that was killed has left
        // Built before anything is recorded, because a build may take longer than an election may stay vacant.
        let service = image().await?;
        let (label, owner) = owner_label();
        let network = Network::create(format!("failover-{test}-{owner}")).await?;
        let name = |of: &str| format!("{}-{of}", network.name());
        let histories = tempfile::tempdir()?;
        let recorder = Recorder::boottime();

        let endpoint = format!("http://{}:2379", name("etcd"));
        let etcd = GenericImage::new(ETCD.0, ETCD.1)
            .with_exposed_port(2379.tcp())
            .with_container_name(name("etcd"))
            .with_network(network.name())
            .with_label(label, &owner)
            .with_env_var("ETCD_LISTEN_CLIENT_URLS", "http://0.0.0.0:2379")
            .with_env_var("ETCD_ADVERTISE_CLIENT_URLS", &endpoint)
            .start()
            .await?;
        let container = Container::find(etcd.id()).await?;
        let client = eventually(SOON, "etcd serves", async || {
            let endpoint = format!("http://{}", container.address(2379).await.ok()?);
            let mut client = Client::connect([endpoint], None).await.ok()?;
            client.get(INVOICES, None).await.ok().map(|_| client)
        })
        .await?;
        // Started before the first instance joins, or its election could not be checked.
        let prefix = format!("eldest/{ELECTION}/");
        let eye = [container.address(2379).await?.to_string()];
        let truth = TruthRecorder::start(eye, recorder.clone(), ELECTION, prefix).await?;

        let mut nodes = Vec::new();
        for instance in ["n1", "n2", "n3"] {
            let container = service
                .clone()
                .with_exposed_port(8080.tcp())
                .with_container_name(name(instance))
                .with_network(network.name())
                .with_label(label, &owner)
                .with_env_var("ETCD_ENDPOINTS", &endpoint);
            nodes.push(Node::start(container, instance, &recorder, histories.path()).await?);
        }
        Ok(Self {
            nodes,
            _etcd: etcd,
            _network: network,
            client,
            recorder,
            truth,
            _histories: histories,
        })
    }

    async fn leader(&self, deadline: Duration) -> Result<&Node> {
        Ok(one_leader(deadline, &self.nodes, leads).await?)
    }

    async fn stays(&self, leader: &Node) -> Result {
        Ok(one_leader_stays(TTL, leader, &self.nodes, leads).await?)
    }

    /// Ends all instances, and checks the records.
    async fn judge(mut self) -> Result {
        let ends = self.nodes.iter();
        let ends = ends.map(|node| node.container.stop(2 * TTL + Duration::from_secs(5)));
        futures::future::try_join_all(ends).await?;
        let found = self.client.get(INVOICES, None).await?;
        let value = found
            .kvs()
            .first()
            .ok_or("no invoice")?
            .value_str()?
            .parse()?;
        self.recorder
            .record("etcd", ELECTION, What::FinalCounter { value });
        self.truth.stop().await;

        let mut history = self.recorder.history()?;
        let files = self.nodes.iter().map(|node| &node.history);
        history.extend(History::load(files)?.events().iter().cloned());
        let rules = Rules::new(TTL).live(self.nodes.iter().map(|node| &*node.name));
        let report = check(&history, &rules);
        println!("{report}");
        report.assert_ok();
        // No rule was violated; the report must also show that something was checked.
        report.require(2, 1);
        assert!(report.counts.elections_checked_for_seniority >= 2);
        assert!(report.counts.samples >= 100);
        assert!(report.counts.writes_admitted >= 2);
        assert_eq!(report.counts.open_faults, 0);
        Ok(())
    }
}

/// Returns the image of the service, with a binary that is built once.
async fn image() -> Result<GenericImage> {
    static BINARY: OnceLock<std::result::Result<PathBuf, String>> = OnceLock::new();
    let binary = tokio::task::block_in_place(|| BINARY.get_or_init(static_binary).clone())?;
    let image = GenericBuildableImage::new("eldest-failover-example", "test")
        .with_dockerfile(Path::new(env!("CARGO_MANIFEST_DIR")).join("Dockerfile"))
        .with_file(binary, "eldest-failover-example");
    Ok(image.build_image().await?)
}

/// Builds a static binary, which runs in an empty image, so that no image has to be fetched.
fn static_binary() -> std::result::Result<PathBuf, String> {
    // The folder in which this test was built: programs that run only during the build, such as macros, exist there
    // already.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = folder.parent().expect("the target folder");
    // With an explicit target, the flags do not apply to build scripts and macros.
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let built = Command::new(env!("CARGO"))
        .args(["build", "--package", env!("CARGO_PKG_NAME")])
        .args(["--features", "failover-test", "--target", &target])
        .arg("--target-dir")
        .arg(folder)
        .env(
            "RUSTFLAGS",
            "-C target-feature=+crt-static -C strip=symbols",
        )
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    match built {
        Ok(status) if status.success() => Ok(folder
            .join(target)
            .join("debug")
            .join(env!("CARGO_PKG_NAME"))),
        Ok(status) => Err(format!("the service was not built: {status}")),
        Err(error) => Err(format!("the service was not built: {error}")),
    }
}

//! Runs an etcd member as a container, and reads its metrics and its view of etcd's leader.

use std::time::Duration;

use eldest_testing::docker::{Container, Network, owner_label};
use eldest_testing::eventually;
use eldest_testing::internal::Port;
use etcd_client::Client;
use testcontainers::core::IntoContainerPort;
use testcontainers::{ContainerAsync, ContainerRequest, GenericImage, ImageExt};

use crate::images::{ETCD, etcd_tag};
use crate::lab::{Result, SOON, seconds};
use crate::ports;

/// One member of etcd.
pub(crate) struct Member {
    pub(crate) name: String,
    port: Port,
    pub(crate) container: ContainerAsync<GenericImage>,
    pub(crate) control: Container,
}

impl Member {
    /// Starts the member `names[index]` of the cluster `names`, on both networks. Does not wait until it serves
    /// requests.
    pub(crate) async fn start(
        names: &[String],
        index: usize,
        state: &str,
        clients: &Network,
        peers: &Network,
    ) -> Result<Self> {
        let name = names[index].clone();
        let cluster: Vec<String> = names
            .iter()
            .map(|name| format!("{name}={}", peer_url(name)))
            .collect();
        let image = |port: u16| {
            let image = GenericImage::new(ETCD, &etcd_tag())
                .with_network(clients.name())
                .with_container_name(&name)
                .with_hostname(&name)
                .with_mapped_port(port, 2379.tcp())
                .with_env_var("ETCD_NAME", &name)
                .with_env_var("ETCD_INITIAL_CLUSTER", cluster.join(","))
                .with_env_var("ETCD_INITIAL_CLUSTER_STATE", state)
                .with_env_var("ETCD_INITIAL_ADVERTISE_PEER_URLS", peer_url(&name))
                .with_env_var("ETCD_LISTEN_PEER_URLS", "http://0.0.0.0:2380")
                .with_env_var("ETCD_LISTEN_CLIENT_URLS", "http://0.0.0.0:2379")
                .with_env_var("ETCD_ADVERTISE_CLIENT_URLS", format!("http://{name}:2379"))
                .with_env_var("ETCD_DATA_DIR", "/var/lib/etcd")
                // No test of this file concerns a loss of power.
                .with_env_var("ETCD_UNSAFE_NO_FSYNC", "true")
                // The watches of a client that was cut off count until etcd drops its connection.
                .with_env_var("ETCD_GRPC_KEEPALIVE_INTERVAL", "2s")
                .with_env_var("ETCD_GRPC_KEEPALIVE_TIMEOUT", "2s");
            owned(image)
        };
        // The port of this member's own client, and of the eye: it must be the same after a restart.
        let (port, container) = ports::start(&name, image).await?;
        let control = Container::find(container.id()).await?;
        // With a separate name, because the container's name would resolve to either network.
        peers.connect(&control, &peer(&name)).await?;
        Ok(Self {
            name,
            port,
            container,
            control,
        })
    }

    /// Returns the member's endpoint for the nodes.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}:2379", self.name)
    }

    /// Connects a client to this member alone.
    pub(crate) async fn client(&self) -> Result<Client> {
        let endpoint = format!("http://{}", self.port.address());
        Ok(Client::connect([endpoint], None).await?)
    }

    /// Returns this member's id, and etcd's leader and term as it sees them.
    pub(crate) async fn view(&self) -> Option<View> {
        let mut client = self.client().await.ok()?;
        let status = tokio::time::timeout(Duration::from_millis(500), client.status());
        let status = status.await.ok()?.ok()?;
        Some(View {
            id: status.header()?.member_id(),
            leader: status.leader(),
            term: status.raft_term(),
        })
    }

    pub(crate) async fn id(&self) -> Result<u64> {
        Ok(
            eventually(SOON, format!("{} tells its id", self.name), async || {
                Some(self.view().await?.id)
            })
            .await?,
        )
    }

    /// Returns the sum over all samples of the metric.
    pub(crate) async fn metric(&self, name: &str) -> Result<f64> {
        let page = get(&self.port.address(), "/metrics").await?;
        let samples = page.lines().filter_map(|line| line.strip_prefix(name));
        let values = samples.filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok());
        Ok(values.sum())
    }
}

/// The view of one member.
#[derive(Clone, Copy)]
pub(crate) struct View {
    pub(crate) id: u64,
    leader: u64,
    term: u64,
}

/// Returns the member that a majority, itself included, considers etcd's leader.
pub(crate) async fn agreed_leader(members: &[Member]) -> Option<usize> {
    let views = futures::future::join_all(members.iter().map(Member::view)).await;
    let index = views
        .iter()
        .position(|view| view.is_some_and(|view| view.id == view.leader))?;
    let leader = views[index]?;
    let agree = views.iter().flatten();
    let agree = agree.filter(|view| (view.leader, view.term) == (leader.id, leader.term));
    (agree.count() > members.len() / 2).then_some(index)
}

pub(crate) async fn leader_of(members: &[Member], deadline: Duration) -> Result<usize> {
    Ok(eventually(
        deadline,
        "a majority of etcd agrees on a leader",
        async || agreed_leader(members).await,
    )
    .await?)
}

/// Adds the label by which the leftovers of a killed run are found.
pub(crate) fn owned(
    request: impl Into<ContainerRequest<GenericImage>>,
) -> ContainerRequest<GenericImage> {
    let (key, value) = owner_label();
    request.into().with_label(key, value)
}

/// Returns the name of a member among its peers.
fn peer(name: &str) -> String {
    format!("{name}-peer")
}

pub(crate) fn peer_url(name: &str) -> String {
    format!("http://{}:2380", peer(name))
}

async fn get(address: &str, path: &str) -> Result<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let asked = tokio::time::timeout(seconds(2), async {
        let mut stream = tokio::net::TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.0\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut page = String::new();
        stream.read_to_string(&mut page).await?;
        Ok::<_, std::io::Error>(page)
    });
    Ok(asked.await??)
}

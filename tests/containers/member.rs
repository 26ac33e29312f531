//! Runs etcd as a container, and reads its metrics.

use eldest_testing::docker::{Network, owner_label};
use eldest_testing::internal::Port;
use etcd_client::Client;
use testcontainers::core::IntoContainerPort;
use testcontainers::{ContainerAsync, ContainerRequest, GenericImage, ImageExt};

use crate::images::{ETCD, etcd_tag};
use crate::lab::{Result, seconds};
use crate::ports;

/// An etcd of one member.
pub(crate) struct Member {
    name: String,
    port: Port,
    _container: ContainerAsync<GenericImage>,
}

impl Member {
    /// Starts it on that network. Does not wait until it serves requests.
    pub(crate) async fn start(name: String, clients: &Network) -> Result<Self> {
        let image = |port: u16| {
            let image = GenericImage::new(ETCD, &etcd_tag())
                .with_network(clients.name())
                .with_container_name(&name)
                .with_hostname(&name)
                .with_mapped_port(port, 2379.tcp())
                .with_env_var("ETCD_LISTEN_CLIENT_URLS", "http://0.0.0.0:2379")
                .with_env_var("ETCD_ADVERTISE_CLIENT_URLS", format!("http://{name}:2379"))
                // No test of this file concerns a loss of power.
                .with_env_var("ETCD_UNSAFE_NO_FSYNC", "true")
                // The watches of a client that was cut off count until etcd drops its connection.
                .with_env_var("ETCD_GRPC_KEEPALIVE_INTERVAL", "2s")
                .with_env_var("ETCD_GRPC_KEEPALIVE_TIMEOUT", "2s");
            owned(image)
        };
        let (port, container) = ports::start(&name, image).await?;
        Ok(Self {
            name,
            port,
            _container: container,
        })
    }

    /// Returns the endpoint for the nodes.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}:2379", self.name)
    }

    pub(crate) async fn client(&self) -> Result<Client> {
        let endpoint = format!("http://{}", self.port.address());
        Ok(Client::connect([endpoint], None).await?)
    }

    /// Returns the sum over all samples of the metric.
    pub(crate) async fn metric(&self, name: &str) -> Result<f64> {
        let page = get(&self.port.address(), "/metrics").await?;
        let samples = page.lines().filter_map(|line| line.strip_prefix(name));
        let values = samples.filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok());
        Ok(values.sum())
    }
}

/// Adds the label by which the leftovers of a killed run are found.
pub(crate) fn owned(
    request: impl Into<ContainerRequest<GenericImage>>,
) -> ContainerRequest<GenericImage> {
    let (key, value) = owner_label();
    request.into().with_label(key, value)
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

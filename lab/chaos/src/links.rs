//! Connects a node to etcd through proxies of its own, one for each server, and the other nodes to its port for signs of
//! life through another one.

use eldest_testing::internal::Port;
use eldest_testing::{Etcd, EtcdCluster, Proxy};

use crate::Result;

/// Returns the URL at which clients reach that member: over TLS, if it serves TLS.
pub(crate) fn endpoint(member: &Etcd) -> String {
    member.tls_endpoint().unwrap_or_else(|| member.endpoint())
}

/// The links of one node.
pub(crate) struct Links {
    etcd: Vec<Proxy>,
    /// The node's port for signs of life, and the link through which the other nodes reach it.
    port: Port,
    peers: Proxy,
}

impl Links {
    pub(crate) async fn start(cluster: &EtcdCluster) -> Result<Self> {
        let mut etcd = Vec::new();
        for member in cluster.members() {
            etcd.push(Proxy::start(endpoint(member)).await?);
        }
        let port = Port::free()?;
        let peers = Proxy::start(port.address()).await?;
        Ok(Self { etcd, port, peers })
    }

    /// Returns the endpoints as the node receives them, `first` first.
    pub(crate) fn endpoints(&self, first: usize) -> String {
        let endpoint = |link: &Proxy| format!("https://{}", link.address());
        let mut endpoints: Vec<String> = self.etcd.iter().map(endpoint).collect();
        let count = endpoints.len();
        endpoints.rotate_left(first % count);
        endpoints.join(",")
    }

    /// Returns the links to etcd.
    pub(crate) fn all(&self) -> &[Proxy] {
        &self.etcd
    }

    /// Returns the link through which the other nodes reach the node's port for signs of life.
    pub(crate) fn peers(&self) -> &Proxy {
        &self.peers
    }

    /// Returns the address at which the node listens for other nodes, and the one at which these reach it.
    pub(crate) fn port(&self) -> [String; 2] {
        [self.port.address(), self.peers.address()]
    }

    /// Returns the link with the most connections, which is the one in use.
    pub(crate) fn busiest(&self) -> Option<&Proxy> {
        self.etcd.iter().max_by_key(|link| link.connections())
    }

    /// Returns the server with the most connections, which is the one in use.
    pub(crate) fn server_in_use(&self) -> Option<usize> {
        let links = self.etcd.iter().enumerate();
        let busiest = links.max_by_key(|(_, link)| link.connections());
        busiest.map(|(server, _)| server)
    }

    /// Resets all connections to etcd; new ones are accepted.
    pub(crate) fn reset(&self) {
        self.etcd.iter().for_each(Proxy::drop_connections);
    }

    /// Heals the links to etcd.
    pub(crate) fn heal(&self) {
        self.etcd.iter().for_each(Proxy::heal);
    }
}

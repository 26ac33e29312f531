//! Connects a node to etcd through proxies of its own, one for each server.

use eldest_testing::{Etcd, EtcdCluster, Proxy};

use crate::Result;

/// Returns the URL at which clients reach that member: over TLS, if it serves TLS.
pub(crate) fn endpoint(member: &Etcd) -> String {
    member.tls_endpoint().unwrap_or_else(|| member.endpoint())
}

/// The links of one node.
pub(crate) struct Links(Vec<Proxy>);

impl Links {
    pub(crate) async fn start(cluster: &EtcdCluster) -> Result<Self> {
        let mut links = Vec::new();
        for member in cluster.members() {
            links.push(Proxy::start(endpoint(member)).await?);
        }
        Ok(Self(links))
    }

    /// Returns the endpoints as the node receives them, `first` first.
    pub(crate) fn endpoints(&self, first: usize) -> String {
        let endpoint = |link: &Proxy| format!("https://{}", link.address());
        let mut endpoints: Vec<String> = self.0.iter().map(endpoint).collect();
        let count = endpoints.len();
        endpoints.rotate_left(first % count);
        endpoints.join(",")
    }

    pub(crate) fn all(&self) -> &[Proxy] {
        &self.0
    }

    /// Returns the link with the most connections, which is the one in use.
    pub(crate) fn busiest(&self) -> Option<&Proxy> {
        self.0.iter().max_by_key(|link| link.connections())
    }

    /// Returns the server with the most connections, which is the one in use.
    pub(crate) fn server_in_use(&self) -> Option<usize> {
        let links = self.0.iter().enumerate();
        let busiest = links.max_by_key(|(_, link)| link.connections());
        busiest.map(|(server, _)| server)
    }

    /// Resets all connections; new ones are accepted.
    pub(crate) fn reset(&self) {
        self.0.iter().for_each(Proxy::drop_connections);
    }

    pub(crate) fn heal(&self) {
        self.0.iter().for_each(Proxy::heal);
    }
}

//! Connects a node to etcd through proxies of its own, one for each server.

use eldest_testing::{EtcdCluster, Proxy};

use crate::Result;

/// The links of one node.
pub(crate) struct Links(Vec<Proxy>);

impl Links {
    pub(crate) async fn start(cluster: &EtcdCluster) -> Result<Self> {
        let mut links = Vec::new();
        for member in cluster.members() {
            links.push(Proxy::start(member.address()).await?);
        }
        Ok(Self(links))
    }

    /// As the node is told them, `first` first.
    pub(crate) fn endpoints(&self, first: usize) -> String {
        let mut endpoints: Vec<String> = self.0.iter().map(Proxy::endpoint).collect();
        let count = endpoints.len();
        endpoints.rotate_left(first % count);
        endpoints.join(",")
    }

    pub(crate) fn all(&self) -> &[Proxy] {
        &self.0
    }

    /// The link with the most connections: the one that is in use.
    pub(crate) fn busiest(&self) -> Option<&Proxy> {
        self.0.iter().max_by_key(|link| link.connections())
    }

    /// The server to which most connections lead: the one that is in use.
    pub(crate) fn server_in_use(&self) -> Option<usize> {
        let links = self.0.iter().enumerate();
        let busiest = links.max_by_key(|(_, link)| link.connections());
        busiest.map(|(server, _)| server)
    }

    pub(crate) fn heal(&self) {
        self.0.iter().for_each(Proxy::heal);
    }
}

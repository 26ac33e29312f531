//! Represents one member of the cluster as its clients see it, with the rules for all its answers and streams.

use std::time::Duration;

use tonic::{Request, Status};

use super::cluster::Cluster;
use super::errors;
use crate::memory::proto::Header;

/// One member, as its clients see it.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) cluster: Cluster,
    pub(super) me: usize,
}

impl Member {
    /// Applies the first checks: a stopped process takes no request, and a member without a leader refuses requests
    /// that require one.
    pub(super) async fn accept<T>(&self, request: &Request<T>) -> Result<(), Status> {
        self.cluster.thawed(self.me).await;
        if requires_leader(request) && self.cluster.knows_no_leader(self.me) {
            return Err(errors::no_leader());
        }
        Ok(())
    }

    /// Returns the header that names the answering member, with the answer's own revision if it has one.
    pub(super) fn signed(&self, header: Option<Header>) -> Header {
        let signature = self.cluster.header(self.me);
        let revision = header.map_or(0, |header| header.revision);
        Header {
            revision: if revision == 0 {
                signature.revision
            } else {
                revision
            },
            ..signature
        }
    }

    pub(super) fn header(&self) -> Header {
        self.signed(None)
    }
}

/// Returns true if the client set `with_require_leader`.
pub(super) fn requires_leader<T>(request: &Request<T>) -> bool {
    let value = request.metadata().get("hasleader");
    value.is_some_and(|value| value == "true")
}

/// Returns when a stream that requires a leader must end; never for other streams.
pub(super) async fn leader_lost(member: &Member, required: bool) {
    if !required {
        return std::future::pending().await;
    }
    while !member.cluster.leaderless(member.me) {
        tokio::time::sleep(Duration::from_millis(500)).await;
        member.cluster.thawed(member.me).await;
    }
}

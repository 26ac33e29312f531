//! A leader that does not know yet that it has lost its term, and its successor.

use std::time::Duration;

use eldest::{BoxError, Leadership, Session, SessionOptions};
use eldest_testing::Etcd;

/// The election of both nodes.
pub(crate) const ELECTION: &str = "billing";

/// Two nodes of one election. Dropping them stops their etcd.
pub(crate) struct Nodes {
    first: Session,
    second: Session,
    etcd: Etcd,
}

impl Nodes {
    pub(crate) async fn start() -> Result<Self, BoxError> {
        let etcd = Etcd::start().await?;
        let node = async |name| {
            let options = SessionOptions::new(name).ttl(Duration::from_secs(5));
            Session::connect([etcd.endpoint()], options).await
        };
        Ok(Self {
            first: node("n1").await?,
            second: node("n2").await?,
            etcd,
        })
    }

    pub(crate) async fn leader(&self) -> Result<Leadership, BoxError> {
        lead(&self.first).await
    }

    /// Returns the leader of the next term, after an operator has deleted the key of this one.
    pub(crate) async fn successor(&self, leader: &Leadership) -> Result<Leadership, BoxError> {
        assert!(self.etcd.delete(leader.key()).await?);
        lead(&self.second).await
    }
}

async fn lead(session: &Session) -> Result<Leadership, BoxError> {
    let mut candidate = session.election(ELECTION)?.campaign().await?;
    Ok(candidate.elected().await?)
}

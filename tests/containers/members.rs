//! Reads the election's queue directly from the demo's etcd, and moves etcd's own leadership to the member that keeps
//! running.

use std::time::Duration;

use eldest_testing::eventually;
use etcd_client::{Client, GetOptions, KeyValue, SortOrder, SortTarget};

use crate::composed::{Composed, ETCD_PORT, ETCD_THAT_STAYS, ETCDS};
use crate::lab::{Result, SOON};

/// The election of the page's nodes.
const DEMO: &str = "demo";
/// The longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A key of the election.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) node: String,
    pub(crate) create_revision: i64,
    pub(crate) lease: i64,
}

impl Key {
    fn read(kv: &KeyValue) -> Result<Self> {
        let value: serde_json::Value = serde_json::from_slice(kv.value())?;
        Ok(Self {
            node: value["identity"].as_str().unwrap_or_default().to_owned(),
            create_revision: kv.create_revision(),
            lease: kv.lease(),
        })
    }
}

impl Composed {
    /// Connects a client to that member alone.
    pub(crate) async fn client(&self, member: &str) -> Result<Client> {
        let etcd = self.port(member, ETCD_PORT)?;
        Ok(Client::connect([format!("http://{etcd}")], None).await?)
    }

    /// Returns the queue from etcd, eldest first.
    pub(crate) async fn queue(&self) -> Result<Vec<Key>> {
        self.queue_of(DEMO).await
    }

    /// Returns the queue of that election.
    pub(crate) async fn queue_of(&self, election: &str) -> Result<Vec<Key>> {
        let mut client = self.client(ETCD_THAT_STAYS).await?;
        let options = GetOptions::new().with_prefix();
        let options = options.with_sort(SortTarget::Create, SortOrder::Ascend);
        let asked = tokio::time::timeout(
            PATIENCE,
            client.get(format!("eldest/{election}/"), Some(options)),
        );
        asked.await??.kvs().iter().map(Key::read).collect()
    }

    /// Makes the member that stays etcd's leader. Without a leader, etcd answers no request until there is another,
    /// which can take longer than a node waits with a TTL of 5 s.
    pub(crate) async fn lead_by_the_one_that_stays(&self) -> Result {
        let what = format!("{ETCD_THAT_STAYS} leads etcd");
        Ok(eventually(SOON, what, async || {
            let (stays, leader) = self.view(ETCD_THAT_STAYS).await.ok()?;
            if stays == leader {
                return Some(());
            }
            for member in ETCDS {
                // etcd refuses this while the other member is not ready for it.
                if self.view(member).await.ok()?.0 == leader {
                    let mut client = self.client(member).await.ok()?;
                    drop(tokio::time::timeout(PATIENCE, client.move_leader(stays)).await);
                }
            }
            None
        })
        .await?)
    }

    /// Returns that member's id, and the id of etcd's leader as it sees it.
    async fn view(&self, member: &str) -> Result<(u64, u64)> {
        let mut client = self.client(member).await?;
        let status = tokio::time::timeout(PATIENCE, client.status()).await??;
        let header = status.header().ok_or("no header")?;
        Ok((header.member_id(), status.leader()))
    }
}

//! Wakes a leader or worker when the job changes.

use std::time::Duration;

use anyhow::{Result, ensure};
use etcd_client::{Client, WatchOptions, WatchStream};
use tokio::time::timeout;

use crate::PREFIX;

/// A watch of the job's keys. Start it, read the keys, and read them again after each change.
pub(crate) struct Changes(WatchStream);

impl Changes {
    pub(crate) async fn watch(etcd: &mut Client) -> Result<Self> {
        let prefix = WatchOptions::new().with_prefix();
        Ok(Self(etcd.watch(PREFIX, Some(prefix)).await?))
    }

    /// Returns at the next change, and after a second at the latest: a watch that hangs delays the job a little.
    pub(crate) async fn next(&mut self) -> Result<()> {
        if let Ok(message) = timeout(Duration::from_secs(1), self.0.message()).await {
            let alive = message?.is_some_and(|message| !message.canceled());
            ensure!(alive, "etcd ended the watch");
        }
        Ok(())
    }
}

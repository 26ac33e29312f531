//! Calls etcd's own election and lock services, v3election and v3lock, through etcd-client.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use etcd_client::{Client, LeaderKey, LockOptions, ResignOptions};
use tokio::task::JoinHandle;

use crate::peer::Context;
use crate::standing::Stands;

/// A call that etcd answers only when the caller leads or holds the lock, with the time of the answer.
type Awaited<T> = JoinHandle<Result<(T, Instant)>>;

/// A candidate that waits within a call to etcd.
pub(crate) struct Standing {
    client: Client,
    lease: i64,
    campaign: Option<Awaited<LeaderKey>>,
    leader: Option<LeaderKey>,
}

impl Stands for Standing {
    async fn connect(context: &Context, _: usize) -> Result<Self> {
        let (client, lease) = context.with_lease().await?;
        Ok(Self {
            client,
            lease,
            campaign: None,
            leader: None,
        })
    }

    async fn join(&mut self, election: &str, _: Option<&Self>) -> Result<()> {
        let (mut client, lease) = (self.client.clone(), self.lease);
        let name = election.to_owned();
        self.campaign = Some(tokio::spawn(async move {
            let mut answer = client.campaign(name, "bench", lease).await?;
            let now = Instant::now();
            Ok((answer.take_leader().context("no leader")?, now))
        }));
        // The call's answer comes only when the candidate leads.
        key_exists(&mut self.client, &format!("{election}/{lease:x}")).await
    }

    async fn alone(&mut self, election: &str) -> Result<(Duration, Duration)> {
        let start = Instant::now();
        let mut answer = self.client.campaign(election, "bench", self.lease).await?;
        let led = start.elapsed();
        self.leader = answer.take_leader();
        self.resign().await?;
        Ok((led, start.elapsed()))
    }

    async fn lead(&mut self) -> Result<Instant> {
        let campaign = self.campaign.take().context("not standing")?;
        let (leader, at) = campaign.await??;
        self.leader = Some(leader);
        Ok(at)
    }

    async fn resign(&mut self) -> Result<()> {
        let leader = self.leader.take().context("not leading")?;
        let options = ResignOptions::new().with_leader(leader);
        self.client.resign(Some(options)).await?;
        Ok(())
    }
}

/// A process that waits for a lock of etcd's lock service, v3lock, or holds it.
pub(crate) struct Holding {
    client: Client,
    lease: i64,
    locking: Option<Awaited<Vec<u8>>>,
    key: Vec<u8>,
}

impl Stands for Holding {
    async fn connect(context: &Context, queue: usize) -> Result<Self> {
        let Standing { client, lease, .. } = Standing::connect(context, queue).await?;
        Ok(Self {
            client,
            lease,
            locking: None,
            key: Vec::new(),
        })
    }

    async fn join(&mut self, name: &str, _: Option<&Self>) -> Result<()> {
        let (mut client, lease) = (self.client.clone(), self.lease);
        let lock = name.to_owned();
        self.locking = Some(tokio::spawn(async move {
            let options = LockOptions::new().with_lease(lease);
            let answer = client.lock(lock, Some(options)).await?;
            Ok((answer.key().to_vec(), Instant::now()))
        }));
        key_exists(&mut self.client, &format!("{name}/{lease:x}")).await
    }

    async fn lead(&mut self) -> Result<Instant> {
        let locking = self.locking.take().context("not waiting")?;
        let (key, at) = locking.await??;
        self.key = key;
        Ok(at)
    }

    async fn resign(&mut self) -> Result<()> {
        self.client.unlock(std::mem::take(&mut self.key)).await?;
        Ok(())
    }

    async fn alone(&mut self, name: &str) -> Result<(Duration, Duration)> {
        let start = Instant::now();
        let options = LockOptions::new().with_lease(self.lease);
        let answer = self.client.lock(name, Some(options)).await?;
        let held = start.elapsed();
        self.client.unlock(answer.key()).await?;
        Ok((held, start.elapsed()))
    }
}

/// Waits until the key exists.
async fn key_exists(client: &mut Client, key: &str) -> Result<()> {
    while client.get(key, None).await?.kvs().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

//! Implements candidates by the rule of Kubernetes' client-go (`leaderelection`), with the times of the core components:
//! a record that the leader renews, and that another one may take once it saw no renewal for 15 s by its own clock.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};
use tokio::sync::watch;

use crate::peer::Context;
use crate::standing::Stands;

/// `LeaseDuration`.
const LEASE: Duration = Duration::from_secs(15);
/// `RetryPeriod`: between two renewals, and between two looks of a candidate before its jitter.
pub(crate) const RETRY: Duration = Duration::from_secs(2);
/// `JitterFactor`.
const JITTER: f64 = 1.2;

/// The candidate's last look at the record.
#[derive(Debug, Clone, Copy, Default)]
struct Look {
    revision: i64,
    led: Option<Instant>,
}

/// A candidate, which renews the record for as long as its process lives.
pub(crate) struct Standing {
    client: Client,
    looks: watch::Receiver<Look>,
}

impl Stands for Standing {
    async fn connect(context: &Context, _: usize) -> Result<Self> {
        Ok(Self {
            client: context.client().await?,
            looks: watch::channel(Look::default()).1,
        })
    }

    async fn join(&mut self, election: &str, _: Option<&Self>) -> Result<()> {
        let (looked, looks) = watch::channel(Look::default());
        self.looks = looks;
        let client = self.client.clone();
        tokio::spawn(contend(client, election.to_owned(), looked));
        self.looks.wait_for(|look| look.revision > 0).await?;
        Ok(())
    }

    async fn lead(&mut self) -> Result<Instant> {
        let look = self.looks.wait_for(|look| look.led.is_some()).await?;
        look.led.context("it leads")
    }

    async fn resign(&mut self) -> Result<()> {
        bail!("the rule has no hand-over")
    }
}

/// Takes the record when it may, and renews it from then on.
async fn contend(mut client: Client, key: String, looked: watch::Sender<Look>) -> Result<()> {
    let mut observed = (0, Instant::now());
    loop {
        let found = client.get(&*key, None).await?;
        let revision = found
            .kvs()
            .first()
            .map_or(0, etcd_client::KeyValue::mod_revision);
        if revision != observed.0 {
            observed = (revision, Instant::now());
        }
        let leads = looked.borrow().led;
        if revision == 0 || leads.is_some() || observed.1.elapsed() > LEASE {
            let same = Compare::mod_revision(&*key, CompareOp::Equal, revision);
            let put = TxnOp::put(&*key, "bench", None);
            let taken = client.txn(Txn::new().when([same]).and_then([put])).await?;
            if taken.succeeded() {
                let led = leads.or_else(|| Some(Instant::now()));
                let header = taken.header().context("a header")?;
                observed = (header.revision(), Instant::now());
                looked.send_replace(Look {
                    revision: observed.0,
                    led,
                });
                tokio::time::sleep(RETRY).await;
                continue;
            }
        }
        looked.send_modify(|look| look.revision = observed.0);
        tokio::time::sleep(RETRY.mul_f64(1.0 + JITTER * fastrand::f64())).await;
    }
}

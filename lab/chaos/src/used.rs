//! Counts what nodes with `--ready` used.

use std::collections::BTreeSet;

use eldest_node::record::PARTITIONS;
use etcd_client::{GetOptions, KeyValue};

use crate::Result;
use crate::lab::Lab;
use crate::shared::{owners, shares};

/// The keys of the election's version mark.
const MARKS: &str = "eldest/~evacuated/~version/";

/// The uses of what `--ready` gives to nodes, by their logs and by etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) serving: usize,
    pub(crate) warm: usize,
    pub(crate) prepared: usize,
    pub(crate) shares: usize,
    pub(crate) marks: usize,
}

impl Used {
    /// Counts them, unless the nodes use none or there are problems already.
    pub(crate) async fn of(lab: &Lab, problems: &mut Vec<String>) -> Option<Self> {
        lab.settings.ready.filter(|_| problems.is_empty())?;
        let counted = Self::count(lab).await;
        counted
            .map_err(|error| problems.push(error.to_string()))
            .ok()
    }

    /// Counts them when each partition has an owner, as it must before the time of a kept share is over.
    async fn count(lab: &Lab) -> Result<Self> {
        lab.shared_by(1).await?;
        Ok(Self {
            serving: lab.logged("eldest::election: serving"),
            warm: lab.logged("eldest::election: warmth changed"),
            prepared: lab.logged("eldest::election: ready for partitions"),
            shares: lab.found(shares()).await?,
            marks: lab.found(MARKS.to_owned()).await?,
        })
    }

    /// Returns what must have happened: name, count and least count.
    pub(crate) fn wanted(self) -> [(&'static str, usize, usize); 5] {
        [
            ("leaders that said that they serve", self.serving, 1),
            ("changes of warmth", self.warm, 1),
            ("preparations for partitions", self.prepared, 1),
            ("kept shares", self.shares, 1),
            ("version marks", self.marks, 1),
        ]
    }
}

impl Lab {
    /// Waits until each partition has an owner, and so many nodes own some, or as many as there are partitions.
    pub(crate) async fn shared_by(&self, nodes: usize) -> Result {
        let what = format!("{nodes} nodes own all partitions");
        self.until(what, async || {
            let leases = self.operate("owners are read", async |mut client| {
                let options = GetOptions::new().with_prefix();
                let found = client.get(owners(), Some(options)).await?;
                Ok(found.kvs().iter().map(KeyValue::lease).collect::<Vec<_>>())
            });
            let leases = leases.await?;
            let owners: BTreeSet<_> = leases.iter().collect();
            let all = PARTITIONS as usize;
            let is_shared = leases.len() == all && owners.len() >= nodes.min(all);
            Ok(is_shared.then_some(()))
        })
        .await
    }

    /// Counts the keys with that prefix.
    async fn found(&self, prefix: String) -> Result<usize> {
        self.operate("keys are counted", async |mut client| {
            let options = GetOptions::new().with_prefix().with_count_only();
            Ok(client.get(&*prefix, Some(options)).await?.count() as usize)
        })
        .await
    }
}

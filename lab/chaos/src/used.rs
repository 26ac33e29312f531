//! Counts what nodes with `--ready` used.

use eldest_node::record::PARTITIONS;
use etcd_client::GetOptions;

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

    /// Waits until each partition has an owner, as it must before the time of a kept share is over, and counts.
    async fn count(lab: &Lab) -> Result<Self> {
        lab.until("each partition has an owner", async || {
            Ok((found(lab, owners()).await? == PARTITIONS as usize).then_some(()))
        })
        .await?;
        Ok(Self {
            serving: lab.logged("eldest::election: serving"),
            warm: lab.logged("eldest::election: warmth changed"),
            prepared: lab.logged("eldest::election: ready for partitions"),
            shares: found(lab, shares()).await?,
            marks: found(lab, MARKS.to_owned()).await?,
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

/// Counts the keys with that prefix.
async fn found(lab: &Lab, prefix: String) -> Result<usize> {
    lab.operate("keys are counted", async |mut client| {
        let options = GetOptions::new().with_prefix().with_count_only();
        Ok(client.get(&*prefix, Some(options)).await?.count() as usize)
    })
    .await
}

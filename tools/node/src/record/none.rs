//! Replaces the history when the feature `history` is off: nothing is written.

use anyhow::{Result, ensure};

use super::Event;
use crate::config::Config;

#[derive(Clone)]
pub(crate) struct History;

impl History {
    #[expect(clippy::unused_async, reason = "the history that writes has to wait")]
    pub(crate) async fn open(config: &Config) -> Result<Self> {
        ensure!(
            config.history.is_none(),
            "HISTORY is set, but this program was built without the feature `history`"
        );
        Ok(Self)
    }

    #[expect(clippy::unused_self, reason = "the history that writes needs it")]
    pub(crate) fn record(&self, _: Event<'_>) {}

    #[expect(clippy::unused_self, reason = "the history that writes needs it")]
    pub(crate) fn of_partition(&self, _: u32) -> Self {
        Self
    }

    #[expect(clippy::unused_async, reason = "the history that writes has to wait")]
    pub(crate) async fn finish(self) {}
}

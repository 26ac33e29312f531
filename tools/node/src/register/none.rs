//! Replaces the register when the feature `register` is off: nothing is counted.

use anyhow::Result;
use eldest::Term;

use crate::config::Config;
use crate::record::History;

/// Stands in for the register.
pub(crate) struct Register;

impl Register {
    #[expect(clippy::unnecessary_wraps, reason = "the other one can fail")]
    pub(crate) fn open(_: &Config) -> Result<Self> {
        Ok(Self)
    }

    #[expect(
        clippy::unnecessary_wraps,
        clippy::unused_self,
        reason = "the other one's form"
    )]
    pub(crate) fn count(&self, _: &Term, _: &History) -> Result<Counting> {
        Ok(Counting)
    }
}

/// Stands in for the counting.
pub(crate) struct Counting;

impl Counting {
    #[expect(clippy::unused_async, reason = "the other one waits")]
    pub(crate) async fn ends(self) -> Result<()> {
        Ok(())
    }
}

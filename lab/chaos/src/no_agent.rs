//! Stands in for the agent where there are no process descriptors: nodes have no guard there.

use std::path::Path;
use std::time::Duration;

use eldest_testing::EtcdCluster;

use crate::certificates::Certificates;
use crate::{Result, Settings};

/// A type without values: there is no agent.
pub(crate) enum Agent {}

impl Agent {
    #[allow(clippy::unused_async, reason = "as where there is one")]
    pub(crate) async fn new(_: &EtcdCluster, _: &Path, _: &Certificates) -> Result<Option<Self>> {
        Ok(None)
    }

    pub(crate) fn socket(&self) -> &Path {
        match *self {}
    }

    #[allow(clippy::unused_async, reason = "as where there is one")]
    pub(crate) async fn start(&self, _: &Settings) -> Result {
        match *self {}
    }

    pub(crate) fn kill(&self) {
        match *self {}
    }

    pub(crate) fn pause(&self) {
        match *self {}
    }

    pub(crate) fn resume(&self) {
        match *self {}
    }

    pub(crate) fn cut(&self) {
        match *self {}
    }

    pub(crate) fn reset(&self) {
        match *self {}
    }

    pub(crate) fn heal(&self) {
        match *self {}
    }

    #[allow(clippy::unused_async, reason = "as where there is one")]
    pub(crate) async fn guarded(&self) -> Option<(Vec<u32>, Vec<i64>)> {
        match *self {}
    }

    pub(crate) fn released(&self) -> Result<Vec<(Duration, i64)>> {
        match *self {}
    }
}

/// Returns an error, because there is no agent here.
///
/// # Errors
///
/// Always.
pub fn main(_: &Path) -> Result {
    Err("an agent needs Linux".into())
}

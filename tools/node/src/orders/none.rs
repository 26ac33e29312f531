//! Replaces orders when the feature `orders` is off: no order ever arrives.

#![allow(clippy::unused_async, clippy::unused_self, clippy::unnecessary_wraps)] // as the other one

use anyhow::Result;
use eldest::{Election, Leadership};

use crate::config::Config;

pub(crate) struct Orders;

impl Orders {
    pub(crate) fn open(_: &Config) -> Result<Self> {
        Ok(Self)
    }

    pub(crate) fn is_deaf(&self) -> bool {
        false
    }

    pub(crate) async fn obey(&self, _: &Leadership, _: &Election) {}
}

//! Tests the test tools themselves: servers, clusters and the proxy work as the other tests require.
#![allow(clippy::disallowed_methods)] // tests run in real time
#![allow(clippy::float_cmp)] // metrics that count are whole numbers

mod cluster;
mod crashes;
#[cfg(unix)]
mod following;
mod proxy;
mod server;
mod waiting;
mod wall_clock;
mod without_etcd;

use std::time::Duration;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const GUARD: Duration = Duration::from_secs(10);

/// How long a test watches that an event does not happen.
const WHILE: Duration = Duration::from_millis(200);

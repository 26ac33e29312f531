//! One instance of the service, configured by `NAME`, `ETCD_ENDPOINTS`, `LISTEN` and `TTL_SECONDS`. A build for the
//! failover tests also needs `HISTORY`, the file to which it writes its records.
#![allow(clippy::disallowed_methods)] // an application has no injected clock

use std::env;
use std::time::Duration;

use anyhow::{Context, Result};
use eldest::{CancellationToken, SessionOptions};
use eldest_failover_example::{Witness, serve};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<()> {
    let name = env::var("NAME").context("NAME")?;
    let endpoints = env::var("ETCD_ENDPOINTS").context("ETCD_ENDPOINTS")?;
    let endpoints: Vec<String> = endpoints.split(',').map(str::to_owned).collect();
    let ttl = env::var("TTL_SECONDS").map_or(Ok(10), |seconds| seconds.parse());
    let ttl = Duration::from_secs(ttl.context("TTL_SECONDS")?);
    let listen = env::var("LISTEN").unwrap_or_else(|_| "0.0.0.0:8080".to_owned());
    let listener = TcpListener::bind(listen).await?;

    let witness = witness(&name)?;
    let shutdown = CancellationToken::new();
    tokio::spawn({
        let (witness, shutdown) = (witness.clone(), shutdown.clone());
        async move {
            eldest::shutdown_signal().await;
            witness.leaves();
            shutdown.cancel();
        }
    });
    let options = SessionOptions::new(&name).ttl(ttl);
    serve(listener, &endpoints, options, witness, shutdown).await
}

#[cfg(feature = "failover-test")]
fn witness(name: &str) -> Result<Witness> {
    let file = env::var("HISTORY").context("HISTORY")?;
    let recorder = eldest_testing::history::Recorder::boottime().to_file(file)?;
    Ok(Witness::new(&recorder, name))
}

#[cfg(not(feature = "failover-test"))]
#[allow(clippy::unnecessary_wraps)]
fn witness(_: &str) -> Result<Witness> {
    Ok(Witness)
}

//! A pod or a router, as the first argument says: `pod` or `router`. `NAME`, `ETCD_ENDPOINTS` and `LISTEN` configure both, and
//! `ADDRESS`, at which routers reach the pod.
#![allow(clippy::disallowed_methods)] // an application has no injected clock

use std::env;

use anyhow::{Context, Result, bail};
use eldest::{Announcement, CancellationToken, Session, SessionOptions};
use eldest_persons_example::{Pod, route};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<()> {
    let name = env::var("NAME").context("NAME")?;
    let endpoints = env::var("ETCD_ENDPOINTS").context("ETCD_ENDPOINTS")?;
    let listen = env::var("LISTEN").unwrap_or_else(|_| "0.0.0.0:8080".to_owned());
    let listener = TcpListener::bind(listen).await?;
    let shutdown = CancellationToken::new();
    tokio::spawn({
        let shutdown = shutdown.clone();
        async move {
            eldest::shutdown_signal().await;
            shutdown.cancel();
        }
    });
    let connect =
        async |options: SessionOptions| Session::connect(endpoints.split(','), options).await;
    match env::args().nth(1).as_deref() {
        Some("pod") => {
            let me = Announcement::default().with_address(env::var("ADDRESS").context("ADDRESS")?);
            let session = connect(SessionOptions::new(&name).announcement(me)).await?;
            Pod::run(&session, listener, shutdown).await?;
            session.close().await?;
        }
        Some("router") => {
            let session = connect(SessionOptions::new(&name)).await?;
            route(&session, listener, shutdown).await?;
        }
        _ => bail!("the first argument must be `pod` or `router`"),
    }
    Ok(())
}

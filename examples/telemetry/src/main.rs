//! A node that writes reports while it leads. `NAME` is its name; etcd is at `ETCD_ENDPOINTS`, the collector at
//! `OTEL_EXPORTER_OTLP_ENDPOINT`. Ends by Ctrl-C.
#![allow(clippy::disallowed_methods)] // an application may sleep as it likes

use std::env;
use std::time::Duration;

use anyhow::Result;
use eldest::{BoxError, CancellationToken, Leadership, Session, SessionOptions};
use eldest_telemetry_example::{exporter, subscriber};
use tracing::Instrument;

#[tokio::main]
async fn main() -> Result<()> {
    let name = env::var("NAME").unwrap_or_else(|_| format!("node-{}", std::process::id()));
    let exporter = exporter(
        &setting("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317"),
        &name,
    )?;
    tracing::subscriber::set_global_default(subscriber(&exporter))?;

    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    tokio::spawn(async move {
        eldest::shutdown_signal().await;
        stop.cancel();
    });
    let endpoints = setting("ETCD_ENDPOINTS", "http://127.0.0.1:2379");
    let ttl: u64 = setting("TTL_SECONDS", "10").parse()?;
    let options = SessionOptions::new(&name).ttl(Duration::from_secs(ttl));
    let session = Session::connect(endpoints.split(','), options).await?;
    session
        .election("reports")?
        .run(shutdown, write_reports)
        .await?;
    session.close().await?;
    // Shutdown blocks until the collector has answered, so it needs a thread of its own.
    tokio::task::spawn_blocking(move || exporter.shutdown()).await??;
    Ok(())
}

/// The leader's work: its spans are children of the term's.
async fn write_reports(leadership: Leadership) -> Result<(), BoxError> {
    let lost = leadership.lost();
    for number in 1.. {
        let report = async {
            println!("report {number}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        let report = report.instrument(tracing::info_span!("report", number));
        if lost.run_until_cancelled(report).await.is_none() {
            break;
        }
    }
    Ok(())
}

fn setting(name: &str, unset: &str) -> String {
    env::var(name).unwrap_or_else(|_| unset.to_owned())
}

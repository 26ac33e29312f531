//! Implements `eldest doctor`: examines each endpoint, then the cluster as a whole, and reports the findings.

mod cluster;
mod endpoint;
mod findings;
mod versions;

use std::time::Duration;

use anyhow::Result;
use eldest::operator::Endpoint;
use eldest_http::contract::command::Level;

use self::endpoint::Said;
use self::findings::Findings;
use crate::connection::duration;
use crate::exit::Code;
use crate::global::Global;
use crate::output::{self, Format};

/// Examine etcd as a node would use it, and say what to change
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Examine etcd as a node would use it, and say what to change.\n\n\
    Asked is every member that --endpoints names: whether it answers, how fast, in which version, whether it knows a \
    leader and complains of anything. Then what a node needs: that --ttl suits this etcd, that its clock and ours run at \
    the same rate, that the user may read and write, that no key without a lease blocks an election. Nothing is changed; \
    two leases are granted for it, and given back.\n\n\
    Each finding is `ok`, a `note`, a `WARN`ing, or `FAIL`: those must be changed, and the exit code is 6."
)]
pub(crate) struct Args {
    /// The part of the namespace that the node will use; all of it, if left out
    #[arg(
        value_name = "ELECTION|PREFIX",
        default_value = "",
        hide_default_value = true
    )]
    below: String,

    /// The user only looks on: that it may read suffices
    #[arg(long)]
    onlooker: bool,

    /// How long to compare the clocks, up to 60 s; longer is more exact, 0s leaves it out
    #[arg(long, value_name = "DURATION", value_parser = span, default_value = "3s")]
    clock: Duration,
}

fn span(text: &str) -> Result<Duration, String> {
    let span = duration(text)?;
    if span > Duration::from_secs(60) {
        return Err("at most 60s".to_owned());
    }
    Ok(span)
}

pub(crate) async fn run(global: &Global, args: Args) -> Result<Code> {
    let connection = &global.connection;
    let options = connection.session_options("eldest-doctor")?;
    let endpoints: Result<Vec<Endpoint>, eldest::Error> = connection
        .endpoints
        .iter()
        .map(|url| Endpoint::new(url, options.clone()))
        .collect();
    let endpoints = endpoints?;
    let mut findings = Findings::default();
    let examined = futures::future::join_all(endpoints.iter().map(endpoint::examine)).await;
    for (of_one, _) in &examined {
        findings.extend(of_one);
    }
    let silent = examined
        .iter()
        .all(|(_, said)| matches!(said, Said::Nothing));
    let answering = examined.into_iter().zip(&endpoints);
    let answering = answering.filter_map(|((_, said), endpoint)| match said {
        Said::Report(report) => Some((endpoint, report)),
        Said::Nothing | Said::Proxy => None,
    });
    let answering: Vec<_> = answering.collect();
    if !answering.is_empty() {
        let patient = cluster::Patient {
            connection,
            options: &options,
            answering: &answering,
            below: &args.below,
        };
        patient.members(&mut findings).await;
        patient.ttl(&mut findings).await;
        patient.clock(&mut findings, args.clock).await;
        patient.permissions(&mut findings, args.onlooker).await;
        patient.blocked(&mut findings).await;
    }
    let worst = findings.worst();
    match global.output {
        Format::Text => output::say(findings.text())?,
        Format::Json => output::say_json(&findings.examination())?,
    }
    Ok(match worst {
        _ if silent => Code::Unavailable,
        Level::Fail => Code::Sick,
        Level::Ok | Level::Note | Level::Warn => Code::Done,
    })
}

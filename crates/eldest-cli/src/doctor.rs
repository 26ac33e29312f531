//! Implements `eldest doctor`: examines each endpoint, then the cluster as a whole, and reports the findings.

mod challenges;
mod cluster;
mod endpoint;
mod findings;
#[cfg(target_os = "linux")]
mod guard;
mod limits;
mod pings;
mod times;
mod versions;

use std::time::Duration;

use anyhow::Result;
use eldest::SessionOptions;
use eldest::operator::{Endpoint, Times, times};
use eldest_http::contract::command::Level;

use self::cluster::Patient;
use self::endpoint::Said;
use self::findings::Findings;
use self::pings::Pings;
use crate::connection::{Connection, duration};
use crate::distance::Distance;
use crate::exit::Code;
use crate::global::Global;
use crate::output::{self, Format};

/// Check that etcd suits a node, and say what to correct
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Check that etcd suits a node, and say what to correct.\n\n\
    For every member in --endpoints, the command checks that it answers, how fast, in which version, and whether it knows \
    a leader and has alarms, and measures its distance. It names the endpoint that a node here would use, and why. Then it \
    checks that the request timeout, the TTL and the grace period suit this etcd and the distance to it, and says what to \
    write otherwise; with --challenges, also the time to answer, and that the advertised port can be reached. It checks that etcd's clock and this machine's run at the same rate, that the user may read and write, that no key without a lease blocks an election or will, that etcd's limits let a session work, that etcd accepts a session's pings, and \
    that the agent of this host, if there is one, reaches etcd. It changes no keys; \
    it grants at most three leases and revokes them.\n\n\
    Each finding is `ok`, a `note`, a `WARN` or a `FAIL`. A `FAIL` must be corrected; until then the exit code is 6, or 3 if no endpoint answers at all.",
    after_help = "Examples:
  # Check a cluster for a node with a TTL of five seconds
  eldest doctor --endpoints http://10.0.0.1:2379,http://10.0.0.2:2379 --ttl 5s
  # Check that a user may read the elections below billing
  eldest doctor billing --observer --user dashboard --password-file dashboard.password"
)]
pub(crate) struct Args {
    /// The part of the namespace that the node will use [default: the whole namespace]
    #[arg(
        value_name = "ELECTION|PREFIX",
        default_value = "",
        hide_default_value = true
    )]
    below: String,

    /// Check only for the permission to read, for a user that only observes
    #[arg(long)]
    observer: bool,

    /// How long to compare the clocks, up to 60 s; a longer time is more exact. 0s skips the comparison and the test of pings,
    /// which takes 7 s
    #[arg(long, value_name = "DURATION", value_parser = span, default_value = "3s")]
    clock: Duration,

    /// The grace period of the node; `run` and `lock` add TTL/20, at most 2 s [default: TTL/5, at most 10 s; with
    /// --challenges, a tenth of that time]
    #[arg(
        long, value_name = "DURATION", value_parser = duration, env = "ELDEST_GRACE", hide_env_values = true,
        help_heading = "Session"
    )]
    grace: Option<Duration>,

    /// The agent to examine: auto is the one at /run/eldest/agent.sock, which may be absent; off examines none; the agent at
    /// the path of another socket must be there
    #[arg(
        long,
        value_name = "off|auto|PATH",
        default_value = "auto",
        env = "ELDEST_GUARD",
        hide_env_values = true,
        help_heading = "Session"
    )]
    guard: String,
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
    let mut options = connection.session_options("eldest-doctor")?;
    if let Some(grace) = args.grace {
        options = options.grace(grace);
    }
    // The TTL must suit renewals, whatever time there is to answer challenges.
    let challenged = challenged(connection, &options)?;
    if let Some(times) = &challenged {
        options = options.grace(times.grace);
    }
    let connection = &connection.looked_up(&options).await?;
    let endpoints: Result<Vec<Endpoint>, eldest::Error> = connection
        .endpoints
        .iter()
        .map(|listed| Endpoint::new(listed, options.clone()))
        .collect();
    let endpoints = endpoints?;
    // The pings take as long as the other checks, so both run at the same time.
    let pings = (!args.clock.is_zero()).then(|| pings::begin(connection));
    let pings = pings.transpose()?;
    let mut findings = Findings::default();
    let examined = futures::future::join_all(endpoints.iter().map(endpoint::examine)).await;
    for (of_one, _) in &examined {
        findings.extend(of_one);
    }
    let silent = examined
        .iter()
        .all(|(_, said)| matches!(said, Said::Nothing));
    let distances: Vec<Option<Distance>> =
        examined.iter().map(|(_, said)| said.distance()).collect();
    let answering = examined.into_iter().zip(&endpoints);
    let answering = answering.filter_map(|((_, said), endpoint)| match said {
        Said::Report(report) => Some((endpoint, report)),
        Said::Nothing | Said::Refusal | Said::Proxy => None,
    });
    let answering: Vec<_> = answering.collect();
    if !answering.is_empty() {
        let patient = Patient {
            connection,
            options: &options,
            challenged,
            answering: &answering,
            below: &args.below,
            grace: args.grace,
        };
        examine_cluster(&patient, &args, (&distances, pings), &mut findings).await?;
    }
    #[cfg(target_os = "linux")]
    guard::examine(&mut findings, &args.guard).await;
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

/// Returns the times of a node that allows challenges, if the options say so.
fn challenged(connection: &Connection, options: &SessionOptions) -> Result<Option<Times>> {
    let challenges = connection.allowed.without_port();
    let times = challenges.map(|challenges| times(&options.clone().challenges(challenges)));
    Ok(times.transpose()?)
}

/// Examines the aspects that concern all endpoints together.
async fn examine_cluster(
    patient: &Patient<'_>,
    args: &Args,
    (distances, pings): (&[Option<Distance>], Option<Pings>),
    findings: &mut Findings,
) -> Result<()> {
    patient.members(findings).await;
    patient.nearest(distances, findings);
    patient.times(findings).await?;
    let ports = patient.connection.allowed.ports()?;
    challenges::ports(&ports, findings).await;
    if ports.is_empty() && patient.challenged.is_some() {
        let message = "no port for signs of life: the silence of a node is noticed up to a third of the TTL and some 2 s \
                           later than with --challenges-listen";
        findings.note("challenges", "challenges_port", message);
    }
    patient.clock(findings, args.clock).await;
    patient.permissions(findings, args.observer).await;
    patient.limits(findings).await;
    if let Some(pings) = pings {
        pings.report(findings).await;
    }
    patient.blocked(findings).await;
    Ok(())
}

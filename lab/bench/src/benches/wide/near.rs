//! `wide/near ...`: three data centres as network namespaces, with a member of etcd in each. The near member is killed and
//! comes back. Renewals and hand-overs before, meanwhile and afterwards, in round trips; and one term outlives all of it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use eldest_chaos::{Settings, Way, Wire, apart};
use eldest_testing::{Etcd, EtcdCluster};

use super::BENCH;
use super::node::NEAR;
use crate::peer::Peer;
use crate::report::{Group, Row};
use crate::run::Run;
use crate::samples::Samples;

const SITES: usize = 3;
/// The number of the node's data centre, which is that of its member; and the number of etcd's leader's.
const OWN: usize = 0;
const FAR: usize = 1;
/// Any seed will do, because no packet is lost.
const SEED: u64 = 1;
/// How often etcd's leader is determined again.
const LOOK: Duration = Duration::from_millis(100);
const TRIES: usize = 100;
/// The target through the near member, in round trips: the renewal to etcd's leader, the read that confirms it, and the
/// leader's own round trip to its majority. Half a round trip is for the machine.
const RENEWAL: f64 = 3.5;
/// The target through a member that is neither near nor etcd's leader: one more round trip for each of the two
/// requests.
const RENEWAL_LOST: f64 = 5.75;
/// The target through the near member: the delete goes to etcd's leader, and from there to its majority.
const HANDOVER: f64 = 2.5;
const HANDOVER_LOST: f64 = 3.75;
const AGAIN: &str = "near back, used again";
/// The target in seconds; the guide says: usually within a minute.
const BACK: f64 = 60.0;

/// The times measured in one phase.
#[derive(Default)]
struct Phase {
    /// The durations of renewals, in milliseconds.
    renewals: Samples,
    handovers: Samples,
}

struct Figures {
    before: Phase,
    lost: Phase,
    back: Phase,
    /// The time from the loss until the next member is used, or from the return until the near one is used again, in
    /// seconds.
    away: f64,
    again: f64,
    /// The number of terms that ended although no node ended them.
    ended: usize,
}

pub(super) fn measure(run: &mut Run<'_>, milliseconds: usize) -> Result<()> {
    if !run.options.wants("eldest") {
        return Ok(());
    }
    // A machine that lacks the requirements reports that once, and the other benches run.
    if let Err(error) = tokio::task::block_in_place(|| apart(|| Ok(()))) {
        run.report.say(format_args!("  skipped near: {error}"));
        return Ok(());
    }
    let samples = run.samples(30, 4);
    let figures = tokio::task::block_in_place(|| {
        apart(|| {
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            let runtime = runtime.enable_all().build()?;
            Ok(runtime.block_on(Box::pin(scene(milliseconds, samples)))?)
        })
    });
    let figures = figures.map_err(|error| anyhow!("{error:#}"))?;
    report(run, milliseconds, &figures);
    ensure!(
        figures.ended == 0,
        "a term ended while the near member was lost or came back"
    );
    Ok(())
}

fn report(run: &mut Run<'_>, milliseconds: usize, figures: &Figures) {
    let group = run.group(milliseconds, "trips");
    let phases = [
        ("near used, renewal", &figures.before.renewals, RENEWAL),
        ("near lost, renewal", &figures.lost.renewals, RENEWAL_LOST),
        ("near back, renewal", &figures.back.renewals, RENEWAL),
        ("near used, handover", &figures.before.handovers, HANDOVER),
        (
            "near lost, handover",
            &figures.lost.handovers,
            HANDOVER_LOST,
        ),
        ("near back, handover", &figures.back.handovers, HANDOVER),
    ];
    let row = |samples| Row {
        peer: "eldest".to_owned(),
        samples,
    };
    for (what, samples, most) in phases {
        let trips = samples.scaled(1.0 / milliseconds as f64);
        let figure = trips.p50();
        let group = Group { what, ..group };
        run.report.rows(group, &[row(trips)]);
        run.report.target(group, "round trips", figure, most);
    }
    let group = run.group(milliseconds, "s");
    for (what, figure) in [
        ("near lost, next used", figures.away),
        (AGAIN, figures.again),
    ] {
        let group = Group { what, ..group };
        run.report.rows(group, &[row(Samples::from_iter([figure]))]);
    }
    let again = Group {
        what: AGAIN,
        ..group
    };
    run.report.target(again, "seconds", figures.again, BACK);
    let ended = Group {
        what: "near",
        ..run.group(milliseconds, "terms")
    };
    run.report
        .count(ended, "terms ended", figures.ended as f64, 0.0);
}

/// Runs in a namespace and with a runtime of its own.
async fn scene(milliseconds: usize, samples: usize) -> Result<Figures> {
    let round_trip = Duration::from_millis(milliseconds as u64);
    let way = Way {
        delay: round_trip / 2,
        ..Way::default()
    };
    let wire = Wire::start(SITES, way, SEED).map_err(|error| anyhow!("{error:#}"))?;
    let settings = Settings::new("").far(round_trip);
    let mut builder = Etcd::builder()
        .heartbeat(settings.heartbeat)
        .election_timeout(settings.election_timeout);
    for site in wire.sites() {
        builder = builder.member_at(site.address.into(), site.command());
    }
    let mut cluster = builder.start_cluster(SITES).await?;
    far_leader(&cluster).await?;
    let mut node = node(&wire, &cluster).await?;
    node.ask(&format!("stand {milliseconds}")).await?;
    let before = phase(&mut node, samples).await?;
    let lost_at = Instant::now();
    cluster.member(OWN).kill();
    node.ask("uses other").await?;
    let away = lost_at.elapsed().as_secs_f64();
    let lost = phase(&mut node, samples).await?;
    cluster.member(OWN).restart().await?;
    let back_at = Instant::now();
    node.ask("uses near").await?;
    let again = back_at.elapsed().as_secs_f64();
    let back = phase(&mut node, samples).await?;
    let ended = node.ask("ended").await?.len();
    node.end().await?;
    Ok(Figures {
        before,
        lost,
        back,
        away,
        again,
        ended,
    })
}

/// Moves etcd's leader to another data centre than the node's.
async fn far_leader(cluster: &EtcdCluster) -> Result<()> {
    let status = cluster.members()[FAR].client().await.status().await?;
    let wanted = status.header().context("a header")?.member_id();
    for _ in 0..TRIES {
        let leader = cluster.leader().await;
        if leader == FAR {
            return Ok(());
        }
        // etcd refuses this while the other member is behind.
        let mut client = cluster.members()[leader].client().await;
        let _ = client.move_leader(wanted).await;
        tokio::time::sleep(LOOK).await;
    }
    anyhow::bail!("etcd's leader stays where it is")
}

/// Starts the node's process in the data centre of the first member.
async fn node(wire: &Wire, cluster: &EtcdCluster) -> Result<Peer> {
    let enter = wire.sites()[OWN].command();
    let (program, words) = enter.split_first().context("a command")?;
    let own = std::env::current_exe()?;
    let endpoints = cluster.endpoints().join(",");
    let mut all: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    all.push(own.to_str().context("a path of text")?);
    all.extend(["peer", BENCH.name, NEAR, &endpoints]);
    Peer::start("eldest", program.clone(), &all, &[]).await
}

async fn phase(node: &mut Peer, samples: usize) -> Result<Phase> {
    let milliseconds = |nanos: Vec<f64>| nanos.into_iter().map(|nanos| nanos / 1e6).collect();
    let handovers = node.ask(&format!("handovers {samples}")).await?;
    let renewals = node.ask(&format!("renewals {samples}")).await?;
    Ok(Phase {
        renewals: milliseconds(renewals),
        handovers: milliseconds(handovers),
    })
}

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
/// The data centre of the node, by the number of its member; and the one of etcd's leader.
const OWN: usize = 0;
const FAR: usize = 1;
/// Any: no packet is lost.
const SEED: u64 = 1;
/// When etcd's leader is asked for again.
const LOOK: Duration = Duration::from_millis(100);
const TRIES: usize = 100;
/// Through the near member, in round trips: the renewal to etcd's leader, the read that confirms it, and what that leader asks
/// its majority for it. Half a one is for what the machine needs.
const RENEWAL: f64 = 3.5;
/// Through a member that is neither near nor etcd's leader: one more for each of the two requests.
const RENEWAL_LOST: f64 = 5.75;
/// Through the near member: the delete goes to etcd's leader, and from there to its majority.
const HANDOVER: f64 = 2.5;
const HANDOVER_LOST: f64 = 3.75;
const AGAIN: &str = "near back, used again";
/// In seconds; the page says: usually within a minute.
const BACK: f64 = 60.0;

/// The times measured in one phase.
#[derive(Default)]
struct Phase {
    /// In milliseconds.
    renewals: Samples,
    handovers: Samples,
}

struct Figures {
    before: Phase,
    lost: Phase,
    back: Phase,
    /// From the loss until the next member is used, and from the return until the near one is used again, in seconds.
    away: f64,
    again: f64,
    /// Terms that ended and that nobody ended.
    ended: usize,
}

pub(super) fn measure(run: &mut Run<'_>, milliseconds: usize) -> Result<()> {
    if !run.options.wants("eldest") {
        return Ok(());
    }
    // A machine that lacks the requirements says so once, and the other benches run.
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

/// In a namespace of its own, with a runtime of its own.
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

/// On return, etcd's leader is in another data centre than the node.
async fn far_leader(cluster: &EtcdCluster) -> Result<()> {
    let status = cluster.members()[FAR].client().await.status().await?;
    let wanted = status.header().context("a header")?.member_id();
    for _ in 0..TRIES {
        let leader = cluster.leader().await;
        if leader == FAR {
            return Ok(());
        }
        // Refused while the other one is behind.
        let mut client = cluster.members()[leader].client().await;
        let _ = client.move_leader(wanted).await;
        tokio::time::sleep(LOOK).await;
    }
    anyhow::bail!("etcd's leader stays where it is")
}

/// The node's process, which is in the data centre of the first member.
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

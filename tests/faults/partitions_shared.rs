//! Tests members of shared partitions that are cut off.

use std::time::Duration;

use eldest::{CancellationToken, Partition, Partitions, Session};
use eldest_testing::history::{Recorder, Report, Rules, What, check};
use eldest_testing::{Etcd, Proxy, eventually};
use tokio::task::JoinHandle;

use crate::stage::{Result, millis, options, seconds};

const COUNT: u32 = 12;
/// Longer than anything here takes on a busy machine.
const LONG: Duration = seconds(30);
/// The time beyond the TTL, after a death or a cut.
const SLACK: Duration = millis(3500);

/// A member whose every term is recorded.
struct Member {
    name: String,
    recorder: Recorder,
    shutdown: CancellationToken,
    run: JoinHandle<eldest::Result<Option<()>>>,
    partitions: Partitions,
    _session: Session,
}

impl Member {
    /// Starts a member whose work ends when its token is cancelled.
    async fn start(name: &str, endpoint: &str, recorder: &Recorder, ttl: Duration) -> Result<Self> {
        let session = Session::connect([endpoint], options(name, ttl)).await?;
        let partitions = session.partitions("shards", COUNT)?;
        let shutdown = CancellationToken::new();
        let (stop, shared) = (shutdown.clone(), partitions.clone());
        let (eye, node) = (recorder.clone(), name.to_owned());
        let run = tokio::spawn(async move {
            let work = |partition: Partition| {
                tokio::spawn(eye.follow(&node, partition.term()));
                async move {
                    partition.lost().cancelled().await;
                    Ok::<_, eldest::BoxError>(())
                }
            };
            shared.run(stop, work).await
        });
        Ok(Self {
            name: name.to_owned(),
            recorder: recorder.clone(),
            shutdown,
            run,
            partitions,
            _session: session,
        })
    }

    /// Waits until `members` members own all partitions, evenly, by etcd's view.
    async fn even(&self, members: usize, within: Duration) -> Result {
        let what = format!("{COUNT} partitions are spread over {members} members");
        eventually(within, what, async || {
            let map = self.partitions.map().await.ok()?;
            let there = map.members().iter();
            let loads: Vec<_> = there.map(|m| map.partitions_of(m).count()).collect();
            let even = loads.iter().all(|load| *load == COUNT as usize / members);
            (even && loads.len() == members && map.unowned().count() == 0).then_some(())
        })
        .await?;
        Ok(())
    }

    fn owned_valid(&self, since: Duration) -> Result<usize> {
        let history = self.recorder.history()?;
        let of_us = history
            .events()
            .iter()
            .filter(|event| event.node == self.name);
        let valid = of_us.filter(|e| e.at >= since && matches!(e.what, What::Valid { .. }));
        let elections: std::collections::BTreeSet<_> = valid.map(|e| &e.election).collect();
        Ok(elections.len())
    }

    async fn stop(self) -> Result {
        self.shutdown.cancel();
        tokio::time::timeout(LONG, self.run).await???;
        Ok(())
    }
}

fn judged(recorder: &Recorder, ttl: Duration) -> Result<Report> {
    let report = check(&recorder.history()?, &Rules::new(ttl));
    report.assert_ok();
    Ok(report)
}

#[tokio::test]
async fn a_member_that_is_cut_off_stops_before_others_take_its_partitions() -> Result {
    const TTL: Duration = seconds(3);
    let etcd = Etcd::start().await?;
    let proxy = Proxy::start(etcd.address()).await?;
    let recorder = Recorder::boottime();
    let a = Member::start("a", &proxy.endpoint(), &recorder, TTL).await?;
    a.even(1, LONG).await?;
    let b = Member::start("b", &etcd.endpoint(), &recorder, TTL).await?;
    b.even(2, LONG).await?;

    let cut = recorder.now();
    recorder.record(
        "a",
        "",
        What::Fault {
            name: "cut".to_owned(),
        },
    );
    proxy.hold();
    // The delay of a busy machine adds to the lease, which lives on until etcd decides otherwise.
    b.even(1, TTL + SLACK + LONG).await?;
    let taken = recorder.now().saturating_sub(cut);
    proxy.heal();
    recorder.record(
        "a",
        "",
        What::Healed {
            name: "cut".to_owned(),
        },
    );
    b.even(2, LONG).await?;
    let healed = recorder.now();
    eventually(LONG, "a acts for its share again", async || {
        (a.owned_valid(healed).ok()? == COUNT as usize / 2).then_some(())
    })
    .await?;
    b.stop().await?;
    a.stop().await?;
    let report = judged(&recorder, TTL)?;
    assert!(taken <= TTL + SLACK, "owned again after {taken:?}");
    report.require(COUNT as usize * 2, 1);
    Ok(())
}

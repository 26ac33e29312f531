//! Tests members of shared partitions that are cut off, that do not give way, and whose etcd restarts.

use std::time::{Duration, Instant};

use eldest::{CancellationToken, LostReason, Partition, Partitions, Session};
use eldest_testing::history::{History, Recorder, Report, Rules, What, check};
use eldest_testing::{Etcd, Proxy, eventually};
use tokio::task::JoinHandle;

use crate::stage::{Result, grace, millis, options, seconds};

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
    /// Starts a member. `obeys`: its work ends when its token is cancelled.
    async fn start(
        name: &str,
        endpoint: &str,
        recorder: &Recorder,
        ttl: Duration,
        obeys: bool,
    ) -> Result<Self> {
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
                    if !obeys {
                        std::future::pending::<()>().await;
                    }
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

fn judged(recorder: &Recorder, ttl: Duration) -> Result<(History, Report)> {
    let history = recorder.history()?;
    let report = check(&history, &Rules::new(ttl));
    report.assert_ok();
    Ok((history, report))
}

/// Returns, for each partition that moved, the time from its token's cancellation to its next term.
fn moves(history: &History) -> Vec<Duration> {
    let mut lost = std::collections::BTreeMap::new();
    let mut moves = Vec::new();
    for event in history.events() {
        match &event.what {
            What::LostToken { reason, .. } if reason == LostReason::Reassigned.as_str() => {
                lost.insert(&event.election, event.at);
            }
            What::Elected { .. } => {
                moves.extend(
                    lost.remove(&event.election)
                        .map(|at| event.at.saturating_sub(at)),
                );
            }
            _ => {}
        }
    }
    moves
}

#[tokio::test]
async fn a_member_that_is_cut_off_stops_before_others_take_its_partitions() -> Result {
    const TTL: Duration = seconds(3);
    let etcd = Etcd::start().await?;
    let proxy = Proxy::start(etcd.address()).await?;
    let recorder = Recorder::boottime();
    let a = Member::start("a", &proxy.endpoint(), &recorder, TTL, true).await?;
    a.even(1, LONG).await?;
    let b = Member::start("b", &etcd.endpoint(), &recorder, TTL, true).await?;
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
    let (_, report) = judged(&recorder, TTL)?;
    assert!(taken <= TTL + SLACK, "owned again after {taken:?}");
    report.require(COUNT as usize * 2, 1);
    Ok(())
}

#[tokio::test]
async fn partitions_move_soon_though_work_ignores_its_token() -> Result {
    const TTL: Duration = seconds(10);
    let etcd = Etcd::start().await?;
    let recorder = Recorder::boottime();
    let a = Member::start("a", &etcd.endpoint(), &recorder, TTL, false).await?;
    a.even(1, LONG).await?;
    let b = Member::start("b", &etcd.endpoint(), &recorder, TTL, true).await?;
    b.even(2, LONG).await?;
    // The third member takes partitions from one that ignores its token, and from one that does not.
    let c = Member::start("c", &etcd.endpoint(), &recorder, TTL, true).await?;
    c.even(3, LONG).await?;
    // A key exists before its owner begins the term that the history records.
    let needed = COUNT as usize / 2 + COUNT as usize / 3;
    eventually(LONG, "every move is recorded", async || {
        let moves = moves(&recorder.history().ok()?);
        (moves.len() >= needed).then_some(())
    })
    .await?;
    let (history, report) = judged(&recorder, TTL)?;
    let moves = moves(&history);
    assert_eq!(moves.len(), needed, "no more than needed");
    let longest = moves.iter().max().expect("some moved");
    assert!(
        *longest <= grace(TTL) + seconds(1),
        "a move took {longest:?}"
    );
    assert!(
        moves.iter().any(|took| *took >= grace(TTL)),
        "some work was waited for"
    );
    report.require(COUNT as usize + moves.len(), 0);
    let began = Instant::now();
    b.stop().await?;
    assert!(
        began.elapsed() < grace(TTL),
        "work that obeys is not waited for"
    );
    c.stop().await?;
    a.stop().await?;
    Ok(())
}

#[tokio::test]
async fn partitions_come_back_when_etcd_does() -> Result {
    const TTL: Duration = seconds(3);
    let mut etcd = Etcd::start().await?;
    let recorder = Recorder::boottime();
    let a = Member::start("a", &etcd.endpoint(), &recorder, TTL, true).await?;
    let b = Member::start("b", &etcd.endpoint(), &recorder, TTL, true).await?;
    a.even(2, LONG).await?;
    recorder.record(
        "",
        "",
        What::Fault {
            name: "etcd is down".to_owned(),
        },
    );
    etcd.kill();
    let down = recorder.now();
    eventually(LONG, "nobody acts", async || {
        let valid = a
            .owned_valid(recorder.now().saturating_sub(millis(200)))
            .ok()?;
        (valid == 0).then_some(())
    })
    .await?;
    assert!(recorder.now().saturating_sub(down) <= TTL + seconds(2));
    etcd.restart().await?;
    recorder.record(
        "",
        "",
        What::Healed {
            name: "etcd is down".to_owned(),
        },
    );
    a.even(2, LONG).await?;
    let back = recorder.now();
    for member in [&a, &b] {
        eventually(LONG, format!("{} acts again", member.name), async || {
            (member.owned_valid(back).ok()? == COUNT as usize / 2).then_some(())
        })
        .await?;
    }
    a.stop().await?;
    b.stop().await?;
    judged(&recorder, TTL)?.1.require(COUNT as usize * 2, 1);
    Ok(())
}

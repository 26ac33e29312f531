//! Tests the age of an observer's view, while etcd answers and while it does not.

use std::time::{Duration, Instant};

use crate::common::{Result, SOON, Store, in_memory, join_election, options, session, short, soon};
use eldest::{Observer, Roster, Session};
use eldest_testing::{Etcd, eventually};

/// The TTL of [`short`].
const TTL: Duration = Duration::from_secs(3);

async fn next(observer: &mut Observer) -> Result<Roster> {
    let item = soon("a change", observer.next()).await;
    Ok(item.ok_or("the stream ended")??)
}

fn age(roster: &Roster) -> Duration {
    roster.as_of().expect("it was read from etcd").age()
}

#[tokio::test(start_paused = true)]
async fn observer_view_ages_while_etcd_is_silent_and_is_fresh_afterwards() -> Result {
    let etcd = in_memory();
    let dashboard = etcd.session(short("dashboard")).await?;
    let mut observer = dashboard.election("e")?.observe().await?;
    let roster = next(&mut observer).await?;
    let fixed = roster.as_of().expect("it was read").since_boot();
    assert!(observer.age() <= Some(age(&roster)));
    for _ in 0..2 {
        etcd.pause();
        eventually(SOON, "it is older than two TTLs", async || {
            (observer.age() > Some(2 * TTL)).then_some(())
        })
        .await?;
        etcd.resume();
        eventually(SOON, "it is young", async || {
            (observer.age()? < TTL / 2).then_some(())
        })
        .await?;
    }
    let still = roster.as_of().expect("it was read").since_boot();
    assert_eq!(fixed, still, "what was handed out keeps its time");
    // Two TTLs for each pause, less the age that counts as young between the two.
    assert!(age(&roster) > 3 * TTL);
    dashboard.close().await?;
    let closed = observer.age().expect("it was confirmed");
    Ok(eventually(SOON, "nothing is confirmed any more", async || {
        (observer.age()? > closed + TTL / 2).then_some(())
    })
    .await?)
}

#[tokio::test(start_paused = true)]
async fn quiet_elections_newest_roster_is_returned_with_its_freshness() -> Result {
    let etcd = in_memory();
    let dashboard = etcd.session(short("dashboard")).await?;
    let election = dashboard.election("e")?;
    let mut early = election.observe().await?;
    let first = next(&mut early).await?;
    eventually(SOON, "some probes are answered", async || {
        (age(&first) > TTL).then_some(())
    })
    .await?;
    let mut late = election.observe().await?;
    let second = next(&mut late).await?;
    assert_eq!(first, second, "nothing happened");
    assert!(age(&second) < TTL * 2 / 3, "{:?}", age(&second));
    assert!(age(&first) > TTL);
    Ok(())
}

#[tokio::test]
async fn observer_that_has_seen_nothing_has_no_age() -> Result {
    let dashboard = Session::connect_lazy(["http://127.0.0.1:1"], options("dashboard"))?;
    let observer = dashboard.election("e")?.observe().await?;
    tokio::task::yield_now().await;
    assert_eq!(observer.age(), None);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn roster_is_as_old_as_its_read() -> Result {
    let etcd = in_memory();
    let (_a, election, _candidate) = join_election(&etcd, "a").await?;
    let dashboard = session(&etcd, "dashboard").await?;
    let begun = tokio::time::Instant::now();
    let roster = election.roster().await?;
    let overview = dashboard.overview("e").await?;
    let partitions = dashboard.partitions("p", 4)?;
    let map = partitions.map().await?;
    let ages = [
        roster.as_of(),
        overview.queues()[0].roster().as_of(),
        map.as_of(),
    ];
    for as_of in ages {
        let age = as_of.expect("it was read").age();
        assert!(age <= begun.elapsed(), "{age:?}");
    }
    let mut changes = partitions.observe().await?;
    let seen = soon("a state", changes.next()).await.ok_or("it ended")??;
    assert!(seen.as_of().is_some() && changes.age().is_some());
    Ok(())
}

#[tokio::test]
async fn hundred_elections_need_no_more_probes_than_one() -> Result {
    let etcd = Etcd::start().await?;
    let dashboard = etcd.session(short("dashboard")).await?;
    let mut observers = Vec::new();
    for number in 0..100 {
        let mut observer = dashboard.election(format!("e{number}"))?.observe().await?;
        next(&mut observer).await?;
        observers.push(observer);
    }
    let reads = r#"grpc_server_started_total{grpc_method="Range",grpc_type="unary"}"#;
    let (begun, before) = (Instant::now(), etcd.metric(reads).await);
    let first = observers[0].age();
    eventually(SOON, "a TTL passes", async || {
        let oldest = observers.iter().map(Observer::age).max()??;
        assert!(oldest < TTL, "{oldest:?}");
        (begun.elapsed() > TTL).then_some(())
    })
    .await?;
    assert!(first.is_some());
    let probes = etcd.metric(reads).await - before;
    assert!(
        (1.0..=5.0).contains(&probes),
        "{probes} within three thirds"
    );
    Ok(())
}

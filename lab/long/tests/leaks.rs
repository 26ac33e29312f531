//! Tests that elections, locks, semaphores and shared partitions leave nothing behind. This test is a separate process,
//! because it counts the threads and files of its process.
#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods)] // tests run in real time

mod resources;

use std::path::Path;
use std::time::Duration;

use eldest::guard::{Guard, GuardState};
use eldest::internal::agent;
use eldest::{BoxError, CancellationToken, Challenges, Session, SessionOptions};
use eldest_testing::history::{Recorder, Resources, Rules, What, check};
use eldest_testing::{Etcd, eventually};
use etcd_client::Client;
use resources::{idle, in_use, settled};

type Result<T = ()> = std::result::Result<T, BoxError>;

const PATIENCE: Duration = Duration::from_secs(20);
/// A long TTL, so that a lease that is gone was revoked and has not expired.
const TTL: Duration = Duration::from_secs(60);

async fn session(etcd: &Etcd, name: &str) -> Result<Session> {
    let options = SessionOptions::new(name).ttl(TTL);
    Ok(Session::connect([etcd.endpoint()], options).await?)
}

/// Runs a candidacy that ends in one of several ways.
async fn cycle(session: &Session, way: usize) -> Result {
    let name = format!("e{}", way % 8);
    if way % 5 == 4 {
        return share(session, &name, way).await;
    }
    if way % 9 > 5 {
        return hold(session, &name, way).await;
    }
    let election = session.election(name)?;
    match way % 7 {
        way @ 0..3 => {
            let mut candidate = election.campaign().await?;
            let leadership = candidate.elected().await?;
            if way == 1 {
                return Ok(leadership.resign().await?);
            }
            if way == 2 {
                drop(candidate);
                return Ok(());
            }
            let lost = leadership.lost();
            leadership.spawn(async move { lost.cancelled().await })?;
        }
        3 => drop(election.campaign().await?),
        4 => {
            // Dropped as soon as it was requested, or a little later.
            let pause = Duration::from_micros(300 * (way as u64 % 10));
            let campaign = tokio::time::timeout(pause, election.campaign());
            drop(campaign.await);
        }
        5 => runs_twice(&election).await?,
        _ => {
            let shutdown = CancellationToken::new();
            let work = |leadership: eldest::Leadership| {
                shutdown.cancel();
                async move {
                    leadership.lost().cancelled().await;
                    Ok::<_, eldest::BoxError>(())
                }
            };
            election.run(shutdown.clone(), work).await?;
        }
    }
    Ok(())
}

/// Follows and leads by a runner, steps down from its first term, and ends in its second.
async fn runs_twice(election: &eldest::Election) -> Result {
    let shutdown = CancellationToken::new();
    let runner = election
        .runner()
        .follow(async |following: eldest::Following| {
            following.stopped().cancelled().await;
            Ok::<_, eldest::BoxError>(())
        });
    let runner = runner
        .stall_timeout(TTL)
        .health_check(TTL / 2, TTL, async || Ok::<_, eldest::BoxError>(()));
    let stop = shutdown.clone();
    let mut terms = 0;
    let work = move |leadership: eldest::Leadership| {
        terms += 1;
        let stop = (terms == 2).then(|| stop.clone());
        async move {
            match stop {
                Some(stop) => stop.cancel(),
                None => leadership.step_down().await?,
            }
            leadership.lost().cancelled().await;
            Ok::<_, eldest::BoxError>(())
        }
    };
    runner.run(shutdown, work).await?;
    Ok(())
}

/// Holds or awaits a lock or a permit, and ends that in one of several ways.
async fn hold(session: &Session, name: &str, way: usize) -> Result {
    let (lock, semaphore) = (session.lock(name)?, session.semaphore(name, 2)?);
    let (guard, permit) = (lock.acquire().await?, semaphore.acquire().await?);
    let pause = Duration::from_micros(300 * (way as u64 % 10));
    assert!(lock.acquire_timeout(pause).await?.is_none());
    assert!(lock.try_acquire().await?.is_none());
    let second = semaphore.acquire_timeout(pause).await?;
    if way.is_multiple_of(2) {
        guard.release().await?;
        permit.release().await?;
    }
    drop(second);
    Ok(())
}

/// Runs a member of shared partitions that leaves in one of several ways.
async fn share(session: &Session, name: &str, way: usize) -> Result {
    let partitions = session.partitions(name, 6)?;
    if way.is_multiple_of(2) {
        let shutdown = CancellationToken::new();
        let stop = shutdown.clone();
        let work = move |partition: eldest::Partition| {
            if partition.number() == 5 {
                stop.cancel();
            }
            async move {
                partition.lost().cancelled().await;
                Ok::<_, eldest::BoxError>(())
            }
        };
        partitions.run(shutdown, work).await?;
        return Ok(());
    }
    // Dropped as soon as it was requested, or a little later.
    let pause = Duration::from_micros(300 * (way as u64 % 10));
    drop(tokio::time::timeout(pause, partitions.join()).await);
    let again = eventually(PATIENCE, "it may join again", async || {
        partitions.join().await.ok()
    });
    let mut member = again.await?;
    let (one, two) = (member.owned().await?, member.owned().await?);
    let lost = two.lost();
    two.spawn(async move { lost.cancelled().await })?;
    drop(one);
    if way.is_multiple_of(3) {
        drop((member, two));
    } else {
        drop(two);
        member.leave().await?;
    }
    Ok(())
}

/// Starts the next cycle in an election only when the last candidate has left it.
async fn cycles(client: &Client, session: &Session, ways: std::ops::Range<usize>) -> Result {
    let mut client = client.clone();
    for way in ways {
        cycle(session, way).await?;
        for prefix in ["eldest/", "eldest/~semaphore/", "eldest/~partitions/"] {
            let prefix = format!("{prefix}e{}/", way % 8);
            eventually(
                PATIENCE,
                format!("cycle {way} leaves nothing"),
                async || {
                    let options = etcd_client::GetOptions::new().with_prefix();
                    let found = client.get(&*prefix, Some(options.with_count_only())).await;
                    (found.ok()?.count() == 0).then_some(())
                },
            )
            .await?;
        }
    }
    Ok(())
}

/// Runs many sessions that end in different ways, with an owners each.
async fn many_sessions(etcd: &Etcd, client: &Client) -> Result {
    for way in 0..40 {
        let short = session(etcd, "short").await?;
        let observer = short.election("e8")?.observe().await?;
        let owners = short.partitions("e8", 6)?.observe().await?;
        cycles(client, &short, way..way + 2).await?;
        match way % 3 {
            0 => short.close().await?,
            1 => drop((short, observer, owners)),
            _ => {
                // With a candidate that still waits, and a leadership.
                let mut candidate = short.election("e9")?.campaign().await?;
                let leadership = candidate.elected().await?;
                drop(short);
                drop((observer, owners, candidate, leadership));
            }
        }
        eventually(
            PATIENCE,
            format!("session {way} leaves nothing"),
            async || {
                let now = in_use(etcd, client).await.ok()?;
                (now.leases == 0 && now.keys == 0).then_some(())
            },
        )
        .await?;
    }
    Ok(())
}

/// Runs a session that an agent guards, from its connection to its end.
async fn guarded(etcd: &Etcd, client: &Client, socket: &Path) -> Result {
    let options = SessionOptions::new("guarded").ttl(TTL);
    let options = options.guard(Guard::agent_at(socket));
    let session = Session::connect([etcd.endpoint()], options).await?;
    // A session has no lease before it campaigns.
    let mut candidate = session.election("guarded")?.campaign().await?;
    let leadership = candidate.elected().await?;
    let mut state = session.guard_state();
    let guarded = state.wait_for(GuardState::is_guarded);
    tokio::time::timeout(PATIENCE, guarded).await??;
    drop((state, candidate, leadership));
    session.close().await?;
    eventually(PATIENCE, "a guarded session leaves nothing", async || {
        let now = in_use(etcd, client).await.ok()?;
        let (listed, _) = agent::status(socket).await.ok()?;
        (now.leases == 0 && now.keys == 0 && listed.is_empty()).then_some(())
    })
    .await?;
    Ok(())
}

/// Runs two sessions that exchange signs of life, from their connection to their end.
async fn exchange(etcd: &Etcd, client: &Client) -> Result {
    let connect = async |name: &str| {
        let challenges = Challenges::steady().listen((std::net::Ipv4Addr::LOCALHOST, 0));
        let options = SessionOptions::new(name).ttl(TTL).challenges(challenges);
        Session::connect([etcd.endpoint()], options).await
    };
    let (first, second) = (connect("first").await?, connect("second").await?);
    let mut candidate = first.election("exchange")?.campaign().await?;
    let leadership = candidate.elected().await?;
    let waiting = second.election("exchange")?.campaign().await?;
    leadership.resign().await?;
    drop((candidate, waiting));
    first.close().await?;
    drop(second);
    eventually(PATIENCE, "two sessions leave nothing", async || {
        let now = in_use(etcd, client).await.ok()?;
        (now.leases == 0 && now.keys == 0).then_some(())
    })
    .await?;
    Ok(())
}

/// Checks that sessions which exchange signs of life hold no more after the last than after the first ones.
async fn exchanges(etcd: &Etcd, client: &Client) -> Result {
    for _ in 0..3 {
        exchange(etcd, client).await?;
    }
    let before = in_use(etcd, client).await?;
    for _ in 0..20 {
        exchange(etcd, client).await?;
    }
    hold_no_more(before, settled(etcd, client, before).await?);
    Ok(())
}

fn hold_no_more(before: Resources, after: Resources) {
    let counts = |held: &Resources| [held.watchers, held.tasks, held.threads, held.fds];
    let more = counts(&after).into_iter().zip(counts(&before));
    assert!(
        more.into_iter().all(|(after, before)| after <= before),
        "{after:?} after {before:?}"
    );
}

/// Checks that an agent in this process, which guards one session after the other, holds no more after the last than
/// after the first ones.
async fn guarded_sessions(etcd: &Etcd, client: &Client) -> Result {
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("agent.sock");
    let options = SessionOptions::new("agent");
    let agent = agent::listen(&[etcd.endpoint()], options, &*socket)?;
    let running = tokio::spawn(async move { agent.run().await });
    for _ in 0..3 {
        guarded(etcd, client, &socket).await?;
    }
    let before = in_use(etcd, client).await?;
    for _ in 0..30 {
        guarded(etcd, client, &socket).await?;
    }
    hold_no_more(before, settled(etcd, client, before).await?);
    running.abort();
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_candidacies_leave_nothing_behind() -> Result {
    let etcd = Etcd::start().await?;
    // One client for all counts, so that no count includes another's connection.
    let mut client = etcd.client().await;
    client.status().await?;
    let own = in_use(&etcd, &client).await?;
    let recorder = Recorder::boottime();
    // The first session starts what a process has only once: the watchdog's thread, and the runtime's own.
    session(&etcd, "first").await?.close().await?;
    cycles(&client, &session(&etcd, "second").await?, 0..12).await?;
    let baseline = settled(&etcd, &client, idle(&own)).await?;
    recorder.record("", "", What::Baseline(baseline));

    // One session for many candidacies: it holds no more after the last than after the first.
    let long = session(&etcd, "long").await?;
    cycles(&client, &long, 0..12).await?;
    // A session that has led watches orders and evacuations until it closes.
    let open = Resources {
        leases: 1,
        watchers: 1,
        tasks: u64::MAX,
        ..idle(&own)
    };
    let before = settled(&etcd, &client, open).await?;
    assert_eq!(
        (before.leases, before.keys, before.watchers),
        (1, 0, 1),
        "{before:?}"
    );
    recorder.record("long", "", What::Baseline(before));
    cycles(&client, &long, 12..120).await?;
    recorder.record(
        "long",
        "",
        What::Final(settled(&etcd, &client, before).await?),
    );
    long.close().await?;
    drop(long);

    many_sessions(&etcd, &client).await?;
    let end = settled(&etcd, &client, baseline).await?;
    recorder.record("", "", What::Final(end));
    check(&recorder.history()?, &Rules::new(TTL)).assert_ok();
    assert_eq!((end.leases, end.keys, end.watchers), (0, 0, 0), "{end:?}");
    exchanges(&etcd, &client).await?;
    guarded_sessions(&etcd, &client).await
}

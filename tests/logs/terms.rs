//! Tests the log lines of candidacies and terms, from the join to the end of the work.

use std::time::Duration;

use eldest::internal;
use eldest::{CancellationToken, Evacuate, LostReason, Session, StepDown};
use eldest_testing::{Etcd, eventually};
use tokio::time::timeout;
use tracing::Level;

use super::{ELECTION, LONG, Result, SESSION, capture, is, leader, options, rank};

#[tokio::test]
async fn each_step_of_a_candidacy_is_logged() -> Result {
    let logs = capture();
    let etcd = Etcd::start().await?;
    let mut candidates = Vec::new();
    let mut sessions = Vec::new();
    for name in ["a", "b", "c"] {
        let session = Session::connect([etcd.endpoint()], options(name)).await?;
        candidates.push(session.election("jobs")?.campaign().await?);
        sessions.push(session);
    }
    let lease = logs.one(SESSION, "lease granted", &[("identity", "a")]);
    is(&lease, Level::INFO, &[("ttl", "5s")]);
    i64::from_str_radix(lease.field("lease"), 16)?;

    let first = timeout(LONG, candidates[0].elected()).await??;
    let token = first.fencing_token().to_string();
    let key = String::from_utf8_lossy(first.key()).into_owned();
    let of_a = [("identity", "a"), ("election", "jobs")];
    let joined = logs.one(ELECTION, "joined", &of_a);
    assert!(joined.says(&[
        ("key", &key),
        ("create_revision", &token),
        ("again", "false")
    ]));
    assert!(key.ends_with(lease.field("lease")), "{key}: {lease:?}");
    let elected = logs.one(ELECTION, "elected", &of_a);
    is(&elected, Level::INFO, &[("token", &token)]);

    rank(&candidates[2], 3).await?;
    first.resign().await?;
    rank(&candidates[2], 2).await?;
    let second = timeout(LONG, candidates[1].elected()).await??;
    let ended = logs.one(ELECTION, "term ended", &of_a);
    assert_eq!(ended.level, Level::INFO, "it was asked for");
    assert!(ended.says(&[("token", &token), ("reason", "resigned")]));
    let ended = logs.one(ELECTION, "candidacy ended", &of_a);
    assert_eq!(ended.field("reason"), "resigned");
    let ranks: Vec<_> = logs
        .of(ELECTION, "rank changed", &[("identity", "c")])
        .iter()
        .map(|line| {
            (
                line.field("rank").to_owned(),
                line.field("ahead").to_owned(),
            )
        })
        .collect();
    let expected = [("3", "2"), ("2", "1")].map(|(r, a)| (r.to_owned(), a.to_owned()));
    assert_eq!(ranks, expected);

    candidates.pop().expect("c").leave().await?;
    let left = logs.one(ELECTION, "candidacy ended", &[("identity", "c")]);
    assert_eq!(left.field("reason"), "left");
    drop(second);
    sessions[1].close().await?;
    logs.one(SESSION, "session closed", &[("identity", "b")]);
    Ok(())
}

/// A single candidate leads.
#[tokio::test]
async fn log_lines_of_work_are_in_the_span_of_its_term() -> Result {
    let logs = capture();
    let etcd = Etcd::start().await?;
    let session = Session::connect([etcd.endpoint()], options("a")).await?;
    let work = async |leadership: eldest::Leadership| {
        tracing::info!(target: "work", token = leadership.fencing_token(), "working");
        Ok::<_, eldest::BoxError>(())
    };
    let run = session.election("jobs")?;
    timeout(LONG, run.run(CancellationToken::new(), work)).await??;
    let working = logs.one("work", "working", &[]);
    assert_eq!(working.within, ["term"]);
    let span = logs.one(ELECTION, "term", &[("election", "jobs")]);
    assert_eq!(span.field("token"), working.field("token"));
    Ok(())
}

#[tokio::test]
async fn short_terms_of_a_lock_are_details_and_their_loss_a_warning() -> Result {
    let logs = capture();
    let etcd = Etcd::start().await?;
    let session = Session::connect([etcd.endpoint()], options("a")).await?;
    let lock = session.lock("l")?;
    timeout(LONG, lock.acquire()).await??.release().await?;
    assert!(lock.try_acquire().await?.is_some());
    for (message, times) in [("joined", 2), ("elected", 2), ("term ended", 2)] {
        let lines = eventually(LONG, message, async || {
            let lines = logs.of(ELECTION, message, &[("election", "l")]);
            (lines.len() == times).then_some(lines)
        })
        .await?;
        assert!(lines.iter().all(|line| line.level == Level::DEBUG));
    }
    let guard = timeout(LONG, lock.acquire()).await??;
    etcd.client().await.delete(guard.key(), None).await?;
    timeout(LONG, guard.lost().cancelled()).await?;
    let ended = logs.one(ELECTION, "term ended", &[("reason", "key_deleted")]);
    assert_eq!(ended.level, Level::WARN);

    let permits = session.semaphore("s", 2)?;
    let _permit = timeout(LONG, permits.acquire()).await??;
    let other = Session::connect([etcd.endpoint()], options("b")).await?;
    let semaphore = other.semaphore("s", 3)?;
    assert!(timeout(LONG, semaphore.acquire()).await?.is_err());
    let failed = logs.one(ELECTION, "join failed", &[("identity", "b")]);
    is(&failed, Level::WARN, &[("class", "Mismatch")]);
    let ended = logs.one(ELECTION, "candidacy ended", &[("identity", "b")]);
    is(&ended, Level::DEBUG, &[("reason", "refused")]);
    Ok(())
}

#[tokio::test]
async fn ill_health_a_stall_stepping_down_and_late_work_are_logged() -> Result {
    let logs = capture();
    let etcd = Etcd::start().await?;
    let options = options("a").grace(Duration::from_millis(300));
    let session = Session::connect([etcd.endpoint()], options).await?;
    let (shutdown, mut checks, mut followed, mut terms) = (CancellationToken::new(), 0, 0, 0);
    let runner = session.election("jobs")?.runner();
    let runner = runner.stall_timeout(Duration::from_millis(1500));
    let often = Duration::from_millis(20);
    let runner = runner.health_check(often, LONG, || {
        checks += 1;
        std::future::ready(if checks < 3 {
            Err::<(), eldest::BoxError>("no disk".into())
        } else {
            Ok(())
        })
    });
    let runner = runner.follow(|following| {
        followed += 1;
        let fails = followed == 2;
        async move {
            following.stopped().cancelled().await;
            if fails {
                return Err::<(), eldest::BoxError>("too late".into());
            }
            std::future::pending().await
        }
    });
    let run = runner.run(shutdown.clone(), |leadership| {
        terms += 1;
        let (term, stop) = (terms, shutdown.clone());
        async move {
            match term {
                1 => leadership.lost().cancelled().await,
                2 => leadership.step_down().await?,
                _ => stop.cancel(),
            }
            Ok::<_, eldest::BoxError>(())
        }
    });
    timeout(LONG, run).await??;
    let of_jobs = [("election", "jobs")];
    let ill = logs.one(ELECTION, "unhealthy", &of_jobs);
    is(&ill, Level::WARN, &[("why", "no disk")]);
    let well = logs.one(ELECTION, "healthy again", &of_jobs);
    assert_eq!(well.level, Level::WARN, "the level of its beginning");
    let stalled = logs.one(ELECTION, "term ended", &[("reason", "stalled")]);
    assert_eq!(stalled.level, Level::WARN);
    let stepped_down = logs.one(ELECTION, "term ended", &[("reason", "stepped_down")]);
    assert_eq!(stepped_down.level, Level::INFO, "it was asked for");
    let late = logs.one(
        ELECTION,
        "follower's work failed after it was asked to stop",
        &of_jobs,
    );
    assert_eq!(late.field("error"), "too late");
    let dropped = "follower's work dropped after the grace period";
    assert!(!logs.of(ELECTION, dropped, &of_jobs).is_empty());
    Ok(())
}

/// The command's own work only awaits the end of the term, so its end is not logged for operators.
#[tokio::test]
async fn interrupted_work_is_logged_unless_it_has_nothing_to_finish() -> Result {
    let logs = capture();
    let etcd = Etcd::start().await?;
    let options = options("a").grace(Duration::from_millis(100));
    let session = Session::connect([etcd.endpoint()], options).await?;
    let dropped = |name: &str| {
        logs.of(
            ELECTION,
            "work dropped at the frozen deadline",
            &[("election", name)],
        )
    };
    let failed = |name: &str| {
        logs.of(
            ELECTION,
            "work failed after its term ended",
            &[("election", name)],
        )
    };
    for (name, has_nothing_to_finish) in [("works", false), ("waits", true)] {
        let mut terms = 0;
        let shutdown = CancellationToken::new();
        let election = session.election(name)?;
        let work = async |leadership: eldest::Leadership| {
            terms += 1;
            if has_nothing_to_finish {
                internal::interruptible(&leadership.term());
            }
            let term = leadership.term();
            let key = term.key();
            match terms {
                1 => {
                    etcd.client().await.delete(key, None).await?;
                    std::future::pending::<()>().await;
                }
                2 => {
                    etcd.client().await.delete(key, None).await?;
                    term.lost().cancelled().await;
                    return Err("too late".into());
                }
                _ => shutdown.cancel(),
            }
            Ok::<_, eldest::BoxError>(())
        };
        timeout(LONG, election.run_mut(shutdown.clone(), work)).await??;
        let count = usize::from(!has_nothing_to_finish);
        assert_eq!((dropped(name).len(), failed(name).len()), (count, count));
    }
    Ok(())
}

#[tokio::test]
async fn failed_work_is_logged_with_its_causes_without_an_awaited_handle() -> Result {
    let logs = capture();
    let etcd = Etcd::start().await?;
    let session = Session::connect([etcd.endpoint()], options("a")).await?;
    let work = async |_leadership: eldest::Leadership| {
        let cause = std::io::Error::other("disk full");
        Err::<(), _>(std::io::Error::other(Wrapped(cause)))
    };
    let election = session.election("jobs")?;
    drop(election.spawn(CancellationToken::new(), work));
    let of_jobs = [("election", "jobs")];
    let failed = eventually(LONG, "the warning", async || {
        logs.of(ELECTION, "work failed", &of_jobs).pop()
    })
    .await?;
    assert_eq!(failed.level, Level::WARN);
    assert!(failed.field("error").ends_with("cannot write: disk full"));
    assert_eq!(failed.field("on_error"), "Leave");
    let ended = eventually(LONG, "the end", async || {
        logs.of(ELECTION, "candidacy ended", &of_jobs).pop()
    })
    .await?;
    assert_eq!(ended.field("reason"), "work_failed");
    let ended = logs.one(ELECTION, "term ended", &[("reason", "work_failed")]);
    assert_eq!(ended.level, Level::WARN);
    Ok(())
}

/// An error with a cause.
#[derive(Debug)]
struct Wrapped(std::io::Error);

impl std::fmt::Display for Wrapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cannot write")
    }
}

impl std::error::Error for Wrapped {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

#[test]
fn a_runtime_that_went_down_is_logged_as_the_reason() -> Result {
    let logs = capture();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build()?;
    let (_etcd, (session, candidate, leadership)) = runtime.block_on(async {
        let etcd = Etcd::start().await?;
        let leader = leader(&etcd).await?;
        Result::Ok((etcd, leader))
    })?;
    drop(runtime);
    assert_eq!(leadership.lost_reason(), Some(LostReason::RuntimeGone));
    let ended = logs.one(ELECTION, "term ended", &[("identity", "a")]);
    is(&ended, Level::WARN, &[("reason", "runtime_gone")]);
    drop((session, candidate, leadership));
    Ok(())
}

#[tokio::test]
async fn unawaited_victory_of_a_candidate_is_warned_of_once() -> Result {
    const UNCLAIMED: &str = "elected, but not awaited: this node leads and does no work";
    let logs = capture();
    let etcd = Etcd::start().await?;
    let session = Session::connect([etcd.endpoint()], options("a")).await?;
    let mut awaited = session.election("awaited")?.campaign().await?;
    let leadership = timeout(LONG, awaited.elected()).await??;
    let mut candidate = session.election("jobs")?.campaign().await?;
    let warned = eventually(LONG, "a warning", async || {
        logs.of(ELECTION, UNCLAIMED, &[]).pop()
    })
    .await?;
    assert_eq!(warned.level, Level::WARN);
    let late = timeout(LONG, candidate.elected()).await??;
    assert!(warned.says(&[("election", "jobs"), ("identity", "a")]));
    assert_eq!(warned.field("token"), late.fencing_token().to_string());
    assert!(late.is_valid() && leadership.is_valid(), "it led all along");
    logs.one(ELECTION, UNCLAIMED, &[]);
    Ok(())
}

#[tokio::test]
async fn each_affected_session_logs_an_evacuation_and_its_end() -> Result {
    let logs = capture();
    let etcd = Etcd::start().await?;
    let mut candidates = Vec::new();
    for name in ["a", "b"] {
        let options = options(name).data_center("dc1");
        let endpoint = eldest::Endpoint::new(etcd.endpoint()).data_center("dc1");
        let session = Session::connect([endpoint], options).await?;
        candidates.push((session.election("jobs")?.campaign().await?, session));
    }
    let ops = Session::connect([etcd.endpoint()], options("ops")).await?;
    let wait = async |message: &'static str, count: usize| {
        eventually(LONG, message, async || {
            (logs.of(SESSION, message, &[]).len() == count).then_some(())
        })
        .await
    };
    let (begun, over) = ("data centre evacuated", "data centre no longer evacuated");
    ops.evacuate(Evacuate::new("dc2").reason("new switches"))
        .await?;
    wait(begun, 2).await?;
    let dc2 = [("identity", "a"), ("data_center", "dc2")];
    let line = logs.one(SESSION, begun, &dc2);
    assert_eq!(line.level, Level::INFO);
    assert!(line.says(&[("by", "ops"), ("reason", "new switches")]));
    ops.evacuate(Evacuate::new("dc2").reason("old ones"))
        .await?;
    wait(begun, 4).await?;
    ops.evacuate("dc1").await?;
    wait(begun, 6).await?;
    assert_eq!(logs.of(SESSION, over, &[]).len(), 0);
    ops.lift("dc2").await?;
    wait(over, 2).await?;
    assert_eq!(logs.one(SESSION, over, &dc2).level, Level::INFO);
    Ok(())
}

#[tokio::test]
async fn leader_ordered_to_step_down_logs_the_author_of_the_order() -> Result {
    let logs = capture();
    let etcd = Etcd::start().await?;
    let a = Session::connect([etcd.endpoint()], options("a")).await?;
    let b = Session::connect([etcd.endpoint()], options("b")).await?;
    let mut first = a.election("jobs")?.campaign().await?;
    let leadership = timeout(LONG, first.elected()).await??;
    let _second = b.election("jobs")?.campaign().await?;
    let jobs = b.election("jobs")?;
    let (ordered, ()) = tokio::join!(jobs.order_step_down(StepDown::new().by("ops")), async {
        leadership.lost().cancelled().await;
        drop(leadership);
    });
    ordered?;
    let of_a = [("identity", "a"), ("election", "jobs")];
    let line = logs.one(ELECTION, "ordered to step down", &of_a);
    is(&line, Level::INFO, &[("by", "ops")]);
    let ended = logs.one(ELECTION, "term ended", &of_a);
    is(&ended, Level::INFO, &[("reason", "ordered")]);
    assert!(
        logs.of(ELECTION, "ordered to step down", &[("identity", "b")])
            .is_empty()
    );
    Ok(())
}

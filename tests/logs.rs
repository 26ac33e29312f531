//! Every transition is logged: target, level, message and fields as docs/logging.md says.
#![allow(clippy::disallowed_methods)] // tests run in real time

mod capture;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use capture::Logs;
use eldest::{CancellationToken, Candidate, LostReason, Session, SessionOptions, Status};
use eldest_testing::{Etcd, Proxy, eventually};
use etcd_client::{Client, DeleteOptions};
use tokio::time::timeout;
use tracing::Level;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const SESSION: &str = "eldest::session";
const ELECTION: &str = "eldest::election";
const ETCD: &str = "eldest::etcd";

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(30);

fn options(identity: &str) -> SessionOptions {
    SessionOptions::new(identity).ttl(Duration::from_secs(5))
}

/// The rows of the table: target, level, message and fields.
fn documented() -> BTreeSet<(String, String, String, Vec<String>)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/logging.md");
    let document = std::fs::read_to_string(path).expect("docs/logging.md beside tests/");
    let plain = |cell: &str| cell.trim().trim_matches('`').to_owned();
    document
        .lines()
        .filter(|line| line.starts_with("| `eldest::"))
        .map(|line| {
            let cells: Vec<&str> = line.split('|').collect();
            let fields = cells[4].split_whitespace().map(plain).collect();
            (plain(cells[1]), plain(cells[2]), plain(cells[3]), fields)
        })
        .collect()
}

/// What was logged is in the table, field by field.
fn all_documented(logs: &Logs) {
    let rows = documented();
    for kind in logs.kinds() {
        assert!(rows.contains(&kind), "not in docs/logging.md: {kind:?}");
    }
}

/// Target and message of every event that the library's source can log.
fn in_the_source(folder: &Path, found: &mut BTreeSet<(String, String)>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            in_the_source(&path, found);
        } else {
            let text = std::fs::read_to_string(&path).expect("text");
            // The one macro that chooses the level.
            let text = text.replace(" tell!(", " tracing::tell!(");
            for call in text.split("tracing::").skip(1) {
                let call = call.split_once(");").map_or(call, |(call, _)| call);
                let literals: Vec<&str> = call.split('"').skip(1).step_by(2).collect();
                if let [target, .., message] = literals[..]
                    && target.starts_with("eldest::")
                {
                    found.insert((target.to_owned(), message.to_owned()));
                }
            }
        }
    }
}

#[test]
fn the_table_names_exactly_what_the_source_can_log() {
    let mut source = BTreeSet::new();
    in_the_source(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut source,
    );
    let rows = documented().into_iter();
    let table = rows.map(|(target, _, message, _)| (target, message));
    assert_eq!(source, table.collect());
}

async fn rank(candidate: &Candidate, wanted: usize) -> Result {
    let mut status = candidate.status();
    let there = status.wait_for(|s| matches!(s, Status::Waiting { rank, .. } if *rank == wanted));
    timeout(LONG, there).await??;
    Ok(())
}

/// Whoever joined again leads again, alone as they are.
async fn elected_again(candidate: &mut Candidate) -> Result<eldest::Leadership> {
    Ok(timeout(LONG, candidate.elected()).await??)
}

#[tokio::test]
async fn a_life_in_an_election_is_told_step_by_step() -> Result {
    let (logs, _guard) = Logs::capture();
    let etcd = Etcd::start().await?;
    let mut candidates = Vec::new();
    let mut sessions = Vec::new();
    for name in ["a", "b", "c"] {
        let session = Session::connect([etcd.endpoint()], options(name)).await?;
        candidates.push(session.election("jobs")?.campaign().await?);
        sessions.push(session);
    }
    let lease = logs.one(SESSION, "lease granted", &[("identity", "a")]);
    assert_eq!((lease.level, lease.field("ttl")), (Level::INFO, "5s"));
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
    assert_eq!(
        (elected.level, elected.field("token")),
        (Level::INFO, &*token)
    );

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
    all_documented(&logs);
    Ok(())
}

/// A candidate alone, leading.
#[tokio::test]
async fn what_the_work_logs_lies_in_the_span_of_its_term() -> Result {
    let (logs, _guard) = Logs::capture();
    let etcd = Etcd::start().await?;
    let session = Session::connect([etcd.endpoint()], options("a")).await?;
    let work = async |leadership: eldest::Leadership| {
        tracing::info!(target: "work", token = leadership.fencing_token(), "working");
        Ok(())
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
async fn the_short_terms_of_a_lock_are_details_and_their_loss_is_a_warning() -> Result {
    let (logs, _guard) = Logs::capture();
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
    assert_eq!(
        (failed.level, failed.field("class")),
        (Level::WARN, "Mismatch")
    );
    let ended = logs.one(ELECTION, "candidacy ended", &[("identity", "b")]);
    assert_eq!(
        (ended.level, ended.field("reason")),
        (Level::DEBUG, "refused")
    );
    all_documented(&logs);
    Ok(())
}

async fn leader(etcd: &Etcd) -> Result<(Session, Candidate, eldest::Leadership)> {
    let session = Session::connect([etcd.endpoint()], options("a")).await?;
    let mut candidate = session.election("jobs")?.campaign().await?;
    let leadership = timeout(LONG, candidate.elected()).await??;
    Ok((session, candidate, leadership))
}

#[tokio::test]
async fn a_key_that_blocks_the_election_is_told_once() -> Result {
    let (logs, _guard) = Logs::capture();
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    client.put("eldest/jobs/stale", "nobody", None).await?;
    let session = Session::connect([etcd.endpoint()], options("a")).await?;
    let mut candidate = session.election("jobs")?.campaign().await?;
    let of_a = [("identity", "a"), ("election", "jobs")];
    let told = eventually(LONG, "it is told", async || {
        let lines = logs.of(ELECTION, "blocked by a key without a lease", &of_a);
        lines.into_iter().next()
    })
    .await?;
    assert_eq!(
        (told.level, told.field("key")),
        (Level::WARN, "eldest/jobs/stale")
    );
    client
        .put("eldest/jobs/stale", "still nobody", None)
        .await?;
    client.delete("eldest/jobs/stale", None).await?;
    drop(timeout(LONG, candidate.elected()).await??);
    logs.one(ELECTION, "blocked by a key without a lease", &of_a);
    all_documented(&logs);
    Ok(())
}

#[tokio::test]
async fn a_key_that_blocks_a_partition_is_told_once() -> Result {
    let (logs, _guard) = Logs::capture();
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let stale = "eldest/~partitions/jobs/2/o-1";
    client.put(stale, "nobody", None).await?;
    let session = Session::connect([etcd.endpoint()], options("a")).await?;
    let mut member = session.partitions("jobs", 2)?.join().await?;
    let _free = timeout(LONG, member.owned()).await??;
    let of_a = [("identity", "a"), ("election", "jobs"), ("key", stale)];
    eventually(LONG, "it is told", async || {
        let lines = logs.of(ELECTION, "blocked by a key without a lease", &of_a);
        lines.into_iter().next()
    })
    .await?;
    client.put(stale, "still nobody", None).await?;
    client.delete(stale, None).await?;
    let second = timeout(LONG, member.owned()).await??;
    assert_eq!(second.number(), 1);
    let told = logs.one(ELECTION, "blocked by a key without a lease", &of_a);
    assert_eq!(told.level, Level::WARN);
    all_documented(&logs);
    Ok(())
}

#[tokio::test]
async fn a_deleted_key_is_told_and_so_is_the_way_back() -> Result {
    let (logs, _guard) = Logs::capture();
    let etcd = Etcd::start().await?;
    let (_session, mut candidate, leadership) = leader(&etcd).await?;
    etcd.client().await.delete(leadership.key(), None).await?;
    timeout(LONG, leadership.lost().cancelled()).await?;
    let ended = logs.one(ELECTION, "term ended", &[("identity", "a")]);
    assert_eq!(
        (ended.level, ended.field("reason")),
        (Level::WARN, "key_deleted")
    );
    drop(leadership);
    let again = elected_again(&mut candidate).await?;
    let token = again.fencing_token().to_string();
    let joined = logs.one(ELECTION, "joined", &[("again", "true")]);
    assert_eq!(joined.field("create_revision"), token);
    logs.one(ELECTION, "elected", &[("token", &token)]);
    logs.one(SESSION, "lease granted", &[]);
    all_documented(&logs);
    Ok(())
}

#[tokio::test]
async fn a_revoked_lease_is_told_and_so_is_the_next_one() -> Result {
    let (logs, _guard) = Logs::capture();
    let etcd = Etcd::start().await?;
    let (_session, mut candidate, leadership) = leader(&etcd).await?;
    let granted = logs.one(SESSION, "lease granted", &[]);
    let lease = i64::from_str_radix(granted.field("lease"), 16)?;
    etcd.client().await.lease_revoke(lease).await?;
    timeout(LONG, leadership.lost().cancelled()).await?;
    let told = logs.one(ELECTION, "term ended", &[]);
    // Whichever is noticed first: the key's deletion or the renewal's answer.
    assert!(
        ["key_deleted", "lease_lost"].contains(&told.field("reason")),
        "{told:?}"
    );
    drop(leadership);
    let _again = elected_again(&mut candidate).await?;
    let lost = logs.one(SESSION, "lease lost", &[("identity", "a")]);
    assert_eq!(
        (lost.level, lost.field("reason")),
        (Level::WARN, "lease_lost")
    );
    let leases = logs.of(SESSION, "lease granted", &[]);
    assert_eq!(leases.len(), 2);
    assert_ne!(leases[0].field("lease"), leases[1].field("lease"));
    all_documented(&logs);
    Ok(())
}

/// A leader behind a proxy, and a client that goes past it.
async fn behind_a_proxy(
    etcd: &Etcd,
    options: SessionOptions,
) -> Result<(Proxy, Client, Candidate, eldest::Leadership)> {
    let proxy = Proxy::start(etcd.address()).await?;
    let session = Session::connect([proxy.endpoint()], options).await?;
    let mut candidate = session.election("jobs")?.campaign().await?;
    let leadership = timeout(LONG, candidate.elected()).await??;
    Ok((proxy, etcd.client().await, candidate, leadership))
}

#[tokio::test]
async fn failed_renewals_and_the_end_of_belief_are_told() -> Result {
    let (logs, _guard) = Logs::capture();
    let etcd = Etcd::start().await?;
    let (proxy, _, mut candidate, leadership) = behind_a_proxy(&etcd, options("a")).await?;
    proxy.hold();
    timeout(LONG, leadership.lost().cancelled()).await?;
    assert_eq!(leadership.lost_reason(), Some(LostReason::LeaseExpiring));
    eventually(LONG, "the term's end is told", async || {
        (!logs.of(ELECTION, "term ended", &[]).is_empty()).then_some(())
    })
    .await?;
    let ended = logs.one(ELECTION, "term ended", &[("reason", "lease_expiring")]);
    assert_eq!(ended.level, Level::WARN);
    let failed = logs.of(SESSION, "renewal failed", &[("class", "Retry")]);
    assert!(!failed.is_empty(), "{logs:?}");
    assert!(failed.iter().all(|line| line.level == Level::WARN));
    assert!(
        failed[0].field("why").contains(&proxy.endpoint()),
        "{failed:?}"
    );
    let lost = logs.of(SESSION, "lease lost", &[("reason", "lease_expiring")]);
    assert_eq!(lost.len(), 1);
    proxy.heal();
    drop(leadership);
    let _again = elected_again(&mut candidate).await?;
    all_documented(&logs);
    Ok(())
}

/// By the lines of warnings: 25 elections, whose requests all fail again and again.
#[tokio::test]
async fn an_outage_is_told_in_few_lines_that_name_the_elections() -> Result {
    let (logs, _guard) = Logs::capture();
    let etcd = Etcd::start().await?;
    let proxy = Proxy::start(etcd.address()).await?;
    let session = Session::connect([proxy.endpoint()], options("a")).await?;
    let mut candidates = Vec::new();
    for number in 0..25 {
        let name = format!("jobs-{number:02}");
        candidates.push(session.election(name)?.campaign().await?);
    }
    let mut leaders = Vec::new();
    for candidate in &mut candidates {
        leaders.push(elected_again(candidate).await?);
    }
    proxy.cut();
    timeout(LONG, leaders[0].lost().cancelled()).await?;
    // Their keys must go, which is asked for again and again.
    drop(leaders);
    let delete = [("what", "delete"), ("class", "Retry")];
    let summary = eventually(LONG, "the deletes are summed up", async || {
        logs.of(SESSION, "still failing", &delete)
            .into_iter()
            .next()
    })
    .await?;
    assert_eq!(summary.level, Level::WARN);
    let failures: u64 = summary.field("failures").parse()?;
    assert!(failures > 25, "each failed more than once: {summary:?}");
    let names = summary.field("elections");
    assert_eq!(
        names,
        "jobs-00, jobs-01, jobs-02, jobs-03, jobs-04 and 20 more"
    );
    // What was under way when the connection broke fails for a reason of its own.
    let one_for_each_reason = |message, fields: &[(&str, &str)]| {
        let lines = logs.of(SESSION, message, fields);
        let reasons: BTreeSet<&str> = lines.iter().map(|line| line.field("why")).collect();
        assert!(
            reasons.len() == lines.len() && !lines.is_empty(),
            "{lines:?}"
        );
        lines
    };
    for first in one_for_each_reason("request failed", &delete) {
        assert!(first.field("elections").starts_with("jobs-"), "{first:?}");
    }
    for renewal in one_for_each_reason("renewal failed", &[]) {
        let names = renewal.field("elections");
        assert!(names.ends_with("and 20 more"), "{renewal:?}");
    }
    // One line at once, and one for every 10 s of less than 30.
    for what in ["delete", "renewal", "watch stream", "join", "list"] {
        let lines = logs.of(SESSION, "still failing", &[("what", what)]).len();
        assert!(lines <= 3, "{lines} lines for {what}");
    }
    proxy.heal();
    for what in ["renewal", "delete"] {
        let over = eventually(LONG, format!("{what} is told to be over"), async || {
            let lines = logs.of(SESSION, "no longer failing", &[("what", what)]);
            lines.into_iter().next()
        })
        .await?;
        assert_eq!(over.level, Level::INFO);
    }
    let renewed = logs.of(SESSION, "renewed", &[("identity", "a")]);
    assert!(renewed.iter().all(|line| line.level == Level::TRACE) && !renewed.is_empty());
    let late = logs.of(SESSION, "renewed late", &[]);
    assert_eq!(late.len(), 0, "the terms were over: {late:?}");
    all_documented(&logs);
    Ok(())
}

#[tokio::test]
async fn a_late_renewal_is_told_with_what_was_left() -> Result {
    let (logs, _guard) = Logs::capture();
    let etcd = Etcd::start().await?;
    // A renewal counts as late in the 2.7 s before the token falls.
    let request_timeout = Duration::from_millis(2700);
    let options = SessionOptions::new("a")
        .ttl(Duration::from_secs(9))
        .request_timeout(request_timeout)
        .margin(Duration::from_millis(50))
        .grace(Duration::from_millis(500));
    let (proxy, _, _candidate, leadership) = behind_a_proxy(&etcd, options).await?;
    let valid_until = leadership.valid_until().since_boot();
    proxy.hold();
    let late = Duration::from_millis(2900);
    eventually(LONG, "it is late", async || {
        (leadership.valid_until().time_left() < late).then_some(())
    })
    .await?;
    proxy.heal();
    eventually(LONG, "renewed", async || {
        (leadership.valid_until().since_boot() > valid_until).then_some(())
    })
    .await?;
    assert_eq!(leadership.lost_reason(), None);
    let told = logs.of(SESSION, "renewed late", &[("identity", "a")]);
    let [told] = &told[..] else {
        panic!("once: {logs:?}");
    };
    assert_eq!(told.level, Level::WARN);
    assert!(told.field("left").ends_with('s'), "a duration: {told:?}");
    all_documented(&logs);
    Ok(())
}

#[tokio::test]
async fn a_switched_endpoint_is_told_with_both_names() -> Result {
    let (logs, _guard) = Logs::capture();
    let etcd = Etcd::start().await?;
    let (one, two) = (
        Proxy::start(etcd.address()).await?,
        Proxy::start(etcd.address()).await?,
    );
    let endpoints = [one.endpoint(), two.endpoint()];
    let session = Session::connect(&endpoints, options("a")).await?;
    let mut candidate = session.election("jobs")?.campaign().await?;
    let leadership = timeout(LONG, candidate.elected()).await??;
    one.cut();
    for lane in ["lease", "data"] {
        let switched = eventually(LONG, format!("the {lane} lane is switched"), async || {
            let lines = logs.of(ETCD, "endpoint switched", &[("lane", lane)]);
            lines.into_iter().next()
        })
        .await?;
        assert_eq!(switched.level, Level::WARN);
        assert!(switched.says(&[("from", &endpoints[0]), ("to", &endpoints[1])]));
        assert!(!switched.field("why").is_empty());
        assert_eq!(
            switched.within,
            ["session"],
            "whose endpoint, is in the span"
        );
    }
    let lost = logs.of(SESSION, "watch lost", &[("identity", "a")]);
    assert!(!lost.is_empty(), "{logs:?}");
    assert!(leadership.is_valid(), "and nothing else happened");
    all_documented(&logs);
    Ok(())
}

#[tokio::test]
async fn ill_health_a_stall_stepping_down_and_late_work_are_told() -> Result {
    let (logs, _guard) = Logs::capture();
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
            Err("no disk".into())
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
                return Err("too late".into());
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
            Ok(())
        }
    });
    timeout(LONG, run).await??;
    let of_jobs = [("election", "jobs")];
    let ill = logs.one(ELECTION, "unhealthy", &of_jobs);
    assert_eq!((ill.level, ill.field("why")), (Level::WARN, "no disk"));
    let well = logs.one(ELECTION, "healthy again", &of_jobs);
    assert_eq!(well.level, Level::INFO);
    let stalled = logs.one(ELECTION, "term ended", &[("reason", "stalled")]);
    assert_eq!(stalled.level, Level::WARN);
    let stepped_down = logs.one(ELECTION, "term ended", &[("reason", "stepped_down")]);
    assert_eq!(stepped_down.level, Level::INFO, "it was asked for");
    let late = logs.one(ELECTION, "follower's work failed at its end", &of_jobs);
    assert_eq!(late.field("error"), "too late");
    let dropped = "follower's work dropped after the grace period";
    assert!(!logs.of(ELECTION, dropped, &of_jobs).is_empty());
    all_documented(&logs);
    Ok(())
}

#[test]
fn a_runtime_that_went_down_is_told_as_the_reason() -> Result {
    let (logs, _guard) = Logs::capture();
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
    assert_eq!(
        (ended.level, ended.field("reason")),
        (Level::WARN, "runtime_gone")
    );
    drop((session, candidate, leadership));
    all_documented(&logs);
    Ok(())
}

#[tokio::test]
async fn somebody_elses_key_at_our_path_and_a_short_ttl_are_told() -> Result {
    let (logs, _guard) = Logs::capture();
    let etcd = Etcd::start().await?;
    let options = SessionOptions::new("a").ttl(Duration::from_secs(2));
    let session = Session::connect([etcd.endpoint()], options).await?;
    let warning = "with this ttl a change of etcd's own leader may cost the leadership";
    logs.one(SESSION, warning, &[("identity", "a"), ("ttl", "2s")]);
    let mut candidate = session.election("jobs")?.campaign().await?;
    let leadership = timeout(LONG, candidate.elected()).await??;
    let mut client = etcd.client().await;
    client.put(leadership.key(), "mine now", None).await?;
    timeout(LONG, leadership.lost().cancelled()).await?;
    logs.one(ELECTION, "term ended", &[("reason", "key_overwritten")]);
    drop(leadership);
    drop(elected_again(&mut candidate).await?);
    session.close().await?;
    let all = DeleteOptions::new().with_prefix();
    assert_eq!(
        client.delete("", Some(all)).await?.deleted(),
        0,
        "nothing is left"
    );
    all_documented(&logs);
    Ok(())
}

//! Tests other programs in the same election or waiting for the same lock: the v3election and v3lock RPCs, `etcdctl
//! elect` and `etcdctl lock`, in both orders.
#![cfg(unix)] // etcdctl is ended by signals
#![allow(clippy::disallowed_methods)] // tests run in real time

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use eldest::{BoxError, Candidate, Leadership, Observer, Roster, Session, SessionOptions, Status};
use eldest_fixtures::tools::etcdctl;
use eldest_testing::{Etcd, eventually};
use etcd_client::{Client, GetOptions, LeaderKey, ProclaimOptions, ResignOptions};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

type Result<T = ()> = std::result::Result<T, BoxError>;

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(30);

/// Connects a session of ours that announces a plain string, as the other programs do and expect.
async fn ours(etcd: &Etcd, namespace: &str, identity: &str) -> Result<Session> {
    let options = SessionOptions::new(identity)
        .announcement(identity)
        .namespace(namespace)
        .ttl(Duration::from_secs(5));
    Ok(Session::connect([etcd.endpoint()], options).await?)
}

async fn leads(candidate: &mut Candidate) -> Result<Leadership> {
    Ok(timeout(LONG, candidate.elected()).await??)
}

async fn waits_behind(candidate: &Candidate, wanted: usize) -> Result {
    let mut status = candidate.subscribe();
    let there = status.wait_for(|s| matches!(s, Status::Waiting { ahead, .. } if *ahead == wanted));
    timeout(LONG, there).await??;
    Ok(())
}

fn names(roster: &Roster) -> Vec<&str> {
    let members = roster.members().iter();
    members.map(eldest::Member::identity).collect()
}

/// Returns the next state with exactly these candidates, eldest first.
async fn standing(observer: &mut Observer, wanted: &[&str]) -> Result<Roster> {
    let mut last = Vec::new();
    let there = async {
        loop {
            let roster = observer.next().await.ok_or("the observer ended")??;
            if names(&roster) == wanted {
                return Result::Ok(roster);
            }
            last = names(&roster).into_iter().map(str::to_owned).collect();
        }
    };
    let there = timeout(LONG, there).await;
    there.map_err(|_| format!("not {wanted:?} but {last:?}"))?
}

async fn nothing_is_left(etcd: &Etcd) -> Result {
    let all = GetOptions::new().with_all_keys().with_keys_only();
    let keys = etcd.client().await.get("", Some(all)).await?;
    assert!(keys.kvs().is_empty(), "left: {:?}", keys.kvs());
    Ok(())
}

// ---- the RPC

/// Campaigns through the RPC, in the background; the answer comes when the candidate leads.
async fn rpc_campaign(
    etcd: &Etcd,
    name: &'static str,
    value: &'static str,
) -> Result<(
    i64,
    JoinHandle<std::result::Result<LeaderKey, etcd_client::Error>>,
)> {
    let mut client = etcd.client().await;
    let lease = client.lease_grant(60, None).await?.id();
    let campaign = tokio::spawn(async move {
        let mut answer = client.campaign(name, value, lease).await?;
        Ok(answer.take_leader().expect("an answer names the leader"))
    });
    Ok((lease, campaign))
}

async fn rpc_resign(client: &mut Client, key: LeaderKey) -> Result {
    let resign = ResignOptions::new().with_leader(key);
    client.resign(Some(resign)).await?;
    Ok(())
}

#[tokio::test]
async fn an_older_candidate_of_the_rpc_leads_ours_until_it_resigns() -> Result {
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    // The empty namespace: the name is the whole prefix.
    let (lease, campaign) = rpc_campaign(&etcd, "jobs", "theirs").await?;
    let theirs = timeout(LONG, campaign).await???;

    let session = ours(&etcd, "", "ours").await?;
    let election = session.election("jobs")?;
    let mut observer = election.observe().await?;
    let mut candidate = election.campaign().await?;
    waits_behind(&candidate, 1).await?;
    let seen = election.leader().await?.expect("somebody leads");
    assert_eq!((seen.identity(), seen.value()), ("theirs", &b"theirs"[..]));
    assert_eq!((seen.key(), seen.lease_id()), (theirs.key(), lease));
    assert_eq!(seen.create_revision(), theirs.rev());
    standing(&mut observer, &["theirs", "ours"]).await?;

    let proclaim = ProclaimOptions::new().with_leader(theirs.clone());
    client.proclaim("theirs, renamed", Some(proclaim)).await?;
    standing(&mut observer, &["theirs, renamed", "ours"]).await?;

    let mut elections = client.observe("jobs").await?;
    let first = timeout(LONG, elections.message()).await??.ok_or("ended")?;
    assert_eq!(
        first.kv().map(etcd_client::KeyValue::value),
        Some(&b"theirs, renamed"[..])
    );
    rpc_resign(&mut client, theirs).await?;
    let leadership = leads(&mut candidate).await?;
    standing(&mut observer, &["ours"]).await?;

    // The RPC observes our leader.
    let second = timeout(LONG, elections.message()).await??.ok_or("ended")?;
    let seen = client.leader("jobs").await?;
    for kv in [second.kv(), seen.kv()] {
        let kv = kv.ok_or("nobody leads")?;
        assert_eq!((kv.key(), kv.value()), (leadership.key(), &b"ours"[..]));
        assert_eq!(kv.create_revision(), leadership.fencing_token());
    }
    leadership.proclaim("ours, renamed").await?;
    let renamed = timeout(LONG, elections.message()).await??.ok_or("ended")?;
    assert_eq!(
        renamed.kv().map(etcd_client::KeyValue::value),
        Some(&b"ours, renamed"[..])
    );

    leadership.resign().await?;
    assert!(client.leader("jobs").await.is_err(), "nobody leads");
    session.close().await?;
    nothing_is_left(&etcd).await
}

#[tokio::test]
async fn a_younger_candidate_of_the_rpc_follows_ours_and_ours_follow_it() -> Result {
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let (a, c) = (
        ours(&etcd, "eldest", "a").await?,
        ours(&etcd, "eldest", "c").await?,
    );
    let election = a.election("jobs")?;
    let mut observer = election.observe().await?;
    let mut first = election.campaign().await?;
    let leadership = leads(&mut first).await?;
    let (_, campaign) = rpc_campaign(&etcd, "eldest/jobs", "b").await?;
    standing(&mut observer, &["a", "b"]).await?;
    let mut third = c.election("jobs")?.campaign().await?;
    waits_behind(&third, 2).await?;
    standing(&mut observer, &["a", "b", "c"]).await?;
    let seen = client.leader("eldest/jobs").await?;
    assert_eq!(seen.kv().map(etcd_client::KeyValue::value), Some(&b"a"[..]));
    assert!(!campaign.is_finished(), "it waits for us");

    leadership.resign().await?;
    let theirs = timeout(LONG, campaign).await???;
    waits_behind(&third, 1).await?;
    let seen = election.leader().await?.expect("somebody leads");
    assert_eq!(
        (seen.identity(), seen.create_revision()),
        ("b", theirs.rev())
    );
    assert!(theirs.rev() > leadership.fencing_token());

    rpc_resign(&mut client, theirs).await?;
    let leadership = leads(&mut third).await?;
    standing(&mut observer, &["c"]).await?;
    leadership.resign().await?;
    a.close().await?;
    c.close().await?;
    nothing_is_left(&etcd).await
}

// ---- etcdctl

/// An `etcdctl elect` or `etcdctl lock` that runs.
struct Etcdctl {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
}

impl Etcdctl {
    fn start(etcdctl: &PathBuf, etcd: &Etcd, args: &[&str]) -> Result<Self> {
        let mut command = Command::new(etcdctl);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ETCDCTL_") {
                command.env_remove(name); // cargo would count each variable as an argument
            }
        }
        command
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &etcd.endpoint()])
            .args(args)
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let spawned = command.spawn();
        let mut child = spawned.map_err(|e| format!("{}: {e}", etcdctl.display()))?;
        let output = child.stdout.take().ok_or("its output")?;
        Ok(Self {
            child,
            output: BufReader::new(output).lines(),
        })
    }

    /// Returns the next line: a key, or the value after it.
    async fn line(&mut self) -> Result<String> {
        let line = timeout(LONG, self.output.next_line()).await??;
        Ok(line.ok_or("it ended")?)
    }

    /// Returns the key and value of the leader that it prints.
    async fn leader(&mut self) -> Result<(Vec<u8>, String)> {
        Ok((self.line().await?.into_bytes(), self.line().await?))
    }

    async fn end(mut self, signal: Signal) -> Result<ExitStatus> {
        let pid = self.child.id().ok_or("it has ended")?;
        kill_process(
            Pid::from_raw(pid.cast_signed()).ok_or("no process")?,
            signal,
        )?;
        Ok(timeout(LONG, self.child.wait()).await??)
    }
}

#[tokio::test]
async fn an_older_etcdctl_leads_ours_until_it_is_interrupted() -> Result {
    let Some(etcdctl) = etcdctl() else {
        return Ok(());
    };
    let etcd = Etcd::start().await?;
    let mut theirs = Etcdctl::start(&etcdctl, &etcd, &["elect", "eldest/jobs", "theirs"])?;
    let (key, value) = theirs.leader().await?;
    assert_eq!(value, "theirs");

    let session = ours(&etcd, "eldest", "ours").await?;
    let election = session.election("jobs")?;
    let mut observer = election.observe().await?;
    let mut candidate = election.campaign().await?;
    waits_behind(&candidate, 1).await?;
    let roster = standing(&mut observer, &["theirs", "ours"]).await?;
    assert_eq!(roster.leader().map(eldest::Member::key), Some(&*key));

    let mut listening = Etcdctl::start(&etcdctl, &etcd, &["elect", "--listen", "eldest/jobs"])?;
    assert_eq!(listening.leader().await?, (key, "theirs".to_owned()));
    theirs.end(Signal::INT).await?;
    let leadership = leads(&mut candidate).await?;
    let seen = listening.leader().await?;
    assert_eq!(seen, (leadership.key().to_vec(), "ours".to_owned()));
    leadership.resign().await?;
    drop(listening);
    session.close().await?;
    nothing_is_left(&etcd).await
}

#[tokio::test]
async fn a_killed_etcdctl_leads_until_its_lease_ends() -> Result {
    let Some(etcdctl) = etcdctl() else {
        return Ok(());
    };
    let etcd = Etcd::start().await?;
    let mut theirs = Etcdctl::start(&etcdctl, &etcd, &["elect", "eldest/jobs", "theirs"])?;
    theirs.leader().await?;
    let session = ours(&etcd, "eldest", "ours").await?;
    let election = session.election("jobs")?;
    let mut candidate = election.campaign().await?;
    waits_behind(&candidate, 1).await?;
    theirs.end(Signal::KILL).await?;

    // The process is dead, but its key exists, so it keeps its place and leads until its lease of 60 s expires.
    let leader = election.leader().await?.expect("its key stands");
    assert_eq!(leader.identity(), "theirs");
    assert!(matches!(
        candidate.status(),
        Status::Waiting { ahead: 1, .. }
    ));
    etcd.client().await.lease_revoke(leader.lease_id()).await?;
    let leadership = leads(&mut candidate).await?;
    eventually(LONG, "ours leads", async || {
        let leader = election.leader().await.ok()??;
        (leader.key() == leadership.key()).then_some(())
    })
    .await?;
    leadership.resign().await?;
    session.close().await?;
    nothing_is_left(&etcd).await
}

#[tokio::test]
async fn etcdctl_and_ours_share_an_exact_prefix_outside_our_namespace() -> Result {
    const PREFIX: &str = "/golem/shard-manager/leader";
    let Some(etcdctl) = etcdctl() else {
        return Ok(());
    };
    let etcd = Etcd::start().await?;
    let mut theirs = Etcdctl::start(&etcdctl, &etcd, &["elect", PREFIX, "theirs"])?;
    let (key, _) = theirs.leader().await?;
    let session = ours(&etcd, "eldest", "ours").await?;
    let election = session.election_at(PREFIX)?;
    let mut observer = election.observe().await?;
    let mut candidate = election.campaign().await?;
    waits_behind(&candidate, 1).await?;
    let leader = election.leader().await?.ok_or("nobody leads")?;
    assert_eq!(leader.key(), key);
    let mut behind = Etcdctl::start(&etcdctl, &etcd, &["elect", PREFIX, "behind"])?;
    standing(&mut observer, &["theirs", "ours", "behind"]).await?;

    theirs.end(Signal::INT).await?;
    let leadership = leads(&mut candidate).await?;
    assert_eq!(
        election.leader().await?.map(|l| l.key().to_vec()),
        Some(leadership.key().to_vec())
    );
    leadership.resign().await?;
    assert_eq!(behind.leader().await?.1, "behind");
    behind.end(Signal::INT).await?;
    session.close().await?;
    nothing_is_left(&etcd).await
}

// ---- locks

async fn keys_of(client: &mut Client, prefix: &str) -> Result<Vec<String>> {
    let options = GetOptions::new().with_prefix().with_keys_only();
    let answer = client.get(prefix, Some(options)).await?;
    let keys = answer.kvs().iter().map(etcd_client::KeyValue::key_str);
    Ok(keys
        .map(|key| key.map(str::to_owned))
        .collect::<std::result::Result<_, _>>()?)
}

async fn queue_of(client: &mut Client, prefix: &str, length: usize) -> Result<Vec<String>> {
    Ok(
        eventually(LONG, format!("{length} keys under {prefix}"), async || {
            let keys = keys_of(&mut client.clone(), prefix).await.ok()?;
            (keys.len() == length).then_some(keys)
        })
        .await?,
    )
}

#[tokio::test]
async fn etcdctl_waits_for_our_lock_and_ours_wait_for_etcdctl() -> Result {
    let Some(etcdctl) = etcdctl() else {
        return Ok(());
    };
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let (a, c) = (ours(&etcd, "", "a").await?, ours(&etcd, "", "c").await?);
    let guard = timeout(LONG, a.lock("l")?.acquire()).await??;
    let token = guard.fencing_token();
    // While etcdctl holds the lock, it runs a command that ends at once.
    let endpoint = etcd.endpoint();
    let put = [
        &*etcdctl.to_string_lossy(),
        "--endpoints",
        &endpoint,
        "put",
        "ran",
        "yes",
    ];
    let mut theirs = Etcdctl::start(&etcdctl, &etcd, &[&["lock", "--", "l"], &put[..]].concat())?;
    queue_of(&mut client, "l/", 2).await?;
    let last = c.lock("l")?;
    let waiting = tokio::spawn(async move { last.acquire().await });
    queue_of(&mut client, "l/", 3).await?;
    assert!(
        client.get("ran", None).await?.kvs().is_empty(),
        "it waits for us"
    );
    assert!(guard.is_valid() && !waiting.is_finished());

    guard.release().await?;
    assert_eq!(theirs.line().await?, "OK", "its command has run");
    let guard = timeout(LONG, waiting).await???;
    assert!(guard.fencing_token() > token);
    let ran = client.get("ran", None).await?;
    assert_eq!(ran.kvs().len(), 1, "before ours held it");
    guard.release().await?;
    client.delete("ran", None).await?;
    a.close().await?;
    c.close().await?;
    nothing_is_left(&etcd).await
}

#[tokio::test]
async fn etcdctl_waits_for_our_readers_and_a_later_reader_for_etcdctl() -> Result {
    let Some(etcdctl) = etcdctl() else {
        return Ok(());
    };
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let (a, b) = (ours(&etcd, "", "a").await?, ours(&etcd, "", "b").await?);
    let readers = (a.lock("jobs")?.shared(), b.lock("jobs")?.shared());
    let one = timeout(LONG, readers.0.acquire()).await??;
    let two = timeout(LONG, readers.1.acquire()).await??;
    let mut theirs = Etcdctl::start(&etcdctl, &etcd, &["lock", "jobs"])?;
    queue_of(&mut client, "jobs/", 3).await?;
    let behind = tokio::spawn(async move { readers.1.acquire().await });
    queue_of(&mut client, "jobs/", 4).await?;
    two.release().await?;
    assert!(one.is_valid() && !behind.is_finished());
    one.release().await?;
    let key = theirs.line().await?;
    assert!(key.starts_with("jobs/") && !behind.is_finished(), "{key}");
    theirs.end(Signal::INT).await?;
    timeout(LONG, behind).await???.release().await?;
    a.close().await?;
    b.close().await?;
    nothing_is_left(&etcd).await
}

#[tokio::test]
async fn the_rpc_and_ours_wait_for_one_another() -> Result {
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let session = ours(&etcd, "eldest", "ours").await?;
    let lock = session.lock("l")?;
    let guard = timeout(LONG, lock.acquire()).await??;
    let lease = client.lease_grant(60, None).await?.id();
    let mut theirs = client.clone();
    let options = etcd_client::LockOptions::new().with_lease(lease);
    let waiting = tokio::spawn(async move { theirs.lock("eldest/l", Some(options)).await });
    queue_of(&mut client, "eldest/l/", 2).await?;
    assert!(!waiting.is_finished(), "it waits for us");
    guard.release().await?;
    let theirs = timeout(LONG, waiting).await???;
    assert_eq!(
        keys_of(&mut client, "eldest/l/").await?,
        [std::str::from_utf8(theirs.key())?]
    );
    assert!(timeout(LONG, lock.try_acquire()).await??.is_none());
    let waiting = tokio::spawn(async move { lock.acquire().await });
    queue_of(&mut client, "eldest/l/", 2).await?;
    client.unlock(theirs.key()).await?;
    timeout(LONG, waiting).await???.release().await?;
    client.lease_revoke(lease).await?;
    session.close().await?;
    nothing_is_left(&etcd).await
}

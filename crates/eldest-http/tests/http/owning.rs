//! Tests that a node owns partitions on behalf of a program: what the program may do, and how long others wait.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use eldest::{CancellationToken, Partitions, Session};
use eldest_http::{Health, Leading, Node};
use eldest_testing::{MemoryEtcd, Proxy, eventually};
use serde_json::Value;
use tokio::time::timeout;

use crate::caller::{get, post};
use crate::stage::{GRACE, Result, SOON, Server, options};

const OWN: &str = "/v1/partitions/team/p/own";
const HEARTBEAT: &str = "/v1/partitions/team/p/heartbeat";
const COUNT: u32 = 8;
/// How long a program may act.
const MAY_ACT: Duration = Duration::from_millis(GRACE.as_millis() as u64 * 3 / 4);
/// Long enough for a heartbeat on a busy machine.
const STALL: Duration = Duration::from_secs(2);

/// A node beside a program.
struct Beside {
    _session: Session,
    partitions: Partitions,
    server: Server,
    leading: Leading,
}

impl Beside {
    async fn start(etcd: &MemoryEtcd, identity: &str, health: Health) -> Result<Self> {
        Self::of(etcd.session(options(identity)).await?, health).await
    }

    async fn of(session: Session, health: Health) -> Result<Self> {
        let partitions = session.partitions("team/p", COUNT)?;
        let never = CancellationToken::new();
        let (node, leading) = Node::new().own_on_behalf_while_healthy(&partitions, health, never);
        let server = Server::plain(node).await?;
        Ok(Self {
            _session: session,
            partitions,
            server,
            leading,
        })
    }

    /// Returns the partitions for which the program may act.
    async fn asked(&self) -> Result<Value> {
        let answer = get(self.server.at, OWN).await?;
        assert_eq!(answer.status, 200, "{answer:?}");
        Ok(answer.json())
    }

    /// Waits until the program may act for that many partitions.
    async fn owns(&self, number: usize) -> Result<Vec<(u32, i64)>> {
        let what = format!("it owns {number} partitions");
        Ok(eventually(SOON, what, async || {
            let own = owned(&self.asked().await.ok()?);
            (own.len() == number).then_some(own)
        })
        .await?)
    }
}

fn owned(answer: &Value) -> Vec<(u32, i64)> {
    let number = |of: &Value, field: &str| of[field].as_i64().expect("a number");
    let all = answer["partitions"].as_array().expect("partitions").iter();
    all.map(|one| {
        (
            number(one, "partition") as u32,
            number(one, "fencing_token"),
        )
    })
    .collect()
}

#[tokio::test]
async fn program_may_act_only_for_partitions_that_no_other_node_owns() -> Result {
    let etcd = MemoryEtcd::start();
    let a = Beside::start(&etcd, "a", Health::new()).await?;
    let all = a.owns(COUNT as usize).await?;
    let answer = a.asked().await?;
    assert_eq!(answer["name"], "team/p");
    assert_eq!(answer["partition_count"], COUNT);
    assert_eq!(answer["may_act_for_ms"], MAY_ACT.as_millis() as u64);
    assert_eq!(answer["next_from"], Value::Null);
    let map = a.partitions.map().await?;
    for (partition, token) in &all {
        let owner = map.owner(*partition).expect("it has an owner");
        assert_eq!((owner.identity(), owner.fencing_token()), ("a", *token));
    }
    // Another member takes half of the partitions, each after the last promise.
    let mut promised: BTreeMap<u32, Instant> = BTreeMap::new();
    let before = Instant::now();
    promised.extend(
        owned(&a.asked().await?)
            .into_iter()
            .map(|(number, _)| (number, before)),
    );
    let other = etcd.session(options("b")).await?;
    let mut member = other.partitions("team/p", COUNT)?.join().await?;
    let mut taken = Vec::new();
    while taken.len() < COUNT as usize / 2 {
        let before = Instant::now();
        tokio::select! {
            partition = member.owned() => {
                let partition = partition?;
                let last = promised[&partition.number()];
                assert!(last.elapsed() >= MAY_ACT, "while a program may act");
                taken.push(partition);
            }
            // The time counts from before the request.
            own = a.asked() => promised.extend(owned(&own?).into_iter().map(|(number, _)| (number, before))),
        }
    }
    let left = a.owns(COUNT as usize / 2).await?;
    assert!(
        left.iter().all(|one| all.contains(one)),
        "they did not move"
    );
    drop(taken);
    member.leave().await?;
    a.owns(COUNT as usize).await?;
    Ok(())
}

#[tokio::test]
async fn a_node_that_loses_etcd_promises_no_partition_that_another_node_owns() -> Result {
    const TTL: Duration = Duration::from_secs(3);
    let etcd = MemoryEtcd::start();
    let proxy = Proxy::start(etcd.listen("127.0.0.1:0").await?).await?;
    let a = Session::connect([proxy.endpoint()], options("a").ttl(TTL)).await?;
    let a = Beside::of(a, Health::new()).await?;
    a.owns(COUNT as usize).await?;
    let other = etcd.session(options("b").ttl(TTL)).await?;
    let mut member = other.partitions("team/p", COUNT)?.join().await?;
    let mut taken = Vec::new();
    while taken.len() < COUNT as usize / 2 {
        taken.push(timeout(SOON, member.owned()).await??);
    }
    proxy.hold();
    // The program asks repeatedly, and counts each promise from before its request.
    let mut promises: BTreeMap<u32, Instant> = BTreeMap::new();
    let mut asks = tokio::time::interval(Duration::from_millis(10));
    while taken.len() < COUNT as usize {
        tokio::select! {
            partition = member.owned() => {
                let partition = partition?;
                let until = promises.get(&partition.number()).copied();
                assert!(until.is_some_and(|until| until <= Instant::now()), "two owners: {promises:?}");
                taken.push(partition);
            }
            _ = asks.tick() => {
                let before = Instant::now();
                let answer = a.asked().await?;
                let Some(may_act) = answer["may_act_for_ms"].as_u64() else { continue };
                let until = before + Duration::from_millis(may_act);
                promises.extend(owned(&answer).into_iter().map(|(number, _)| (number, until)));
            }
        }
    }
    assert!(owned(&a.asked().await?).is_empty());
    Ok(())
}

#[tokio::test]
async fn node_owns_nothing_without_heartbeats_of_its_program() -> Result {
    let etcd = MemoryEtcd::start();
    let a = Beside::start(&etcd, "a", Health::new().stall_timeout(STALL)).await?;
    eventually(SOON, "it says why", async || {
        let answer = a.asked().await.ok()?;
        assert!(owned(&answer).is_empty());
        let why = answer["unhealthy"].as_str()?.to_owned();
        why.contains("no heartbeat within 2s").then_some(())
    })
    .await?;
    assert!(a.partitions.map().await?.members().is_empty());
    let beat = async || {
        let answer = post(a.server.at, HEARTBEAT).await.ok()?;
        assert_eq!(answer.status, 200, "{answer:?}");
        let own = owned(&a.asked().await.ok()?);
        (own.len() == COUNT as usize).then_some(())
    };
    eventually(SOON, "it owns all while its program works", beat).await?;
    let last = Instant::now();
    eventually(
        SOON,
        "it promises nothing when the program hangs",
        async || owned(&a.asked().await.ok()?).is_empty().then_some(()),
    )
    .await?;
    // A second partition would begin with the end of the first.
    let silence = last.elapsed();
    assert!(silence < STALL + STALL / 2, "{silence:?}");
    eventually(SOON, "it leaves", async || {
        let map = a.partitions.map().await.ok()?;
        (map.members().is_empty() && map.iter().count() == 0).then_some(())
    })
    .await?;
    assert!(owned(&a.asked().await?).is_empty());
    Ok(())
}

#[tokio::test]
async fn shutdown_ends_promises_and_frees_partitions_a_grace_period_later() -> Result {
    let etcd = MemoryEtcd::start();
    let a = Beside::start(&etcd, "a", Health::new()).await?;
    a.owns(COUNT as usize).await?;
    let before = Instant::now();
    a.asked().await?;
    a.leading.stop();
    eventually(SOON, "nothing is promised any more", async || {
        owned(&a.asked().await.ok()?).is_empty().then_some(())
    })
    .await?;
    let Beside {
        partitions,
        leading,
        ..
    } = a;
    timeout(SOON, leading).await??;
    assert!(before.elapsed() >= GRACE);
    assert_eq!(partitions.map().await?.iter().count(), 0);
    Ok(())
}

/// A promise to a caller from before a program bound itself is kept; none is kept for a dead program.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn partitions_are_freed_with_the_bound_program_and_owned_for_the_next() -> Result {
    use crate::unix::Local;
    use eldest_fixtures::program::Program;
    use serde_json::json;

    const PROMISED: Duration = Duration::from_secs(10);
    let etcd = MemoryEtcd::start();
    let session = etcd.session(options("a").grace(PROMISED)).await?;
    let partitions = session.partitions("team/p", COUNT)?;
    let (node, _leading) = Node::new().own_on_behalf(&partitions, CancellationToken::new());
    let server = Local::start(node, eldest_http::Auth::at_unix_socket())?;
    // Returns when the answer was requested that lists so many partitions, and its promise.
    let owns = async |number: usize, query: &str| -> Result<(Instant, Value)> {
        let found = eventually(SOON, format!("it owns {number}"), async || {
            let before = Instant::now();
            let answer = server
                .ask("GET", &format!("{OWN}{query}"), "")
                .await
                .ok()?
                .json();
            let shown = partitions.map().await.ok()?.iter().count();
            let all = [owned(&answer).len(), shown] == [number; 2];
            all.then(|| (before, answer["may_act_for_ms"].clone()))
        });
        Ok(found.await?)
    };
    let bind = async |number: u32| -> Result {
        let body = json!({ "holder_pid": number }).to_string();
        let answer = server.ask("POST", "/v1/program", &body).await?;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.json()["pid"], json!(number));
        Ok(())
    };
    let (asked, may_act) = owns(COUNT as usize, "").await?;
    let may_act = Duration::from_millis(may_act.as_u64().expect("a time"));
    let mut short_lived = Program::sleeping()?;
    bind(short_lived.id()).await?;
    short_lived.kill()?;
    owns(0, "").await?;
    assert!(asked.elapsed() >= may_act, "{:?}", asked.elapsed());

    let mut program = Program::sleeping()?;
    bind(program.id()).await?;
    owns(COUNT as usize, &format!("?holder_pid={}", program.id())).await?;
    let answer = server.ask("GET", OWN, "").await?;
    assert!(owned(&answer.json()).is_empty(), "the caller is not bound");
    let killed = Instant::now();
    program.kill()?;
    owns(0, "").await?;
    assert!(
        killed.elapsed() < may_act,
        "no promise is kept for the dead"
    );
    Ok(())
}

#[tokio::test]
async fn share_of_an_absent_member_is_shown_and_forgotten_on_request() -> Result {
    const FORGET: &str = "/v1/partitions/team/p/forget";
    let etcd = MemoryEtcd::start();
    let a = Beside::start(&etcd, "a", Health::new()).await?;
    let b = etcd.session(options("b")).await?;
    let keep = Duration::from_secs(3600);
    let of_b = b.partitions("team/p", COUNT)?.keep_share_for(keep);
    let half = COUNT as usize / 2;
    let mut member = of_b.join().await?;
    a.owns(half).await?;
    eventually(SOON, "the record lists its half", async || {
        let overview = b.overview("team/p").await.ok()?;
        let keys = overview.queues().first()?.roster().members();
        let mut records = keys.iter().filter(|key| {
            let name = key.key().rsplit(|byte| *byte == b'/').next();
            name.is_some_and(|name| name.starts_with(b"k-"))
        });
        let value: Value = serde_json::from_slice(records.next()?.value()).ok()?;
        let listed = value["partitions"].as_str()?.split(',').map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Some(last.parse::<usize>().ok()? + 1 - first.parse::<usize>().ok()?)
        });
        (listed.sum::<Option<usize>>()? == half).then_some(())
    })
    .await?;
    for (path, status) in [("", 400), ("?identity=b", 404), ("?identity=c", 404)] {
        let refused = post(a.server.at, &format!("{FORGET}{path}")).await?;
        assert_eq!(refused.status, status, "{refused:?}");
    }
    member.leave().await?;
    let state = eventually(SOON, "it is shown", async || {
        let state = get(a.server.at, "/v1/partitions/team/p").await.ok()?.json();
        (state["absent"][0]["kept_count"] == half).then_some(state)
    })
    .await?;
    assert_eq!(state["absent"][0]["identity"], "b");
    assert_eq!(state["absent"][0]["kept_for_ms"], 3_600_000);
    let partitions = state["partitions"].as_array().expect("partitions");
    let kept = partitions.iter().filter(|one| one["kept_for"] == "b");
    assert_eq!(kept.count(), half);

    let eye = Server::plain(Node::new().observes_partitions(&of_b)).await?;
    let refused = post(eye.at, &format!("{FORGET}?identity=b")).await?;
    assert_eq!(refused.problem(), "not_on_behalf", "{refused:?}");
    let forgotten = post(a.server.at, &format!("{FORGET}?identity=b")).await?;
    assert_eq!(forgotten.status, 200, "{forgotten:?}");
    assert_eq!(forgotten.json()["forgotten"], "b");
    a.owns(COUNT as usize).await?;
    let again = post(a.server.at, &format!("{FORGET}?identity=b")).await?;
    assert_eq!(again.problem(), "no_kept_share", "{again:?}");
    Ok(())
}

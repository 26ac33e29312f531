//! Tests foreign writes among the election's keys: by operators, by other programs, by mistake.

use eldest::LostReason;
use eldest_testing::{Etcd, Proxy, eventually};
use etcd_client::PutOptions;

use crate::stage::{Key, Led, Node, PREFIX, Result, SOON, Stage, seconds};
use std::sync::Arc;
use std::time::Duration;

/// A long TTL, so that a fast event can only have come through a watch.
const TTL: Duration = seconds(20);
/// A limit well below the time to the next renewal.
const PROMPT: Duration = seconds(4);

/// `a` leads, `b` and `c` wait.
struct Scene {
    etcd: Etcd,
    stage: Stage,
    a: Node,
    b: Node,
    c: Node,
    led: Arc<Led>,
    keys: Vec<Key>,
}

impl Scene {
    async fn new() -> Result<Self> {
        let etcd = Etcd::start().await?;
        let stage = Stage::new(&[etcd.endpoint()], TTL).await?;
        let a = stage.node("a", &[etcd.endpoint()]).await?;
        let b = stage.node("b", &[etcd.endpoint()]).await?;
        let c = stage.node("c", &[etcd.endpoint()]).await?;
        let led = a.elected(SOON).await?;
        let keys = stage.queue(&["a", "b", "c"], SOON).await?;
        Ok(Self {
            etcd,
            stage,
            a,
            b,
            c,
            led,
            keys,
        })
    }

    /// Checks that `a` promptly learns of its loss and rejoins at the back, that `b` leads, and that no other node
    /// noticed.
    async fn handed_over(&self, since: Duration, reason: LostReason) -> Result {
        let lost = self.led.is_lost(PROMPT).await?;
        assert!(lost < since + PROMPT, "notified late");
        assert_eq!(self.led.reason(), Some(reason));
        assert!(!self.led.term.is_valid());
        let second = self.b.elected(PROMPT).await?;
        assert!(second.token() > self.led.token());
        let keys = self.stage.queue(&["b", "c", "a"], PROMPT).await?;
        assert_eq!(keys[..2], self.keys[1..], "the others kept their places");
        assert!(self.c.terms().is_empty());
        Ok(())
    }

    /// Checks that each node has one key on one lease, and nothing else exists. Then all lead in turn.
    async fn ends_well(self) -> Result {
        let keys = self.stage.queue(&["b", "c", "a"], SOON).await?;
        let mut held: Vec<i64> = keys.iter().map(|key| key.lease).collect();
        held.sort_unstable();
        eventually(SOON, "no other lease is left", async || {
            let mut leases = self.stage.leases().await.ok()?;
            leases.sort_unstable();
            (leases == held).then_some(())
        })
        .await?;
        for node in [self.b, self.c, self.a] {
            node.elected(SOON).await?;
            node.stop().await?;
        }
        assert_eq!(
            self.stage.leases().await?,
            [0; 0],
            "a lease was left behind"
        );
        self.stage.judge(4, 1).await?;
        drop(self.etcd);
        Ok(())
    }
}

#[tokio::test]
async fn leader_whose_key_is_deleted_stops_at_once_and_rejoins() -> Result {
    let scene = Scene::new().await?;
    let stage = &scene.stage;
    let since = stage.now();
    stage.fault("a", "key deleted");
    stage.deletes(scene.led.token());
    let mut client = stage.client.clone();
    let deleted = client.delete(&*scene.keys[0].path, None).await?;
    assert_eq!(deleted.deleted(), 1);
    stage.healed("a", "key deleted");
    scene.handed_over(since, LostReason::KeyDeleted).await?;
    scene.ends_well().await
}

#[tokio::test]
async fn a_leader_whose_key_is_overwritten_steps_down_and_removes_it() -> Result {
    let scene = Scene::new().await?;
    let stage = &scene.stage;
    let since = stage.now();
    stage.fault("a", "key overwritten");
    // A key without a lease, which would never expire.
    let mut client = stage.client.clone();
    client.put(&*scene.keys[0].path, "somebody", None).await?;
    stage.healed("a", "key overwritten");
    scene.handed_over(since, LostReason::KeyOverwritten).await?;
    scene.ends_well().await
}

/// The leader reads a new key at its own path and under its own lease.
#[tokio::test]
async fn a_key_exchanged_while_its_leader_was_away_is_not_the_leaders() -> Result {
    let etcd = Etcd::start().await?;
    let proxy = Proxy::start(etcd.address()).await?;
    let stage = Stage::new(&[etcd.endpoint()], TTL).await?;
    let a = stage.node("a", &[proxy.endpoint()]).await?;
    let b = stage.node("b", &[etcd.endpoint()]).await?;
    let led = a.elected(SOON).await?;
    let own = stage.await_candidate("a").await?;

    stage.fault("a", "key exchanged");
    stage.deletes(led.token());
    proxy.cut();
    let mut client = stage.client.clone();
    client.delete(&*own.path, None).await?;
    let options = Some(PutOptions::new().with_lease(own.lease));
    client.put(&*own.path, "somebody", options).await?;
    proxy.heal();
    stage.healed("a", "key exchanged");

    led.is_lost(PROMPT).await?;
    assert_eq!(led.reason(), Some(LostReason::KeyDeleted));
    assert!(!led.term.is_valid());
    b.elected(PROMPT).await?;
    let keys = stage.queue(&["b", "a"], PROMPT).await?;
    assert_eq!(keys[1].lease, own.lease);
    b.stop().await?;
    let again = a.elected(SOON).await?;
    assert_eq!(again.token(), keys[1].create_revision);
    assert!(again.token() > led.token());
    a.stop().await?;
    assert_eq!(stage.keys().await, []);
    stage.judge(3, 1).await?;
    Ok(())
}

#[tokio::test]
async fn first_key_without_a_lease_is_reported_and_blocks_until_deleted() -> Result {
    let etcd = Etcd::start().await?;
    let stage = Stage::new(&[etcd.endpoint()], TTL).await?;
    let mut client = stage.client.clone();
    let binary = [PREFIX.as_bytes(), &[0xff, 0x00]].concat();
    stage.fault("", "blocked");
    client.put(binary.clone(), vec![0xff, 0x80], None).await?;
    let a = stage.node("a", &[etcd.endpoint()]).await?;
    let b = stage.node("b", &[etcd.endpoint()]).await?;
    let roster = a.election.roster().await?;
    assert_eq!(roster.blocker().map(eldest::Member::key), Some(&*binary));
    assert!(roster.leader().is_none() && a.election.leader().await?.is_none());
    assert!(a.terms().is_empty() && b.terms().is_empty());
    client.delete(binary, None).await?;
    a.elected(PROMPT).await?;
    // The same happens in the middle of the queue.
    let middle = format!("{PREFIX}immortal");
    let c = {
        client.put(&*middle, "", None).await?;
        stage.node("c", &[etcd.endpoint()]).await?
    };
    a.stop().await?;
    b.elected(PROMPT).await?;
    b.stop().await?;
    eventually(SOON, "the immortal key blocks", async || {
        let roster = c.election.roster().await.ok()?;
        let blocker = roster.blocker()?.key() == middle.as_bytes();
        blocker.then_some(())
    })
    .await?;
    assert!(c.terms().is_empty());
    client.delete(middle, None).await?;
    c.elected(PROMPT).await?;
    stage.healed("", "blocked");
    c.stop().await?;
    stage.judge(3, 0).await?;
    Ok(())
}

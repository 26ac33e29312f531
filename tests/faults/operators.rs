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
    async fn handed_over(&self, since: Duration, reasons: &[LostReason]) -> Result<Vec<Key>> {
        let lost = self.led.is_lost(PROMPT).await?;
        assert!(lost < since + PROMPT, "notified late");
        let reason = self.led.reason().expect("it is lost");
        assert!(reasons.contains(&reason), "{reason} is not the reason");
        assert!(!self.led.term.is_valid());
        let second = self.b.elected(PROMPT).await?;
        assert!(second.token() > self.led.token());
        let keys = self.stage.queue(&["b", "c", "a"], PROMPT).await?;
        assert_eq!(keys[..2], self.keys[1..], "the others kept their places");
        assert!(self.c.terms().is_empty());
        Ok(keys)
    }

    /// Checks that each node has one key on one lease, and nothing else exists. Then all lead in turn.
    async fn ends_well(self, order: [&str; 3], elections: usize, hits: usize) -> Result {
        let keys = self.stage.queue(&order, SOON).await?;
        let mut held: Vec<i64> = keys.iter().map(|key| key.lease).collect();
        held.sort_unstable();
        eventually(SOON, "no other lease is left", async || {
            let mut leases = self.stage.leases().await.ok()?;
            leases.sort_unstable();
            (leases == held).then_some(())
        })
        .await?;
        let mut nodes = vec![self.a, self.b, self.c];
        for name in order {
            let at = nodes.iter().position(|node| node.name == name);
            let node = nodes.swap_remove(at.expect("one of ours"));
            node.elected(SOON).await?;
            node.stop().await?;
        }
        assert_eq!(
            self.stage.leases().await?,
            [0; 0],
            "a lease was left behind"
        );
        self.stage.judge(elections, hits).await?;
        drop(self.etcd);
        Ok(())
    }
}

#[tokio::test]
async fn leader_whose_lease_is_revoked_stops_at_once_and_rejoins() -> Result {
    let scene = Scene::new().await?;
    let stage = &scene.stage;
    let old = scene.keys[0].lease;
    let since = stage.now();
    stage.fault("a", "lease revoked");
    stage.deletes(scene.led.token());
    stage.client.clone().lease_revoke(old).await?;
    stage.healed("a", "lease revoked");
    let keys = scene
        .handed_over(since, &[LostReason::KeyDeleted, LostReason::LeaseLost])
        .await?;
    assert_ne!(keys[2].lease, old);
    scene.ends_well(["b", "c", "a"], 4, 1).await
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
    scene.handed_over(since, &[LostReason::KeyDeleted]).await?;
    scene.ends_well(["b", "c", "a"], 4, 1).await
}

#[tokio::test]
async fn waiting_node_whose_key_is_deleted_rejoins_at_the_back() -> Result {
    let scene = Scene::new().await?;
    let mut client = scene.stage.client.clone();
    client.delete(&*scene.keys[1].path, None).await?;
    let keys = scene.stage.queue(&["a", "c", "b"], PROMPT).await?;
    assert_eq!(
        keys[2].lease, scene.keys[1].lease,
        "the lease was not to blame"
    );
    assert!(scene.led.term.is_valid() && scene.b.terms().is_empty());
    scene.ends_well(["a", "c", "b"], 3, 0).await
}

#[tokio::test]
async fn waiting_node_whose_lease_is_revoked_rejoins_at_the_back() -> Result {
    let scene = Scene::new().await?;
    let mut client = scene.stage.client.clone();
    client.lease_revoke(scene.keys[1].lease).await?;
    scene.stage.queue(&["a", "c", "b"], PROMPT).await?;
    assert!(scene.led.term.is_valid() && scene.b.terms().is_empty());
    scene.ends_well(["a", "c", "b"], 3, 0).await
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
    scene
        .handed_over(since, &[LostReason::KeyOverwritten])
        .await?;
    scene.ends_well(["b", "c", "a"], 4, 1).await
}

#[tokio::test]
async fn waiting_node_whose_key_is_overwritten_removes_it_and_rejoins() -> Result {
    let scene = Scene::new().await?;
    let mut client = scene.stage.client.clone();
    client.put(&*scene.keys[1].path, "somebody", None).await?;
    scene.stage.queue(&["a", "c", "b"], PROMPT).await?;
    assert!(scene.led.term.is_valid() && scene.b.terms().is_empty());
    scene.ends_well(["a", "c", "b"], 3, 0).await
}

/// Puts a new key at the path of the leader's own. The leader sees both events, or was away and reads the new key.
async fn a_key_deleted_and_created_again(same_lease: bool, away: bool) -> Result {
    let etcd = Etcd::start().await?;
    let proxy = Proxy::start(etcd.address()).await?;
    let stage = Stage::new(&[etcd.endpoint()], TTL).await?;
    let a = stage.node("a", &[proxy.endpoint()]).await?;
    let b = stage.node("b", &[etcd.endpoint()]).await?;
    let led = a.elected(SOON).await?;
    let own = stage.await_candidate("a").await?;

    stage.fault("a", "key exchanged");
    stage.deletes(led.token());
    if away {
        proxy.cut();
    } else {
        proxy.hold_responses();
    }
    let mut client = stage.client.clone();
    client.delete(&*own.path, None).await?;
    let lease = if same_lease { own.lease } else { 0 };
    let options = Some(PutOptions::new().with_lease(lease));
    client.put(&*own.path, "somebody", options).await?;
    eventually(SOON, "both events are on their way", async || {
        (away || proxy.held_responses() > 0).then_some(())
    })
    .await?;
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
async fn key_recreated_under_its_lease_is_not_the_leaders() -> Result {
    a_key_deleted_and_created_again(true, false).await
}

#[tokio::test]
async fn a_key_exchanged_while_its_leader_was_away_is_not_the_leaders() -> Result {
    a_key_deleted_and_created_again(true, true).await
}

#[tokio::test]
async fn key_recreated_without_a_lease_is_not_the_leaders() -> Result {
    a_key_deleted_and_created_again(false, false).await
}

#[tokio::test]
async fn foreign_keys_at_the_back_and_nested_keys_change_no_election() -> Result {
    let etcd = Etcd::start().await?;
    let stage = Stage::new(&[etcd.endpoint()], TTL).await?;
    let mut client = stage.client.clone();
    // Older than all candidates, but deeper than one level.
    client
        .put(format!("{PREFIX}deep/key"), "nested", None)
        .await?;
    client.put(format!("{PREFIX}/"), "nested", None).await?;
    let a = stage.node("a", &[etcd.endpoint()]).await?;
    let b = stage.node("b", &[etcd.endpoint()]).await?;
    a.elected(SOON).await?;
    let binary = [PREFIX.as_bytes(), &[0xff, 0x00, 0xc3]].concat();
    client
        .put(binary.clone(), vec![0xff, 0xfe, 0x00], None)
        .await?;
    client
        .put(format!("{PREFIX}zzz"), "{\"identity\":7}", None)
        .await?;
    client.put(PREFIX, "the bare prefix", None).await?;
    let roster = b.election.roster().await?;
    let keys: Vec<&[u8]> = roster.members().iter().map(eldest::Member::key).collect();
    assert!(keys.contains(&&*binary) && keys.len() == 4, "{roster:?}");
    assert!(roster.blocker().is_none());
    assert_eq!(roster.leader().map(eldest::Member::identity), Some("a"));
    a.stop().await?;
    b.elected(SOON).await?;
    b.stop().await?;
    stage.judge(2, 0).await?;
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

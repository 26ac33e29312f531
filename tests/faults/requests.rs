//! Tests requests whose answers are lost, and requests that arrive late.

use std::time::Duration;

use eldest::{Candidate, Leadership, Session};
use eldest_testing::history::What;
use eldest_testing::{Etcd, Proxy, eventually};
use etcd_client::PutOptions;

use crate::stage::{
    ELECTION, Key, Node, PREFIX, Result, SOON, Stage, Work, options, pass, seconds,
};

/// A session behind a proxy that has its lease and both connections, because it is a candidate in another election.
struct Warm {
    session: Session,
    elsewhere: Candidate,
    lease: i64,
}

const ELSEWHERE: &str = "eldest/elsewhere/";

impl Warm {
    async fn new(stage: &Stage, name: &str, proxy: &Proxy) -> Result<Self> {
        let session = Session::connect([proxy.endpoint()], options(name, stage.ttl)).await?;
        let elsewhere = session.election("elsewhere")?.campaign().await?;
        let lease = stage.keys_under(ELSEWHERE).await[0].lease;
        Ok(Self {
            session,
            elsewhere,
            lease,
        })
    }
}

/// etcd registers `b`, and `b` never receives the answer.
async fn loses_the_answer_to_its_join(stage: &Stage, proxy: &Proxy) -> Result<Key> {
    let registered = stage.await_candidate("b").await?;
    proxy.drop_connections();
    proxy.heal();
    Ok(registered)
}

#[tokio::test]
async fn a_join_whose_answer_is_lost_leaves_one_key_and_no_orphan() -> Result {
    let etcd = Etcd::start().await?;
    let proxy = Proxy::start(etcd.address()).await?;
    let stage = Stage::new(&[etcd.endpoint()], seconds(10)).await?;
    let a = stage.node("a", &[etcd.endpoint()]).await?;
    a.elected(SOON).await?;
    let Warm {
        session,
        elsewhere,
        lease,
    } = Warm::new(&stage, "b", &proxy).await?;
    stage.fault("b", "answer lost");
    proxy.hold_responses();
    let b = Node::of(&stage, session, Work::UntilLost)?;
    let registered = loses_the_answer_to_its_join(&stage, &proxy).await?;
    stage.healed("b", "answer lost");
    a.stop().await?;
    let led = b.elected(SOON).await?;
    let keys = stage.queue(&["b"], SOON).await?;
    assert_eq!(
        (keys[0].lease, keys[0].create_revision),
        (lease, led.token())
    );
    assert_eq!(led.token(), registered.create_revision, "it kept its place");
    b.stop().await?;
    assert_eq!(stage.keys().await, []);
    drop(elsewhere);
    stage.judge(2, 0).await?;
    Ok(())
}

#[tokio::test]
async fn unowned_key_under_our_lease_is_swept_after_a_lost_answer() -> Result {
    let etcd = Etcd::start().await?;
    let proxy = Proxy::start(etcd.address()).await?;
    let stage = Stage::new(&[etcd.endpoint()], seconds(2)).await?;
    let warm = Warm::new(&stage, "b", &proxy).await?;
    stage.fault("b", "answer lost");
    proxy.hold_responses();
    let b = Node::of(&stage, warm.session, Work::UntilLost)?;
    let own = loses_the_answer_to_its_join(&stage, &proxy).await?;
    stage.healed("b", "answer lost");
    let led = b.elected(SOON).await?;
    // As a late join would leave it, in an election in which we no longer have a candidate.
    let orphan = format!("eldest/left/{:x}", warm.lease);
    let leased = Some(PutOptions::new().with_lease(warm.lease));
    stage.client.clone().put(&*orphan, "b", leased).await?;
    eventually(SOON, "the orphan is swept", async || {
        stage
            .keys_under("eldest/left/")
            .await
            .is_empty()
            .then_some(())
    })
    .await?;
    assert_eq!(
        stage.keys_under(ELSEWHERE).await.len(),
        1,
        "what is owned stays"
    );
    assert_eq!(stage.keys().await, [own]);
    assert!(led.term.is_valid());
    drop(warm.elsewhere);
    b.stop().await?;
    stage.judge(1, 0).await?;
    Ok(())
}

/// Starts a leadership step by step, whose end the test decides.
async fn leads(stage: &Stage, session: &Session) -> Result<(Candidate, Leadership)> {
    let mut candidate = session.election(ELECTION)?.campaign().await?;
    let leadership = candidate.elected().await?;
    stage.elected(session.identity(), &leadership);
    Ok((candidate, leadership))
}

fn records_release(stage: &Stage, node: &str, leadership: &Leadership) {
    let token = leadership.fencing_token();
    stage
        .recorder
        .record(node, ELECTION, What::Released { token });
}

const ROUNDS: usize = 6;

/// The first delete request is delayed on its connection, and another one deletes the key. The node rejoins under the
/// same path; then the first request arrives.
#[tokio::test]
async fn a_delete_that_arrives_late_never_hits_a_newer_key() -> Result {
    let etcd = Etcd::start().await?;
    let proxy = Proxy::start(etcd.address()).await?;
    let stage = Stage::new(&[etcd.endpoint()], seconds(10)).await?;
    let warm = Warm::new(&stage, "a", &proxy).await?;
    stage.fault("a", "requests stuck");
    let answered = "grpc_server_handled_total{grpc_method=\"Txn\"}";
    let mut arrived = 0.0;
    for _ in 0..ROUNDS {
        let (candidate, leadership) = leads(&stage, &warm.session).await?;
        let old = stage.await_candidate("a").await?;
        let stuck = proxy.open_connections();
        for connection in &stuck {
            proxy.hold_connection(*connection);
        }
        records_release(&stage, "a", &leadership);
        drop((leadership, candidate));
        stage.queue(&[], SOON).await?;
        let (candidate, leadership) = leads(&stage, &warm.session).await?;
        let new = stage.await_candidate("a").await?;
        assert_eq!(
            (&new.path, new.lease),
            (&old.path, old.lease),
            "the same path"
        );
        let before = etcd.metric(answered).await;
        for connection in &stuck {
            proxy.release_connection(*connection);
        }
        eventually(SOON, "what was stuck has arrived", async || {
            (proxy.held_requests() == 0).then_some(())
        })
        .await?;
        // etcd may process the cancellation that follows the request first, hence the rounds.
        pass(Duration::from_millis(200)).await;
        arrived += etcd.metric(answered).await - before;
        assert!(leadership.is_valid() && leadership.lost_reason().is_none());
        assert_eq!(stage.keys().await, [new]);
        records_release(&stage, "a", &leadership);
        drop((leadership, candidate));
        stage.queue(&[], SOON).await?;
    }
    stage.healed("a", "requests stuck");
    assert!(arrived >= 1.0, "no delayed delete ever arrived");
    warm.session.close().await?;
    stage.judge(2 * ROUNDS, 0).await?;
    Ok(())
}

#[tokio::test]
async fn a_leadership_dropped_during_an_outage_is_released_when_etcd_is_back() -> Result {
    const TTL: Duration = seconds(12);
    let etcd = Etcd::start().await?;
    let proxy = Proxy::start(etcd.address()).await?;
    let stage = Stage::new(&[etcd.endpoint()], TTL).await?;
    let session = Session::connect([proxy.endpoint()], options("a", TTL)).await?;
    let (candidate, leadership) = leads(&stage, &session).await?;
    let b = stage.node("b", &[etcd.endpoint()]).await?;
    stage.fault("a", "cut");
    proxy.cut();
    let term = leadership.term();
    records_release(&stage, "a", &leadership);
    drop((leadership, candidate));
    assert!(!term.is_valid());
    term.lost().cancelled().await;
    pass(seconds(1)).await;
    assert!(b.terms().is_empty());
    stage.queue(&["a", "b"], SOON).await?;
    let healed = stage.now();
    proxy.heal();
    stage.healed("a", "cut");
    let led = b.elected(TTL).await?;
    let took = led.elected_at.saturating_sub(healed);
    assert!(took < TTL / 3, "released only after {took:?}");
    // The session stays usable, and its lease was kept for that.
    let lease = stage.leases().await?.len();
    assert_eq!(lease, 2);
    let again = session.election(ELECTION)?.campaign().await?;
    stage.queue(&["b", "a"], SOON).await?;
    drop(again);
    stage.queue(&["b"], SOON).await?;
    session.close().await?;
    b.stop().await?;
    assert_eq!(stage.keys_under(PREFIX).await, []);
    stage.judge(2, 1).await?;
    Ok(())
}

//! Tests requests whose answers are lost, and requests that arrive late.

use std::time::Duration;

use eldest::{Candidate, Leadership, Session};
use eldest_testing::history::What;
use eldest_testing::{Etcd, Proxy, eventually};

use crate::stage::{ELECTION, Node, Result, SOON, Stage, Work, options, pass, seconds};

/// Connects a session behind a proxy. The session has its lease and both connections, because it is a candidate in
/// another election.
async fn warm(stage: &Stage, name: &str, proxy: &Proxy) -> Result<(Session, Candidate)> {
    let session = Session::connect([proxy.endpoint()], options(name, stage.ttl)).await?;
    let elsewhere = session.election("elsewhere")?.campaign().await?;
    Ok((session, elsewhere))
}

#[tokio::test]
async fn a_join_whose_answer_is_lost_leaves_one_key_and_no_orphan() -> Result {
    let etcd = Etcd::start().await?;
    let proxy = Proxy::start(etcd.address()).await?;
    let stage = Stage::new(&[etcd.endpoint()], seconds(10)).await?;
    let a = stage.node("a", &[etcd.endpoint()]).await?;
    a.elected(SOON).await?;
    let (session, elsewhere) = warm(&stage, "b", &proxy).await?;
    stage.fault("b", "answer lost");
    proxy.hold_responses();
    let b = Node::of(&stage, session, Work::UntilLost)?;
    let registered = stage.await_candidate("b").await?;
    proxy.drop_connections();
    proxy.heal();
    stage.healed("b", "answer lost");
    a.stop().await?;
    let led = b.elected(SOON).await?;
    let keys = stage.queue(&["b"], SOON).await?;
    assert_eq!(keys, [registered], "it kept its place");
    assert_eq!(keys[0].create_revision, led.token());
    b.stop().await?;
    assert_eq!(stage.keys().await, []);
    drop(elsewhere);
    stage.judge(2, 0).await?;
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
    let (session, _elsewhere) = warm(&stage, "a", &proxy).await?;
    stage.fault("a", "requests stuck");
    let answered = "grpc_server_handled_total{grpc_method=\"Txn\"}";
    let mut arrived = 0.0;
    for _ in 0..ROUNDS {
        let (candidate, leadership) = leads(&stage, &session).await?;
        let old = stage.await_candidate("a").await?;
        let stuck = proxy.open_connections();
        for connection in &stuck {
            proxy.hold_connection(*connection);
        }
        records_release(&stage, "a", &leadership);
        drop((leadership, candidate));
        stage.queue(&[], SOON).await?;
        let (candidate, leadership) = leads(&stage, &session).await?;
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
    session.close().await?;
    stage.judge(2 * ROUNDS, 0).await?;
    Ok(())
}

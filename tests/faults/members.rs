//! Tests leaders of etcd that die, stop or return.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use eldest::{Challenges, LostReason, Session, SessionOptions};
use eldest_testing::{EtcdCluster, eventually};

use crate::stage::{
    Led, Node, Result, SOON, Stage, Work, millis, one_leads, options, pass, seconds,
};

/// A TTL long enough to survive a change of etcd's leader.
const TTL: Duration = seconds(5);
/// The longest takeover: TTL, election timeout and slack, and the same again for a busy machine.
const TAKEOVER: Duration = seconds(20);

/// Three servers and two nodes: `a` leads, and is connected to etcd's leader; `b` waits, and is connected to another
/// server.
struct Scene {
    cluster: EtcdCluster,
    stage: Stage,
    a: Node,
    b: Node,
    led: Arc<Led>,
    etcd_leader: usize,
}

impl Scene {
    async fn new() -> Result<Self> {
        Self::with(|options| options).await
    }

    async fn with(set: impl Fn(SessionOptions) -> SessionOptions) -> Result<Self> {
        let cluster = EtcdCluster::start(3).await?;
        let etcd_leader = cluster.leader().await;
        let mut endpoints = cluster.endpoints();
        endpoints.rotate_left(etcd_leader);
        // The observer of the keys uses the other members: at a stopped member, it would see changes late, and judge
        // that the next leader led too early.
        let stage = Stage::new(&endpoints[1..], TTL).await?;
        let node = async |name, endpoints: &[String]| -> Result<Node> {
            let session = Session::connect(endpoints, set(options(name, TTL))).await?;
            let node = Node::of(&stage, session, Work::UntilLost)?;
            stage.await_candidate(name).await?;
            Ok(node)
        };
        let a = node("a", &endpoints).await?;
        endpoints.rotate_left(1);
        let b = node("b", &endpoints).await?;
        let led = a.elected(SOON).await?;
        Ok(Self {
            cluster,
            stage,
            a,
            b,
            led,
            etcd_leader,
        })
    }

    /// Waits until exactly one node leads, and checks that an old term ended for a fitting reason.
    async fn settles(&self) -> Result {
        let (_, now) = one_leads(&[&self.a, &self.b], TAKEOVER).await?;
        if now.token() == self.led.token() {
            assert_eq!(self.a.terms().len() + self.b.terms().len(), 1);
        } else {
            let reason = self.led.reason().expect("the old term has ended");
            let fits = [
                LostReason::LeaseExpiring,
                LostReason::LeaseLost,
                LostReason::KeyDeleted,
            ];
            assert!(fits.contains(&reason), "{reason} does not fit");
            assert!(now.token() > self.led.token());
        }
        Ok(())
    }

    /// Checks that both nodes are candidates, and lead in turn.
    async fn ends_well(self) -> Result {
        eventually(TAKEOVER, "both nodes stand", async || {
            (self.stage.keys().await.len() == 2).then_some(())
        })
        .await?;
        let (first, second) = match one_leads(&[&self.a, &self.b], TAKEOVER).await?.0 {
            node if node.name == "a" => (self.a, self.b),
            _ => (self.b, self.a),
        };
        first.stop().await?;
        second.elected(SOON).await?;
        second.stop().await?;
        self.stage.judge(2, 1).await?;
        drop(self.cluster);
        Ok(())
    }
}

/// The time in which etcd may change its leader at no cost: 2 s, and the delay until this test notices.
const STEADY_CHANGE: Duration = millis(2_100);

/// The member is killed, and then the next one stopped. A busy machine may take longer for a change; then the term may end.
#[tokio::test]
async fn changes_of_etcds_leader_cost_no_term_with_steady_challenges() -> Result {
    let steady = |options: SessionOptions| {
        options.challenges(Challenges::steady().listen((Ipv4Addr::LOCALHOST, 0)))
    };
    let mut scene = Scene::with(steady).await?;
    for stops in [false, true] {
        let (_, led) = one_leads(&[&scene.a, &scene.b], TAKEOVER).await?;
        let (hit, fault) = (scene.cluster.leader().await, "etcd's leader changes");
        scene.stage.fault("", fault);
        let began = scene.stage.now();
        if stops {
            scene.cluster.members()[hit].pause();
        } else {
            scene.cluster.member(hit).kill();
        }
        assert_ne!(scene.cluster.leader().await, hit);
        let took = scene.stage.now().saturating_sub(began);
        pass(seconds(4)).await;
        println!("{fault}: {took:?}, kept: {}", !led.lost.is_cancelled());
        if took <= STEADY_CHANGE {
            assert!(!led.lost.is_cancelled(), "{took:?}: {:?}", led.reason());
        }
        if stops {
            scene.cluster.members()[hit].resume();
        } else {
            scene.cluster.restart().await?;
        }
        scene.stage.healed("", fault);
    }
    scene.ends_well().await
}

/// The resumed member still considers itself the leader of etcd, and considers leases expired that the new leader
/// renewed.
#[tokio::test]
async fn resumed_etcd_leader_makes_no_second_leader() -> Result {
    let scene = Scene::new().await?;
    let stops = scene.etcd_leader;
    scene.stage.fault("", "etcd's leader stopped");
    scene.cluster.members()[stops].pause();
    assert_ne!(scene.cluster.leader().await, stops);
    pass(TTL + millis(1500)).await;
    scene.settles().await?;
    scene.cluster.members()[stops].resume();
    pass(seconds(2)).await;
    scene.stage.healed("", "etcd's leader stopped");
    one_leads(&[&scene.a, &scene.b], TAKEOVER).await?;
    scene.ends_well().await
}

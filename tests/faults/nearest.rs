//! Tests the nearest member of etcd: chosen, left when it fails, and used again when it answers, under a leader whose
//! term continues.

use eldest::{Endpoint, EndpointReason, EndpointStatus, Session};
use eldest_testing::{Etcd, EtcdCluster, Proxy, eventually};

use crate::capture::Logs;
use crate::stage::{Node, Result, SOON, Stage, Work, millis, patient_options, seconds};

const TTL: std::time::Duration = seconds(10);
/// The time for two probes: a few seconds apart, after up to a minute for an endpoint that was down for long, or some
/// minutes apart if the machine was so busy that the first measurements are wrong.
const SETTLED: std::time::Duration = seconds(400);
const ETCD: &str = "eldest::etcd";
const SESSION: &str = "eldest::session";

/// Starts a member for each of these delays, with a proxy in front of it.
async fn members_at(delays: [u64; 3]) -> Result<(EtcdCluster, [Proxy; 3])> {
    let cluster = EtcdCluster::start(3).await?;
    cluster.leader().await;
    let endpoints = cluster.endpoints();
    let start = |at: usize| Proxy::start(&endpoints[at]);
    let proxies = [start(0).await?, start(1).await?, start(2).await?];
    for (proxy, each_way) in proxies.iter().zip(delays) {
        proxy.delay(millis(each_way));
    }
    Ok((cluster, proxies))
}

fn status(session: &Session, proxy: &Proxy) -> EndpointStatus {
    let all = session.endpoints();
    let all = all.borrow();
    let mut here = all.iter().filter(|status| status.url() == proxy.endpoint());
    here.next().expect("an endpoint of the session").clone()
}

/// Waits until renewals and requests use that endpoint, and no connection to the others is left.
async fn uses(session: &Session, proxies: &[Proxy; 3], at: usize) -> Result<EndpointReason> {
    let what = format!("endpoint {at} is used");
    let why = eventually(SETTLED, what, async || {
        let status = status(session, &proxies[at]);
        status.requests()?;
        status.renewals()
    })
    .await?;
    eventually(SETTLED, "the other connections are closed", async || {
        let mut others = proxies.iter().enumerate().filter(|(index, _)| *index != at);
        others
            .all(|(_, proxy)| proxy.connections() == 0)
            .then_some(())
    })
    .await?;
    Ok(why)
}

#[tokio::test]
async fn nearest_member_is_left_on_failure_and_used_again_within_one_term() -> Result {
    let (logs, _guard) = Logs::capture();
    let (cluster, proxies) = members_at([80, 0, 40]).await?;
    let stage = Stage::new(&cluster.endpoints(), TTL).await?;
    let endpoints = proxies.each_ref().map(Proxy::endpoint);
    let a = stage.patient_node("a", &endpoints).await?;
    let led = a.elected(SOON).await?;
    let why = uses(&a.session, &proxies, 1).await?;
    assert_eq!(why, EndpointReason::Nearest);
    stage.renewed(&led).await?;
    let shown = status(&a.session, &proxies[1]);
    let far = status(&a.session, &proxies[0]);
    assert!(shown.round_trip() < far.round_trip(), "{shown:?} {far:?}");
    assert!(far.round_trip() >= Some(millis(160)), "{far:?}");
    let nothing_failed = || {
        let lost = logs.of(SESSION, "watch lost", &[]);
        assert!(lost.is_empty(), "{lost:?}");
        let failed = logs.of(SESSION, "renewal failed", &[]);
        assert!(failed.is_empty(), "{failed:?}");
        let moved = logs.of(ETCD, "moved to the preferred endpoint", &[]);
        assert!(moved.iter().all(|line| line.field("to") == endpoints[1]));
        moved.len()
    };
    let first = nothing_failed();
    assert!(first >= 2, "renewals and requests, each once");

    proxies[1].cut();
    let why = uses(&a.session, &proxies, 2).await?;
    assert_eq!(why, EndpointReason::PreferredFailed);
    assert!(status(&a.session, &proxies[1]).is_failing());
    stage.renewed(&led).await?;

    let failures = logs.of(SESSION, "renewal failed", &[]).len();
    proxies[1].heal();
    uses(&a.session, &proxies, 1).await?;
    stage.renewed(&led).await?;
    let again = logs.of(SESSION, "renewal failed", &[]).len();
    assert_eq!(again, failures, "the way back costs no renewal");
    assert_eq!(a.terms().len(), 1);
    let b = stage.patient_node("b", &endpoints).await?;
    a.stop().await?;
    b.elected(SOON).await?;
    b.stop().await?;
    stage.judge(2, 0).await?;
    Ok(())
}

#[tokio::test]
async fn own_data_center_is_used_and_nearer_others_are_not_probed() -> Result {
    let (cluster, proxies) = members_at([0, 30, 0]).await?;
    let stage = Stage::new(&cluster.endpoints(), TTL).await?;
    let named = |(proxy, name): (&Proxy, &str)| Endpoint::new(proxy.endpoint()).data_center(name);
    let endpoints = proxies.iter().zip(["us", "eu", "us"]).map(named);
    let session = Session::connect(endpoints, patient_options("a", TTL).data_center("eu")).await?;
    let a = Node::of(&stage, session, Work::UntilLost)?;
    let led = a.elected(SOON).await?;
    for _ in 0..3 {
        stage.renewed(&led).await?;
        assert_eq!(proxies[0].connections() + proxies[2].connections(), 0);
    }
    let why = uses(&a.session, &proxies, 1).await?;
    assert_eq!(why, EndpointReason::OwnDataCenter);
    assert_eq!(status(&a.session, &proxies[0]).round_trip(), None);

    proxies[1].hold();
    eventually(SETTLED, "another data centre is used", async || {
        status(&a.session, &proxies[1])
            .renewals()
            .is_none()
            .then_some(())
    })
    .await?;
    stage.renewed(&led).await?;
    proxies[1].heal();
    proxies[1].delay(millis(30));
    let why = uses(&a.session, &proxies, 1).await?;
    assert_eq!(why, EndpointReason::OwnDataCenter);
    stage.renewed(&led).await?;
    assert_eq!(a.terms().len(), 1);
    a.stop().await?;
    stage.judge(1, 0).await?;
    Ok(())
}

/// For example a member that was wiped and restored from a backup: its cluster has the same id.
#[tokio::test]
async fn a_nearer_member_that_shows_an_older_state_is_not_used() -> Result {
    let (logs, _guard) = Logs::capture();
    let folder = tempfile::tempdir()?;
    let [new, old] = ["new", "old"].map(|name| folder.path().join(name).display().to_string());
    let start = |data: &str| Etcd::builder().arg(format!("--data-dir={data}")).start();
    // The copy has the same cluster id, and none of the later changes.
    start(&new).await?.kill();
    let copied = std::process::Command::new("cp")
        .args(["-r", &new, &old])
        .status()?;
    assert!(copied.success());
    let (etcd, older) = (start(&new).await?, start(&old).await?);
    let (far, near) = (
        Proxy::start(etcd.address()).await?,
        Proxy::start(older.address()).await?,
    );
    far.delay(millis(40));
    let stage = Stage::new(&[etcd.endpoint()], TTL).await?;
    let a = stage
        .patient_node("a", &[far.endpoint(), near.endpoint()])
        .await?;
    let led = a.elected(SOON).await?;
    let why = eventually(SETTLED, "the nearer one is refused", async || {
        let moved = logs.of(ETCD, "moved to the preferred endpoint", &[]);
        assert!(moved.is_empty(), "{moved:?}");
        let refused = logs.of(ETCD, "preferred endpoint not usable", &[]);
        refused.first().map(|line| line.field("why").to_owned())
    })
    .await?;
    assert!(why.contains("an older state"), "{why}");
    stage.renewed(&led).await?;
    assert_eq!(a.terms().len(), 1);
    a.stop().await?;
    stage.judge(1, 0).await?;
    Ok(())
}

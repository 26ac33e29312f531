//! Tests endpoints that are replaced at run time, under a leader whose term continues.

use eldest::ErrorKind;
use eldest_testing::{Etcd, EtcdCluster, Proxy, eventually};

use crate::capture::Logs;
use crate::stage::{Node, Result, SOON, Stage, seconds};

const TTL: std::time::Duration = seconds(10);
const ETCD: &str = "eldest::etcd";
const SESSION: &str = "eldest::session";

async fn proxies(cluster: &EtcdCluster) -> Result<Vec<Proxy>> {
    let mut proxies = Vec::new();
    for endpoint in cluster.endpoints() {
        proxies.push(Proxy::start(&endpoint).await?);
    }
    Ok(proxies)
}

fn endpoints(proxies: &[Proxy]) -> Vec<String> {
    proxies.iter().map(Proxy::endpoint).collect()
}

fn listed(node: &Node) -> Vec<String> {
    let seen = node.session.endpoints();
    let seen = seen.borrow();
    seen.iter().map(|one| one.url().to_owned()).collect()
}

/// Checks that no connection is left, although all of these endpoints still answer.
async fn left(proxies: &[Proxy]) -> Result {
    eventually(SOON, "the endpoints that are gone are left", async || {
        let connections = proxies.iter().map(Proxy::connections).sum::<usize>();
        (connections == 0).then_some(())
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn all_endpoints_are_replaced_under_a_leader_without_a_failed_request() -> Result {
    let (logs, _guard) = Logs::capture();
    let cluster = EtcdCluster::start(3).await?;
    cluster.leader().await;
    let (first, second) = (proxies(&cluster).await?, proxies(&cluster).await?);
    let stage = Stage::new(&cluster.endpoints(), TTL).await?;
    let a = stage.patient_node("a", &endpoints(&first)).await?;
    let led = a.elected(SOON).await?;
    let b = stage.patient_node("b", &endpoints(&first)).await?;
    for (from, to) in [(&first, &second), (&second, &first), (&first, &second)] {
        for node in [&a, &b] {
            node.session.set_endpoints(endpoints(to)).await?;
            assert_eq!(listed(node), endpoints(to));
        }
        left(from).await?;
        stage.renewed(&led).await?;
    }
    for (target, line) in [
        (SESSION, "watch lost"),
        (SESSION, "renewal failed"),
        (ETCD, "endpoint switched"),
        (ETCD, "preferred endpoint not usable"),
    ] {
        let lines = logs.of(target, line, &[]);
        assert!(lines.is_empty(), "{lines:?}");
    }
    assert_eq!(logs.of(ETCD, "endpoints changed", &[]).len(), 6);

    // A wrong list changes nothing.
    let other = Etcd::start().await?;
    let foreign = [second[0].endpoint(), other.endpoint()];
    let error = a.session.set_endpoints(foreign).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let why = error.report().to_string();
    assert!(
        why.contains(&other.endpoint()) && why.contains("another cluster"),
        "{why}"
    );
    for (unusable, why) in [("ftp://etcd", "http or https"), ("", "empty")] {
        let error = a.session.set_endpoints([unusable]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(why), "{error}");
    }
    let error = a.session.set_endpoints::<&str>([]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    first.iter().for_each(Proxy::cut);
    let error = a.session.set_endpoints(endpoints(&first)).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(listed(&a), endpoints(&second));
    stage.renewed(&led).await?;

    // The waiting node learns of the leader's end through its new endpoints.
    assert_eq!(a.terms().len(), 1);
    let session = a.session.clone();
    a.stop().await?;
    b.elected(SOON).await?;
    b.stop().await?;
    session.close().await?;
    let error = session.set_endpoints(endpoints(&second)).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Closed);
    stage.judge(2, 0).await?;
    Ok(())
}

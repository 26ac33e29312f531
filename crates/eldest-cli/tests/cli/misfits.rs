//! `eldest doctor` at an etcd that answers, but does not suit a node: one remedy for each, and an exit code that agrees.

use eldest_fixtures::tls::TlsEtcd;
use eldest_testing::Etcd;

use crate::common::{DONE, Result, SICK, UNAVAILABLE, at, eldest, join, node, put};
use crate::doctor::examine;

#[tokio::test]
async fn key_short_ttl_and_user_that_will_harm_are_warnings() -> Result {
    let etcd = Etcd::start().await?;
    let a = node(&etcd, "a").await?;
    let _candidate = join(&a, "jobs").await?;
    put(&mut etcd.client().await, "eldest/jobs/immortal", "x").await?;
    let mut command = at(&etcd, &["--user", "me", "--ttl", "2s"]);
    command.env("ELDEST_PASSWORD", "secret");
    let report = examine(command).await?;
    assert_eq!(report.code, DONE, "warnings: {report:?}");
    let blocks = "jobs will be blocked by the key eldest/jobs/immortal, which has no lease";
    let evict = "eldest evict jobs --candidate eldest/jobs/immortal";
    report.finds("blocked warn", blocks, evict);
    report.finds("ttl warn", "--ttl 2s is short", "or longer");
    let disabled = "etcd has authentication disabled";
    report.finds("permissions warn", disabled, "leave out --user");
    Ok(())
}

#[tokio::test]
async fn limits_of_etcd_that_stop_a_session_are_reported_with_the_option() -> Result {
    let candidate = "no node can become a candidate";
    let partition = "no node can take a partition";
    let guard = "no guard can delete the keys";
    for (option, code, level, message, remedy) in [
        ("max-txn-ops=1", SICK, "fail", candidate, "--max-txn-ops"),
        ("max-txn-ops=2", SICK, "fail", partition, "--max-txn-ops"),
        (
            "max-concurrent-streams=1",
            SICK,
            "fail",
            "carries a stream",
            "--max-concurrent-streams",
        ),
        ("max-txn-ops=3", DONE, "warn", guard, "--max-txn-ops of 4"),
        ("max-txn-ops=4", DONE, "ok", "as a session needs", ""),
    ] {
        let etcd = Etcd::builder().arg(format!("--{option}")).start().await?;
        let report = examine(at(&etcd, &[])).await?;
        assert_eq!(report.code, code, "{report:?}");
        report.finds(&format!("limits {level}"), message, remedy);
    }
    Ok(())
}

#[tokio::test]
async fn endpoint_that_is_no_member_has_a_remedy_of_its_own() -> Result {
    let sealed = TlsEtcd::start_open(&[]).await?;
    let mut cluster = Etcd::builder().start_cluster(1).await?;
    let learner = cluster.add_learner().await?;
    let metrics = format!("http://{}", free_address()?);
    let plain = Etcd::builder().arg(format!("--listen-metrics-urls={metrics}"));
    let plain = plain.start().await?;
    let http = sealed.endpoint.replace("https:", "http:");
    let https = plain.endpoint().replace("http:", "https:");
    let nowhere = format!("http://{}", free_address()?);
    for (endpoint, code, remedy) in [
        (http, SICK, "the server speaks TLS: write https://"),
        (https, SICK, "the server speaks no TLS: write http://"),
        (metrics, SICK, "name one of etcd's --listen-client-urls"),
        (sealed.endpoint.clone(), SICK, "correct --cacert, --cert"),
        (cluster.endpoints()[learner].clone(), SICK, "promote it"),
        (nowhere, UNAVAILABLE, "start it"),
    ] {
        let report = examine(eldest(&["--endpoints", &endpoint])).await?;
        assert_eq!(report.code, code, "{endpoint}: {report:?}");
        report.finds("reachable fail", "", remedy);
    }
    Ok(())
}

/// Returns an address at which no process listens now.
fn free_address() -> Result<std::net::SocketAddr> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

//! `eldest doctor` at an etcd that answers, but does not suit a node: one remedy for each, and an exit code that agrees.

use eldest_fixtures::tls::TlsEtcd;
use eldest_testing::Etcd;

use crate::common::{DONE, Result, SICK, UNAVAILABLE, at, eldest, join, node, put};
use crate::doctor::{examine, finds};

#[tokio::test]
async fn key_without_a_lease_is_reported_before_it_blocks_its_queue() -> Result {
    let etcd = Etcd::start().await?;
    let a = node(&etcd, "a").await?;
    let _candidate = join(&a, "jobs").await?;
    put(&mut etcd.client().await, "eldest/jobs/immortal", "x").await?;
    let report = examine(at(&etcd, &[])).await?;
    assert_eq!(report.code, DONE, "a warning: {report:?}");
    finds(
        &report,
        "blocked",
        "warn",
        "jobs will be blocked by the key eldest/jobs/immortal, which has no lease",
        "eldest evict jobs --candidate eldest/jobs/immortal",
    );
    Ok(())
}

#[tokio::test]
async fn limits_of_etcd_that_stop_a_session_are_reported_with_the_option() -> Result {
    for (option, message) in [
        ("--max-txn-ops=1", "no node can become a candidate"),
        ("--max-txn-ops=2", "no node can take a partition"),
        (
            "--max-concurrent-streams=1",
            "no request on a connection that carries a stream",
        ),
    ] {
        let etcd = Etcd::builder().arg(option).start().await?;
        let report = examine(at(&etcd, &[])).await?;
        assert_eq!(report.code, SICK, "{report:?}");
        let name = option.split('=').next().unwrap_or_default();
        finds(&report, "limits", "fail", message, name);
    }
    for (option, level, message, remedy) in [
        (
            "--max-txn-ops=3",
            "warn",
            "no guard can delete the keys",
            "--max-txn-ops of 4",
        ),
        ("--max-txn-ops=4", "ok", "as a session needs", ""),
    ] {
        let etcd = Etcd::builder().arg(option).start().await?;
        let report = examine(at(&etcd, &[])).await?;
        assert_eq!(report.code, DONE, "{report:?}");
        finds(&report, "limits", level, message, remedy);
    }
    Ok(())
}

#[tokio::test]
async fn a_user_where_authentication_is_disabled_is_reported() -> Result {
    let etcd = Etcd::start().await?;
    let mut command = at(&etcd, &["--user", "me"]);
    command.env("ELDEST_PASSWORD", "secret");
    let report = examine(command).await?;
    assert_eq!(report.code, DONE, "a warning: {report:?}");
    finds(
        &report,
        "permissions",
        "warn",
        "etcd has authentication disabled",
        "leave out --user",
    );
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
    let http = |url: &str| url.replace("https:", "http:");
    for (endpoint, code, message, remedy) in [
        (
            http(&sealed.endpoint),
            SICK,
            "",
            "the server speaks TLS: write https://",
        ),
        (
            plain.endpoint().replace("http:", "https:"),
            SICK,
            "",
            "the server speaks no TLS: write http://",
        ),
        (metrics, SICK, "", "name one of etcd's --listen-client-urls"),
        (
            sealed.endpoint.clone(),
            SICK,
            "a certificate was refused",
            "correct --cacert, --cert or --key",
        ),
        (
            cluster.endpoints()[learner].clone(),
            SICK,
            "learner",
            "promote it",
        ),
        (
            format!("http://{}", free_address()?),
            UNAVAILABLE,
            "",
            "start it",
        ),
    ] {
        let report = examine(eldest(&["--endpoints", &endpoint])).await?;
        assert_eq!(report.code, code, "{endpoint}: {report:?}");
        finds(&report, "reachable", "fail", message, remedy);
    }
    Ok(())
}

/// Returns an address at which no process listens now.
fn free_address() -> Result<std::net::SocketAddr> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

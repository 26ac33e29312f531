//! Tests that etcd's gRPC proxy is refused, in every configuration.

use std::time::Duration;

use eldest::{ErrorKind, Session};
use eldest_testing::Etcd;

use crate::common::{Result, elected, leases, options, soon, stays};
use eldest_fixtures::grpc_proxy::GrpcProxy;

/// The ways in which the proxy may reveal itself, or hide.
const WAYS: [&[&str]; 4] = [
    &[],
    // Its member list is then that of etcd.
    &["--advertise-client-url="],
    &[
        "--advertise-client-url=127.0.0.1:1",
        "--resolver-prefix=___grpc",
        "--resolver-ttl=60",
    ],
    &["--namespace=team/"],
];

#[tokio::test]
async fn a_session_refuses_the_proxy_and_names_the_remedy() -> Result {
    let etcd = Etcd::start().await?;
    for way in WAYS {
        let proxy = GrpcProxy::start(&etcd.address(), way)?;
        let connecting = Session::connect([proxy.endpoint()], options("a"));
        let error = soon("a refusal", connecting).await.expect_err("a proxy");
        assert_eq!(error.kind(), ErrorKind::Proxied, "{way:?}: {error}");
        let message = error.report().to_string();
        for word in ["gRPC proxy", "members of etcd", &proxy.endpoint()] {
            assert!(message.contains(word), "{word:?} is not in {message}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_session_avoids_the_proxy_if_a_member_is_named_too() -> Result {
    let etcd = Etcd::start().await?;
    let proxy = GrpcProxy::start(&etcd.address(), &[])?;
    let endpoints = [proxy.endpoint(), etcd.endpoint()];
    let session = soon("connect", Session::connect(endpoints, options("a"))).await?;
    let mut candidate = soon("campaign", session.election("e")?.campaign()).await?;
    let leadership = elected(&mut candidate).await?;
    assert!(leadership.is_valid());
    Ok(())
}

#[tokio::test]
async fn a_lazy_session_is_granted_no_lease_through_the_proxy() -> Result {
    let etcd = Etcd::start().await?;
    let proxy = GrpcProxy::start(&etcd.address(), &[])?;
    let session = Session::connect_lazy([proxy.endpoint()], options("a"))?;
    let election = session.election("e")?;
    let campaign = tokio::spawn(async move { election.campaign().await });
    let mut client = etcd.client().await;
    stays(Duration::from_secs(2), "no lease", async || {
        !campaign.is_finished() && leases(&mut client).await == 0
    })
    .await?;
    campaign.abort();
    Ok(())
}

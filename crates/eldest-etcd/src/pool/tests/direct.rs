//! Tests the difference between a member of etcd and its gRPC proxy.

use tokio::net::{TcpListener as Listener, TcpStream};
use tokio::sync::watch;

use super::access::{PASSWORD, with_users};
use super::*;
use eldest_fixtures::grpc_proxy::GrpcProxy;

/// Forwards connections to an address that may change; a change closes the connections to the old address.
struct Switch {
    endpoint: String,
    target: watch::Sender<String>,
}

impl Switch {
    async fn to(endpoint: &str) -> Self {
        let listener = Listener::bind("127.0.0.1:0").await.unwrap();
        let own = format!("http://{}", listener.local_addr().unwrap());
        let (target, seen) = watch::channel(host(endpoint));
        tokio::spawn(async move {
            while let Ok((mut here, _)) = listener.accept().await {
                let mut target = seen.clone();
                tokio::spawn(async move {
                    let address = target.borrow_and_update().clone();
                    let Ok(mut there) = TcpStream::connect(address).await else {
                        return;
                    };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut here, &mut there) => {}
                        _ = target.changed() => {}
                    }
                });
            }
        });
        Switch {
            endpoint: own,
            target,
        }
    }

    fn turn_to(&self, endpoint: &str) {
        self.target.send_replace(host(endpoint));
    }
}

fn host(endpoint: &str) -> String {
    endpoint.trim_start_matches("http://").to_owned()
}

#[tokio::test]
async fn a_proxy_is_distinguished_from_a_member_under_any_permissions() {
    let (etcd, _root) = with_users().await;
    let proxy = GrpcProxy::start(&host(&etcd.endpoint), &["--advertise-client-url="]).unwrap();
    let me = ConnectOptions::new().with_user("me", PASSWORD);
    for options in [me, ConnectOptions::new()] {
        for lane in [Lane::Lease, Lane::Data] {
            let member = pool_with(&[&etcd.endpoint], options.clone(), TIMEOUT);
            member.client(lane).await.unwrap();
            let proxied = pool_with(&[&proxy.endpoint()], options.clone(), TIMEOUT);
            let failure = proxied.client(lane).await.err().expect("a refusal");
            assert_eq!((failure.class, failure.ambiguous), (Class::Proxy, false));
        }
    }
}

#[tokio::test]
async fn no_lease_is_renewed_through_a_proxy_in_a_members_place() {
    let etcd = Etcd::start().await;
    let proxy = GrpcProxy::start(&host(&etcd.endpoint), &[]).unwrap();
    let switch = Switch::to(&etcd.endpoint).await;
    let pool = pool(&[&switch.endpoint]);
    let id = fresh_id();
    pool.grant_as(id, 30).await.unwrap();
    let (mut client, _) = pool.client(Lane::Lease).await.unwrap();
    switch.turn_to(&proxy.endpoint());
    // The client reconnects by itself, and the pool does not notice.
    let again = async { while client.get("k", None).await.is_err() {} };
    soon("an answer by way of the proxy", again).await;
    let failure = soon("a refusal", pool.keepalive(id)).await.err();
    assert_eq!(failure.expect("a refusal").class, Class::Proxy);
}

//! Tests an etcd with users: which permissions suffice, the errors without them, and that passwords stay secret.
#![allow(clippy::disallowed_methods)] // tests run in real time

#[path = "../capture/mod.rs"]
mod capture;
mod changes;
mod many;
mod permissions;
mod secrecy;

use std::time::Duration;

use eldest::{BoxError, Candidate, Credentials, Leadership, Session, SessionOptions};
use eldest_testing::Etcd;
use etcd_client::{Client, ConnectOptions, GetOptions, Permission, PermissionType};
use tokio::time::timeout;

type Result<T = ()> = std::result::Result<T, BoxError>;

/// Leaves time to authenticate again and again on a busy machine.
const TTL: Duration = Duration::from_secs(8);

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// A text that occurs nowhere else, so that a test can search for it.
const PASSWORD: &str = "canary-5e1d0f";
const OTHER_PASSWORD: &str = "canary-77ab3c";
const CANARY: &str = "canary";

/// An etcd on which `me` and `other` may read and write below `ns/`, and `observer` may read there; with a client of
/// the user root.
struct Guarded {
    etcd: Etcd,
    root: Client,
}

impl Guarded {
    async fn start(args: &[&str]) -> Result<Self> {
        // The cheapest hash, because hashing is not under test.
        let mut builder = Etcd::builder().arg("--bcrypt-cost=4");
        for arg in args {
            builder = builder.arg(*arg);
        }
        let etcd = builder.start().await?;
        let mut client = etcd.client().await;
        let users = [
            ("root", "root", None),
            ("me", "writer", Some(PermissionType::Readwrite)),
            ("other", "writer_too", Some(PermissionType::Readwrite)),
            ("observer", "reader", Some(PermissionType::Read)),
        ];
        for (user, role, permission) in users {
            client.user_add(user, PASSWORD, None).await?;
            client.role_add(role).await?;
            if let Some(kind) = permission {
                let below = Permission::new(kind, "ns/").with_prefix();
                client.role_grant_permission(role, below).await?;
            }
            client.user_grant_role(user, role).await?;
        }
        client.auth_enable().await?;
        let root = ConnectOptions::new().with_user("root", PASSWORD);
        let root = Client::connect([etcd.endpoint()], Some(root)).await?;
        Ok(Self { etcd, root })
    }

    fn options(user: &str, password: &str) -> SessionOptions {
        SessionOptions::new(user)
            .namespace("ns")
            .ttl(TTL)
            .credentials(Credentials::new(user, password))
    }

    fn credentials(user: &str) -> Credentials {
        Credentials::new(user, PASSWORD)
    }

    async fn session(&self, user: &str) -> eldest::Result<Session> {
        Session::connect([self.etcd.endpoint()], Self::options(user, PASSWORD)).await
    }

    /// Returns the session, candidate and leadership of the user; `other` waits behind it.
    async fn leading(&self, user: &str) -> Result<(Session, Candidate, Leadership)> {
        let session = self.session(user).await?;
        let mut candidate = session.election("jobs")?.campaign().await?;
        let leadership = timeout(LONG, candidate.elected()).await??;
        Ok((session, candidate, leadership))
    }

    async fn waiting(&self, user: &str) -> Result<(Session, Candidate)> {
        let session = self.session(user).await?;
        let candidate = session.election("jobs")?.campaign().await?;
        Ok((session, candidate))
    }

    /// Checks that etcd holds no key and no lease.
    async fn nothing_is_left(&mut self) -> Result {
        let all = GetOptions::new().with_all_keys().with_keys_only();
        let keys = self.root.get("", Some(all)).await?;
        assert!(keys.kvs().is_empty(), "left: {:?}", keys.kvs());
        let leases = self.root.leases().await?;
        assert_eq!(leases.leases().len(), 0, "no lease is left");
        Ok(())
    }

    async fn logins(&self) -> f64 {
        let ok = r#"grpc_server_handled_total{grpc_method="Authenticate",grpc_code="OK"}"#;
        self.etcd.metric(ok).await
    }
}

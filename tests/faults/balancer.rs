//! Tests one address in front of three members: a real `HAProxy`, which forwards connections and does not understand
//! etcd.

use std::fmt::Write as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use eldest::{Credentials, Session, SessionOptions};
use eldest_testing::{Etcd, EtcdCluster, eventually};
use etcd_client::Client;

use crate::stage::{Result, SOON, options, seconds};
use eldest_fixtures::tools::tool;

const TTL: Duration = seconds(10);
/// The length of a fault: so long that a session without a renewal meanwhile has less than [`LEAST`] left.
const FAULT: Duration = seconds(8);
/// The least time left of a term: a third of the TTL passes between renewals, and the rest is for failed attempts.
const LEAST: Duration = seconds(2);

/// A running `HAProxy`, killed on drop.
struct Balancer {
    child: Child,
    endpoint: String,
    _folder: tempfile::TempDir,
}

impl Balancer {
    /// Starts it in front of these members, without health checks. `None` if tests with it are not wanted.
    async fn start(members: &[Etcd]) -> Result<Option<Self>> {
        let begun = Instant::now();
        while begun.elapsed() < SOON {
            let Some(mut haproxy) = tool("haproxy", "haproxy") else {
                return Ok(None);
            };
            let at = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
            let mut text = format!(
                "defaults\n mode tcp\n timeout connect 1s\n timeout client 1h\n timeout server 1h\n\
                 listen etcd\n bind {at}\n balance roundrobin\n"
            );
            for (number, member) in members.iter().enumerate() {
                writeln!(text, " server m{number} {}", member.address())?;
            }
            let folder = tempfile::tempdir()?;
            let file = folder.path().join("haproxy.cfg");
            std::fs::write(&file, text)?;
            haproxy.arg("-f").arg(&file).arg("-db");
            let child = haproxy
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?;
            let mut balancer = Self {
                child,
                endpoint: format!("http://{at}"),
                _folder: folder,
            };
            // If another process took the port, the program ends, and another port is tried.
            while balancer.child.try_wait()?.is_none() {
                if tokio::net::TcpStream::connect(at).await.is_ok() {
                    return Ok(Some(balancer));
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        Err("HAProxy does not start".into())
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn a_term_survives_each_member_behind_one_address() -> Result {
    each_member_fails(options("a", TTL), async |_| Ok(())).await
}

#[tokio::test]
async fn a_term_of_a_user_survives_each_member_behind_one_address() -> Result {
    const PASSWORD: &str = "canary-81b2";
    let user = Credentials::new("root", PASSWORD);
    let options = options("a", TTL).credentials(user);
    each_member_fails(options, async |client| {
        client.user_add("root", PASSWORD, None).await?;
        client.role_add("root").await?;
        client.user_grant_role("root", "root").await?;
        client.auth_enable().await?;
        Ok(())
    })
    .await
}

/// Returns the member that leads etcd, by its metrics: with users enabled, its status needs a password.
async fn leader_of(cluster: &EtcdCluster) -> Result<usize> {
    Ok(eventually(SOON, "a leader of etcd", async || {
        for (index, member) in cluster.members().iter().enumerate() {
            let leads = member.try_metric("etcd_server_is_leader").await;
            if leads.is_ok_and(|leads| leads > 0.0) {
                return Some(index);
            }
        }
        None
    })
    .await?)
}

/// Kills each member for a while, then stops each. The term continues throughout.
///
/// etcd's leader is stopped last and not resumed: a resumed leader of etcd may revoke leases that are still alive, as
/// docs/guarantees.md explains; no client can prevent that.
async fn each_member_fails(
    options: SessionOptions,
    prepare: impl AsyncFn(&mut Client) -> Result,
) -> Result {
    let mut cluster = EtcdCluster::start(3).await?;
    prepare(&mut Client::connect(cluster.endpoints(), None).await?).await?;
    let Some(balancer) = Balancer::start(cluster.members()).await? else {
        return Ok(());
    };
    let session = Session::connect([&balancer.endpoint], options).await?;
    let mut candidate = session.election("e")?.campaign().await?;
    let leadership = tokio::time::timeout(SOON, candidate.elected()).await??;
    for killed in [true, false] {
        let leader = leader_of(&cluster).await?;
        let followers = (0..3).filter(|member| *member != leader);
        for member in followers.chain([leader]) {
            if killed {
                cluster.member(member).kill();
            } else {
                cluster.member(member).pause();
            }
            let begun = Instant::now();
            while begun.elapsed() < FAULT {
                let left = leadership.valid_until().time_left();
                let why = leadership.lost_reason();
                assert!(
                    leadership.is_valid() && left > LEAST,
                    "member {member}, killed: {killed}, after {:?}: {left:?} left, {why:?}",
                    begun.elapsed()
                );
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            if killed {
                cluster.member(member).restart().await?;
            } else if member == leader {
                break;
            } else {
                cluster.member(member).resume();
            }
            eventually(SOON, "a renewal", async || {
                (leadership.valid_until().time_left() > TTL * 2 / 3).then_some(())
            })
            .await?;
        }
    }
    Ok(())
}

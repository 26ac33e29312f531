//! Gives etcd users: a root, the agent, and each node, with one role for all but the root.

use eldest::Credentials;
use eldest_testing::EtcdCluster;
use etcd_client::{Client, ConnectOptions, Permission};

use crate::Result;

/// The password of all users.
pub(crate) const PASSWORD: &str = "secret-of-the-harness";
/// The second password, to which passwords are changed.
pub(crate) const OTHER: &str = "another-secret";
/// The role of nodes and agent, for all keys below [`FOLDERS`].
pub(crate) const ROLE: &str = "node";
/// The agent's user.
pub(crate) const AGENT: &str = "agent";
const ROOT: &str = "root";
/// The folders of the elections, and of the nodes' counters.
const FOLDERS: [&str; 2] = ["eldest/", "eldest-node/"];
/// Arguments of etcd: the cheapest hash, and tokens that expire while nodes use them.
pub(crate) const ARGS: [&str; 2] = ["--bcrypt-cost=4", "--auth-token-ttl=10"];

/// Makes the users of these nodes, and enables authentication.
pub(crate) async fn enable(cluster: &mut EtcdCluster, nodes: usize) -> Result {
    let mut client = cluster.members()[0].client().await;
    client.role_add(ROLE).await?;
    for folder in FOLDERS {
        let below = Permission::read_write(folder).with_prefix();
        client.role_grant_permission(ROLE, below).await?;
    }
    client.role_add(ROOT).await?;
    client.user_add(ROOT, PASSWORD, None).await?;
    client.user_grant_role(ROOT, ROOT).await?;
    let nodes = (1..=nodes).map(|number| format!("n{number}"));
    for name in nodes.chain([AGENT.to_owned()]) {
        client.user_add(&*name, PASSWORD, None).await?;
        client.user_grant_role(&*name, ROLE).await?;
    }
    client.auth_enable().await?;
    cluster.set_user(ROOT, PASSWORD);
    Ok(())
}

/// Connects a client to that server as its root.
pub(crate) async fn root(endpoint: String) -> Result<Client> {
    let options = ConnectOptions::new()
        .with_user(ROOT, PASSWORD)
        .with_auto_token_refresh(true);
    Ok(Client::connect([endpoint], Some(options)).await?)
}

/// Returns the credentials of a session.
pub(crate) fn credentials(name: &str) -> Credentials {
    Credentials::new(name, PASSWORD)
}

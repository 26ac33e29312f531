//! Tests an etcd with users: a user who may not write the keys of a lease cannot prove that it owns them, and an agent
//! reports that its user lacks permissions. Also tests an agent of another user of the system.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use eldest_testing::Etcd;
use etcd_client::{Client, ConnectOptions, DeleteOptions, Permission, PermissionType, PutOptions};

use crate::process::{Process, start};
use crate::stage::{PROGRAM, Result, Stage, has, is_root};

/// Starts an etcd on which `leader` may write below `eldest/`, `reader` may read there, and `mallory` may write
/// elsewhere. Each user's password is its name.
async fn stage_with_users() -> Result<Stage> {
    // The cheapest hash is enough, because hashing is not under test.
    let etcd = Etcd::builder().arg("--bcrypt-cost=4").start().await?;
    let mut client = etcd.client().await;
    let users = [
        ("root", None),
        ("leader", Some((PermissionType::Readwrite, "eldest/"))),
        ("reader", Some((PermissionType::Read, "eldest/"))),
        ("mallory", Some((PermissionType::Readwrite, "mallory/"))),
    ];
    for (user, permission) in users {
        client.user_add(user, user, None).await?;
        client.role_add(user).await?;
        if let Some((kind, below)) = permission {
            let below = Permission::new(kind, below).with_prefix();
            client.role_grant_permission(user, below).await?;
        }
        client.user_grant_role(user, user).await?;
    }
    client.auth_enable().await?;
    let mut stage = Stage::with(etcd).await?;
    stage.client = user(&stage.etcd, "root").await?;
    Ok(stage)
}

async fn user(etcd: &Etcd, name: &str) -> Result<Client> {
    let options = ConnectOptions::new().with_user(name, name);
    Ok(Client::connect([etcd.endpoint()], Some(options)).await?)
}

async fn agent_of(stage: &Stage, name: &str) -> Result<Process> {
    let variables = [("ETCD_USER", name)];
    let endpoint = stage.etcd.endpoint();
    stage.agent_through(&endpoint, &[], &variables).await
}

fn mallorys_hello() -> serde_json::Value {
    serde_json::json!({"hello": {
        "version": 2, "identity": "mallory", "namespace": "mallory/", "linger_ms": 0,
    }})
}

#[tokio::test]
async fn user_without_write_access_cannot_prove_a_lease() -> Result {
    let stage = stage_with_users().await?;
    let agent = agent_of(&stage, "root").await?;
    let victim = stage.lease("victim").await?;
    let mut peer = stage.peer()?;
    peer.ask("own", &mallorys_hello()).await?;
    let key = peer.ask_to_guard(victim).await?;
    assert!(key.starts_with("mallory/~guard/"), "{key}");
    let under = PutOptions::new().with_lease(victim);
    let mut mallory = user(&stage.etcd, "mallory").await?;
    let denied = mallory.put(key.as_str(), "", Some(under)).await;
    let denied = denied.err().ok_or("etcd let another user use the lease")?;
    assert!(denied.to_string().contains("permission denied"), "{denied}");
    mallory.put(key.as_str(), "", None).await?;
    assert!(peer.prove(victim).await?.is_some());
    peer.kill()?;
    agent.guards(0).await?;
    assert!(stage.lives(victim).await?);
    Ok(())
}

/// Registers a lease without keys as mallory, and returns the process.
async fn mallory_proves(stage: &Stage, lease: i64) -> Result<Process> {
    let mut peer = stage.peer()?;
    peer.ask("own", &mallorys_hello()).await?;
    let key = peer.ask_to_guard(lease).await?;
    let under = PutOptions::new().with_lease(lease);
    let mut mallory = user(&stage.etcd, "mallory").await?;
    mallory.put(key.as_str(), "", Some(under)).await?;
    assert_eq!(peer.prove(lease).await?, None);
    Ok(peer)
}

/// Between two terms a lease has no keys, and any user may bind one to it.
#[tokio::test]
async fn proof_of_an_empty_lease_deletes_no_later_key_of_its_owner() -> Result {
    let stage = stage_with_users().await?;
    let agent = agent_of(&stage, "root").await?;
    let lease = stage.client.clone().lease_grant(300, None).await?.id();
    let mut mallory = mallory_proves(&stage, lease).await?;
    // Its owner leads again.
    stage.put("eldest/work/key", lease).await?;
    mallory.kill()?;
    stage.agent_logs("outside=1").await?;
    agent.guards(0).await?;
    stage.keys("mallory/", 0).await?;
    stage.keys("eldest/work/", 1).await?;
    let left = stage.client.clone().lease_time_to_live(lease, None).await?;
    assert!(left.ttl() > 0, "the lease was revoked");
    Ok(())
}

#[tokio::test]
async fn a_proof_that_was_taken_back_before_the_death_counts_no_more() -> Result {
    let stage = stage_with_users().await?;
    let agent = agent_of(&stage, "root").await?;
    let lease = stage.client.clone().lease_grant(300, None).await?.id();
    let mut mallory = mallory_proves(&stage, lease).await?;
    let all = DeleteOptions::new().with_prefix();
    user(&stage.etcd, "mallory")
        .await?
        .delete("mallory/", Some(all))
        .await?;
    stage.put("mallory/key", lease).await?;
    mallory.kill()?;
    stage.agent_logs("its proof is no longer bound").await?;
    agent.guards(0).await?;
    stage.keys("mallory/", 1).await
}

/// A session that requires the agent does not campaign, and one that does not continues.
#[tokio::test]
async fn an_agent_whose_user_may_not_read_or_delete_says_so() -> Result {
    for (user, why) in [
        ("mallory", "the guard cannot read"),
        ("reader", "may not delete the keys below"),
    ] {
        let stage = stage_with_users().await?;
        let agent = agent_of(&stage, user).await?;
        let variables = [("ETCD_USER", "leader"), ("CONNECT_TIMEOUT_MS", "5000")];
        let guard = agent.guard();
        let mut required = stage.subject_with(&guard, "required", 1, &[], &variables)?;
        let error = required.says("error Unguarded").await?;
        assert!(error.contains(why), "{error}");
        let optional = guard.replace("agent=", "optional=");
        let mut optional = stage.subject_with(&optional, "optional", 1, &[], &variables)?;
        optional.says("leading work-0").await?;
        let line = stage.agent_logs(why).await?;
        assert!(line.contains("the guard refused a session"), "{line}");
        optional.has_lost_nothing().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_spawned_guard_uses_the_sessions_user() -> Result {
    let stage = stage_with_users().await?;
    let variables = [("ETCD_USER", "leader")];
    let mut leader = stage.subject_with("spawned", "leader", 1, &[], &variables)?;
    let lease = leader.leads().await?;
    leader.kill()?;
    stage.released(lease).await
}

const ANOTHER_USER: &[&str] = &[
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--",
];

#[tokio::test]
async fn agent_of_another_user_guards_only_processes_that_may_write_to_its_socket() -> Result {
    if !is_root() || !has("setpriv") {
        return Ok(());
    }
    let stage = Stage::new().await?;
    // The other user makes its socket there, and may not see the folder of this program.
    std::fs::set_permissions(stage.path("."), Permissions::from_mode(0o777))?;
    let program = stage.path("program");
    std::fs::copy(PROGRAM, &program)?;
    let (endpoint, program) = (stage.etcd.endpoint(), program.to_string_lossy());
    let socket = stage.socket();
    let words = [&*program, "agent", &endpoint, &socket.to_string_lossy()];
    let log = stage.path("agent.log");
    let mut agent = start(&[ANOTHER_USER, &words].concat(), &[], Some(&log))?;
    agent.says("listening").await?;
    agent.socket.clone_from(&socket);
    assert_eq!(std::fs::metadata(&socket)?.uid(), 65_534);

    // A user who may write to another user's directory may have put a socket of their own there.
    let limit = [("CONNECT_TIMEOUT_MS", "1000")];
    let mut wary = stage.subject_with(&agent.guard(), "wary", 1, &[], &limit)?;
    let why = wary.says("error Unguarded").await?;
    assert!(
        why.contains("it belongs to user 65534, who is neither root"),
        "{why}"
    );
    agent.guards(0).await?;
    std::os::unix::fs::chown(stage.path("."), Some(65_534), None)?;

    // root may write to every socket.
    let (mut leader, lease) = stage.leader(&agent.guard()).await?;
    leader.kill()?;
    stage.released(lease).await?;

    std::fs::set_permissions(&socket, Permissions::from_mode(0o600))?;
    let mut third = ANOTHER_USER.to_vec();
    (third[1], third[2]) = ("--reuid=65533", "--regid=65533");
    let guard = agent.guard();
    third.extend([&*program, "subject", &endpoint, &guard, "third", "1"]);
    let mut refused = start(&third, &limit, None)?;
    let why = refused.says("error Unguarded").await?;
    let expected = format!(
        "this process may not use the agent at {}: its user must be in the socket's group",
        socket.display()
    );
    assert!(why.contains(&expected), "{why}");
    agent.guards(0).await
}

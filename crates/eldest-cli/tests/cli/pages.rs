//! Tests the commands of docs/security.md and docs/operations.md: they work, and the permissions that they grant
//! suffice.

use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::Duration;

use eldest::{Credentials, Session, SessionOptions};
use eldest_fixtures::text::has;
use eldest_fixtures::tools::etcdctl;
use tokio::time::timeout;

use crate::common::{
    DENIED, DONE, Ended, Node, Result, SICK, SOON, Stage, at, join, node, put, run,
};
use crate::terminal::Terminal;

const SECURITY: &str = include_str!("../../../../docs/security.md");
const OPERATIONS: &str = include_str!("../../../../docs/operations.md");

/// A TTL so long that nothing expires while a test runs, even if answers take long.
const TTL: &str = "60s";

/// Returns the `sh` blocks of a page from that heading up to the next one of the same level.
fn blocks(page: &str, heading: &str) -> Vec<String> {
    let level = heading.split(' ').next().unwrap_or_default();
    let (_, rest) = page.split_once(heading).expect("the page has that heading");
    let end = rest.find(&format!("\n{level} ")).unwrap_or(rest.len());
    let parts = rest[..end].split("```sh\n").skip(1);
    let block = |part: &str| part.split("```").next().map(str::to_owned);
    parts.filter_map(block).collect()
}

/// Returns an etcd with a folder in which `etcdctl` and `eldest` are found, or `None` if the tests are to run without
/// etcdctl.
async fn stage() -> Result<Option<Stage>> {
    let Some(etcdctl) = etcdctl() else {
        return Ok(None);
    };
    let stage = Stage::new().await?;
    std::fs::create_dir(stage.path("bin"))?;
    symlink(etcdctl, stage.path("bin/etcdctl"))?;
    symlink(env!("CARGO_BIN_EXE_eldest"), stage.path("bin/eldest"))?;
    Ok(Some(stage))
}

/// Starts an etcd and runs the commands of docs/security.md on it: afterwards there are a node's user, an observer's,
/// and root.
async fn guarded() -> Result<Option<Stage>> {
    let Some(stage) = stage().await? else {
        return Ok(None);
    };
    for user in ["billing", "dashboard", "root"] {
        let file = stage.path(&format!("{user}.password"));
        std::fs::write(file, format!("secret-{user}\n"))?;
    }
    let blocks = blocks(SECURITY, "## Users and roles");
    assert_eq!(blocks.len(), 1, "one block of commands: {blocks:?}");
    stage.types(&blocks[0]).await?.with(0);
    Ok(Some(stage))
}

impl Stage {
    /// Runs a block; the first command that fails ends it.
    async fn types(&self, block: &str) -> Result<Ended> {
        let path = std::env::var("PATH").unwrap_or_default();
        let endpoint = self.etcd.endpoint();
        let mut shell = Command::new("sh");
        shell
            .args(["-e", "-c", block])
            .current_dir(self.folder())
            .env("PATH", format!("{}:{path}", self.file("bin")))
            .env("ETCDCTL_API", "3")
            .env("ETCDCTL_ENDPOINTS", &endpoint)
            .env("ELDEST_ENDPOINTS", &endpoint)
            .env("ELDEST_SOCKET", self.path("agent.sock"));
        run(shell).await
    }

    /// Returns the command as that user.
    fn as_user(&self, user: &str, args: &[&str]) -> Command {
        let mut command = at(&self.etcd, args);
        let file = self.path(&format!("{user}.password"));
        command
            .env("ELDEST_USER", user)
            .env("ELDEST_PASSWORD_FILE", file);
        command.env("ELDEST_TTL", TTL);
        command
    }

    async fn session(&self, options: SessionOptions) -> Result<Session> {
        let access = Credentials::new("billing", "secret-billing");
        let options = options.ttl(Duration::from_secs(60)).credentials(access);
        Ok(Session::connect([self.etcd.endpoint()], options).await?)
    }
}

/// Runs the commands that show who leads "jobs".
async fn observes(by: &impl Fn(&[&str]) -> Command) -> Result {
    let status = run(by(&["status", "jobs"])).await?;
    assert!(status.text().contains("billing leads"), "{status:?}");
    let mut watch = Node::start("watch", by(&["watch", "jobs"]))?;
    has(&watch.line().await?, &["billing"]);
    let mut top = Terminal::start(by(&["top", "--interval", "100ms"]), 16, 100)?;
    top.shows("the leader", |screen| screen.contains("billing leads"))
        .await?;
    top.type_in("q")?;
    assert_eq!(top.end().await?, DONE);
    Ok(())
}

/// Tests of the library show that these permissions suffice for its features.
#[tokio::test]
async fn the_documented_role_for_nodes_suffices_for_every_command() -> Result {
    let Some(stage) = guarded().await? else {
        return Ok(());
    };
    let billing = |args: &[&str]| stage.as_user("billing", args);
    let done = async |args: &[&str]| {
        let ended = run(billing(args)).await?;
        assert_eq!(ended.code, DONE, "{args:?}: {ended:?}");
        Result::Ok(ended)
    };
    let doctor = done(&["doctor", "--clock", "0s"]).await?;
    has(&doctor.stdout, &["may read and write all below"]);

    let me = stage.session(SessionOptions::new("billing")).await?;
    let mut candidate = join(&me, "jobs").await?;
    let leadership = timeout(SOON, candidate.elected()).await??;
    observes(&billing).await?;
    let before = leadership.fencing_token();
    done(&["evict", "jobs", "--id", "billing", "--yes"]).await?;
    timeout(SOON, leadership.lost().cancelled()).await?;
    drop(leadership);
    let again = timeout(SOON, candidate.elected()).await??;
    assert!(again.fencing_token() > before);
    again.resign().await?;
    me.close().await?;

    done(&["run", "task", "--", "true"]).await?;
    done(&["lock", "task", "--", "true"]).await?;
    let serve = ["serve", "jobs", "--id", "s", "--listen", "127.0.0.1:0"];
    Node::listening("s", billing(&serve)).await?.close().await
}

#[tokio::test]
async fn documented_role_for_observers_observes_and_changes_nothing() -> Result {
    let Some(stage) = guarded().await? else {
        return Ok(());
    };
    let me = stage.session(SessionOptions::new("billing")).await?;
    let mut candidate = join(&me, "jobs").await?;
    let leadership = timeout(SOON, candidate.elected()).await??;
    let dashboard = |args: &[&str]| stage.as_user("dashboard", args);

    let doctor = run(dashboard(&["doctor", "--clock", "0s", "--observer"])).await?;
    assert_eq!(doctor.code, DONE, "{doctor:?}");
    observes(&dashboard).await?;
    let observing = ["serve", "jobs", "--observe", "--listen", "127.0.0.1:0"];
    Node::listening("d", dashboard(&observing))
        .await?
        .close()
        .await?;

    for refused in [
        vec!["evict", "jobs", "--id", "billing", "--yes"],
        vec!["evacuate", "dc1"],
        vec!["lock", "task", "--", "true"],
        vec!["run", "task", "--", "true"],
    ] {
        let ended = run(dashboard(&refused)).await?;
        assert_eq!(ended.code, DENIED, "{refused:?}: {ended:?}");
    }
    assert!(leadership.is_valid());
    leadership.resign().await?;
    me.close().await?;
    Ok(())
}

/// Campaigns with the guard of that agent's user, which is required.
#[cfg(target_os = "linux")]
async fn leads_under_an_agent(stage: &Stage, user: &str) -> Result<eldest::Result<()>> {
    let socket = stage.file("agent.sock");
    let command = stage.as_user(user, &["agent", "--socket", &socket]);
    let mut agent = Node::start("agent", command)?;
    assert_eq!(agent.line().await?, format!("listening at {socket}"));
    let options = SessionOptions::new("billing")
        .connect_timeout(SOON / 2)
        .guard(eldest::guard::Guard::agent_at(&socket));
    let me = stage.session(options).await?;
    let led = async {
        let mut candidate = me.election("jobs")?.campaign().await?;
        candidate.elected().await?.resign().await
    };
    let led = timeout(SOON, led).await?;
    me.close().await?;
    agent.close().await?;
    Ok(led)
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn documented_role_for_nodes_is_the_least_that_suffices_for_an_agent() -> Result {
    let Some(stage) = guarded().await? else {
        return Ok(());
    };
    leads_under_an_agent(&stage, "billing").await??;
    let refused = leads_under_an_agent(&stage, "dashboard").await?;
    let refused = refused.expect_err("the agent may not delete these keys");
    assert_eq!(refused.kind(), eldest::ErrorKind::Unguarded);
    assert!(refused.to_string().contains("readwrite"), "{refused}");
    Ok(())
}

/// Runs the page's commands in their order, on an etcd with a leader and with a key that no session owns.
#[tokio::test]
async fn the_runbooks_commands_work() -> Result {
    let Some(stage) = stage().await? else {
        return Ok(());
    };
    let mut guard = at(&stage.etcd, &["agent"]);
    guard.env("ELDEST_SOCKET", stage.path("agent.sock"));
    let mut agent = Node::start("agent", guard)?;
    agent.line().await?;
    let a = node(&stage.etcd, "node-a").await?;
    let mut candidate = join(&a, "billing/scheduler").await?;
    let leadership = timeout(SOON, candidate.elected()).await??;
    let commands = blocks(OPERATIONS, "# Operating");
    assert!(commands.len() > 7, "{commands:?}");
    for block in &commands {
        if block.contains("--candidate immortal") {
            let mut client = stage.etcd.client().await;
            put(&mut client, "eldest/billing/scheduler/immortal", "old").await?;
        }
        let ended = stage.types(block).await?;
        let code = ended.code;
        // The doctor may complain about a cluster of one member on a busy machine.
        let fine = code == 0 || (block.starts_with("eldest doctor") && code == SICK);
        // etcdctl prints its usage, and nothing else, for a command that it does not know.
        let fine = fine && !ended.with(code).contains("USAGE");
        assert!(fine, "{block}: {ended:?}");
        if block.contains("--id node-a") {
            timeout(SOON, leadership.lost().cancelled()).await?;
        }
    }
    assert!(stage.path("backup.db").metadata()?.len() > 0);
    Ok(())
}

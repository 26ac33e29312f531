//! Tests the commands of docs/security.md and docs/operations.md: they work, and the permissions that they grant
//! suffice.

use std::os::unix::fs::symlink;
use std::time::Duration;

use eldest::{Credentials, Session, SessionOptions};
use eldest_fixtures::text::has;
use eldest_testing::{Etcd, eventually};
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::timeout;

use crate::common::{DENIED, DONE, Result, Running, SICK, SOON, at, join, node, put, run};
use crate::terminal::Terminal;
use eldest_fixtures::hang::{closed, idle};
use eldest_fixtures::tools::etcdctl;

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

/// A folder in which `etcdctl` and `eldest` are found, and the variables that they receive.
struct Shell {
    folder: TempDir,
    endpoint: String,
}

impl Shell {
    /// Returns `None` if the tests are to run without etcdctl.
    fn new(etcd: &Etcd) -> Result<Option<Self>> {
        let Some(etcdctl) = etcdctl() else {
            return Ok(None);
        };
        let folder = tempfile::tempdir()?;
        std::fs::create_dir(folder.path().join("bin"))?;
        let there = |name: &str| folder.path().join("bin").join(name);
        symlink(etcdctl, there("etcdctl"))?;
        symlink(env!("CARGO_BIN_EXE_eldest"), there("eldest"))?;
        let endpoint = etcd.endpoint();
        Ok(Some(Self { folder, endpoint }))
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a block; the first command that fails ends it.
    async fn types(&self, block: &str) -> Result<(i32, String)> {
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", self.path("bin").display());
        let mut shell = Command::new("sh");
        shell
            .args(["-e", "-c", block])
            .current_dir(self.folder.path())
            .env("PATH", path)
            .env("ETCDCTL_API", "3")
            .env("ETCDCTL_ENDPOINTS", &self.endpoint)
            .env("ELDEST_ENDPOINTS", &self.endpoint)
            .env("ELDEST_SOCKET", self.path("agent.sock"))
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true);
        let output = timeout(SOON * 2, shell.output()).await;
        let output = output.map_err(|_| format!("it does not end: {block}"))??;
        let said = [output.stdout, output.stderr].map(|b| String::from_utf8_lossy(&b).into_owned());
        Ok((output.status.code().ok_or("a signal")?, said.concat()))
    }
}

/// Starts an etcd and runs the commands of docs/security.md on it: afterwards there are a node's user, an observer's,
/// and root.
async fn guarded() -> Result<Option<(Etcd, Shell)>> {
    // The cheapest hash is enough, because hashing is not under test.
    let etcd = Etcd::builder().arg("--bcrypt-cost=4").start().await?;
    let Some(shell) = Shell::new(&etcd)? else {
        return Ok(None);
    };
    for user in ["billing", "dashboard", "root"] {
        let file = shell.path(&format!("{user}.password"));
        std::fs::write(file, format!("secret-{user}\n"))?;
    }
    let blocks = blocks(SECURITY, "## Users and roles");
    assert_eq!(blocks.len(), 1, "one block of commands: {blocks:?}");
    let (code, said) = shell.types(&blocks[0]).await?;
    assert_eq!(code, 0, "{said}");
    Ok(Some((etcd, shell)))
}

/// Returns the command as that user.
fn as_user(etcd: &Etcd, shell: &Shell, user: &str, args: &[&str]) -> Command {
    let mut command = at(etcd, args);
    let file = shell.path(&format!("{user}.password"));
    command
        .env("ELDEST_USER", user)
        .env("ELDEST_PASSWORD_FILE", file);
    command.env("ELDEST_TTL", TTL);
    command
}

async fn session(etcd: &Etcd, user: &str) -> Result<Session> {
    let access = Credentials::new(user, format!("secret-{user}"));
    let options = SessionOptions::new(user)
        .ttl(Duration::from_secs(60))
        .credentials(access);
    Ok(Session::connect([etcd.endpoint()], options).await?)
}

/// Starts `eldest serve`, waits until it says that it is ready, and ends it.
async fn serves(command: Command) -> Result {
    let mut serve = Running::start(command)?;
    let line = serve.line().await?;
    let address = line.strip_prefix("listening at http://");
    let address = address.and_then(|rest| rest.strip_suffix('/'));
    let address = address
        .ok_or_else(|| format!("it says {line:?}"))?
        .to_owned();
    let ready = async || {
        let request = "GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let asked = idle(address.parse().ok()?, request).await.ok()?;
        let answer = closed(asked, SOON).await.ok()?;
        answer.starts_with("HTTP/1.1 200 ").then_some(())
    };
    eventually(SOON, "it is ready", ready).await?;
    serve.signal(rustix::process::Signal::TERM)?;
    let (code, said) = serve.end().await?;
    assert_eq!(code, DONE, "{said}");
    Ok(())
}

/// Runs the commands that show who leads "jobs".
async fn observes(by: &impl Fn(&[&str]) -> Command) -> Result {
    let status = run(by(&["status", "jobs"])).await?;
    assert!(status.text().contains("billing leads"), "{status:?}");
    let mut watch = Running::start(by(&["watch", "jobs"]))?;
    assert!(watch.line().await?.contains("billing"));
    watch.close().kill().await?;
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
    let Some((etcd, shell)) = guarded().await? else {
        return Ok(());
    };
    let billing = |args: &[&str]| as_user(&etcd, &shell, "billing", args);
    let done = async |args: &[&str]| {
        let ended = run(billing(args)).await?;
        assert_eq!(ended.code, DONE, "{args:?}: {ended:?}");
        Result::Ok(ended)
    };
    let doctor = done(&["doctor", "--clock", "0s"]).await?;
    has(&doctor.stdout, &["may read and write all below"]);

    let me = session(&etcd, "billing").await?;
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
    serves(billing(&serve)).await
}

#[tokio::test]
async fn documented_role_for_observers_observes_and_changes_nothing() -> Result {
    let Some((etcd, shell)) = guarded().await? else {
        return Ok(());
    };
    let me = session(&etcd, "billing").await?;
    let mut candidate = join(&me, "jobs").await?;
    let leadership = timeout(SOON, candidate.elected()).await??;
    let dashboard = |args: &[&str]| as_user(&etcd, &shell, "dashboard", args);

    let doctor = run(dashboard(&["doctor", "--clock", "0s", "--observer"])).await?;
    assert_eq!(doctor.code, DONE, "{doctor:?}");
    observes(&dashboard).await?;
    let observing = ["serve", "jobs", "--observe", "--listen", "127.0.0.1:0"];
    serves(dashboard(&observing)).await?;

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
async fn leads_under_an_agent(
    etcd: &Etcd,
    shell: &Shell,
    user: &str,
) -> Result<eldest::Result<()>> {
    let socket = shell.path("agent.sock");
    let path = socket.to_str().ok_or("a path")?;
    let mut agent = Running::start(as_user(etcd, shell, user, &["agent", "--socket", path]))?;
    assert_eq!(agent.line().await?, format!("listening at {path}"));
    let options = SessionOptions::new("billing")
        .ttl(Duration::from_secs(60))
        .connect_timeout(SOON / 2)
        .credentials(Credentials::new("billing", "secret-billing"))
        .guard(eldest::guard::Guard::agent_at(&socket));
    let me = Session::connect([etcd.endpoint()], options).await?;
    let led = async {
        let mut candidate = me.election("jobs")?.campaign().await?;
        candidate.elected().await?.resign().await
    };
    let led = timeout(SOON, led).await?;
    me.close().await?;
    agent.signal(rustix::process::Signal::TERM)?;
    let (code, said) = agent.end().await?;
    assert_eq!(code, DONE, "{said}");
    Ok(led)
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn documented_role_for_nodes_is_the_least_that_suffices_for_an_agent() -> Result {
    let Some((etcd, shell)) = guarded().await? else {
        return Ok(());
    };
    leads_under_an_agent(&etcd, &shell, "billing").await??;
    let refused = leads_under_an_agent(&etcd, &shell, "dashboard").await?;
    let refused = refused.expect_err("the agent may not delete these keys");
    assert_eq!(refused.kind(), eldest::ErrorKind::Unguarded);
    assert!(refused.to_string().contains("readwrite"), "{refused}");
    Ok(())
}

/// Runs the page's commands in their order, on an etcd with a leader and with a key that no session owns.
#[tokio::test]
async fn the_runbooks_commands_work() -> Result {
    let etcd = Etcd::start().await?;
    let Some(shell) = Shell::new(&etcd)? else {
        return Ok(());
    };
    let mut guard = at(&etcd, &["agent"]);
    guard.env("ELDEST_SOCKET", shell.path("agent.sock"));
    let mut agent = Running::start(guard)?;
    agent.line().await?;
    let a = node(&etcd, "node-a").await?;
    let mut candidate = join(&a, "billing/scheduler").await?;
    let leadership = timeout(SOON, candidate.elected()).await??;
    let commands = blocks(OPERATIONS, "# Operating");
    assert!(commands.len() > 7, "{commands:?}");
    for block in &commands {
        if block.contains("--candidate immortal") {
            let mut client = etcd.client().await;
            put(&mut client, "eldest/billing/scheduler/immortal", "old").await?;
        }
        let (code, said) = shell.types(block).await?;
        // The doctor may complain about a cluster of one member on a busy machine.
        let fine = code == 0 || (block.starts_with("eldest doctor") && code == SICK);
        // etcdctl prints its usage, and nothing else, for a command that it does not know.
        let fine = fine && !said.contains("USAGE");
        assert!(fine, "{block} ended with {code}: {said}");
        if block.contains("--id node-a") {
            timeout(SOON, leadership.lost().cancelled()).await?;
        }
    }
    assert!(shell.path("backup.db").metadata()?.len() > 0);
    Ok(())
}

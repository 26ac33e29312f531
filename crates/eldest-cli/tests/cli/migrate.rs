//! Tests the nested commands of docs/migrate.md. A node of the old version, a node that holds both elections and a node
//! of the new version run their program one after the other, never together.

use std::path::Path;
use std::process::Command;

use eldest_fixtures::tools::etcdctl;
use eldest_testing::{Etcd, eventually};
use etcd_client::{Client, GetOptions};
use rustix::process::Signal;

use crate::common::{Node, Result, SOON, at, keys};

const PAGE: &str = include_str!("../../../../docs/migrate.md");

/// A program that writes to a diary when it begins and ends. It ends on SIGTERM, or when it finds a file.
const PROGRAM: &str = r#"
    trap 'echo "$0 ends" >> diary' EXIT
    trap 'exit 0' TERM
    echo "$0 begins" >> diary
    while [ ! -e "$0.stop" ]; do sleep 0.05; done
"#;

/// Returns the page's command that holds both elections.
fn documented() -> Vec<&'static str> {
    let mut lines = PAGE.lines().filter(|line| line.starts_with("eldest run "));
    let line = lines
        .find(|line| line.contains("etcdctl lock"))
        .expect("a command");
    line.split_whitespace().skip(1).collect()
}

/// Replaces the page's program by `PROGRAM` with that name, and `etcdctl` by its path.
fn with_program<'a>(args: &[&'a str], name: &'a str, etcdctl: &'a str) -> Vec<&'a str> {
    let replaced = args.iter().flat_map(|arg| match *arg {
        "./scheduler" => vec!["sh", "-c", PROGRAM, name],
        "etcdctl" => vec![etcdctl],
        other => vec![other],
    });
    replaced.collect()
}

fn diary(folder: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(folder.join("diary")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

async fn written(folder: &Path, last: &str) -> Result {
    let there = async || (diary(folder).last()? == last).then_some(());
    Ok(eventually(SOON, format!("the diary says {last:?}"), there).await?)
}

async fn queue(client: &Client, prefix: &str, length: i64) -> Result {
    let count = async || {
        let options = GetOptions::new().with_prefix().with_count_only();
        let answer = client.clone().get(prefix, Some(options)).await.ok()?;
        (answer.count() == length).then_some(())
    };
    Ok(eventually(SOON, format!("{length} keys below {prefix}"), count).await?)
}

#[tokio::test]
async fn old_both_and_new_never_run_together() -> Result {
    let Some(etcdctl) = etcdctl() else {
        return Ok(());
    };
    let etcdctl = etcdctl.to_str().ok_or("its path")?;
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let start = |name: &str, mut command: Command| {
        command
            .current_dir(folder)
            .env("ETCDCTL_API", "3")
            .env("ETCDCTL_ENDPOINTS", etcd.endpoint());
        Node::start(name, command)
    };

    let both = documented();
    let inner = both
        .iter()
        .position(|arg| *arg == "etcdctl")
        .ok_or("etcdctl")?;
    let lock = *both.get(inner + 2).ok_or("the old lock")?;
    let election = *both.get(1).ok_or("the election")?;
    let mut old = Command::new(etcdctl);
    old.args(with_program(&both[inner + 1..], "old", etcdctl));
    let mut old = start("old", old)?;
    written(folder, "old begins").await?;
    let mut both = start("both", at(&etcd, &with_program(&both, "both", etcdctl)))?;
    queue(&client, &format!("{lock}/"), 2).await?;
    let new = ["run", election, "--id", "new", "--", "./scheduler"];
    let mut new = start("new", at(&etcd, &with_program(&new, "new", etcdctl)))?;
    queue(&client, &format!("eldest/{election}/"), 2).await?;

    std::fs::write(folder.join("old.stop"), "")?;
    written(folder, "both begins").await?;
    old.end().await?;
    both.signal(Signal::TERM);
    written(folder, "new begins").await?;
    both.end().await?;
    new.stop().await?;
    let wanted = [
        "old begins",
        "old ends",
        "both begins",
        "both ends",
        "new begins",
        "new ends",
    ];
    assert_eq!(diary(folder), wanted);
    assert_eq!(keys(&mut client).await?, [""; 0]);
    Ok(())
}

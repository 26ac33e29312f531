//! Tests nodes whose listening socket breaks: other nodes must lead, because these no longer answer.

use std::fs;
use std::net::SocketAddr;

use eldest_fixtures::http::{answers, get};
use eldest_testing::eventually;
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::shared::{Node, Result, SOON, Stage};

/// Breaks the listening socket of a process from outside: `accept` fails from then on.
fn break_listener(process: i32, at: SocketAddr) -> Result {
    let sockets = fs::read_to_string(format!("/proc/{process}/net/tcp"))?;
    // The kernel's format: own address and port, the peer's, the state; the tenth column is the inode.
    let port = format!(":{:04X}", at.port());
    let inode = sockets.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let listens = words.get(1)?.ends_with(&port) && *words.get(3)? == "0A";
        listens.then(|| words.get(9).copied()).flatten()
    });
    let wanted = format!("socket:[{}]", inode.ok_or("nobody listens")?);
    let mut descriptors = fs::read_dir(format!("/proc/{process}/fd"))?.filter_map(|entry| {
        let entry = entry.ok()?;
        let is_it = fs::read_link(entry.path()).is_ok_and(|link| link.as_os_str() == &*wanted);
        is_it
            .then(|| entry.file_name().to_string_lossy().parse().ok())
            .flatten()
    });
    let descriptor = descriptors.next().ok_or("it is not this process's")?;
    let process = Pid::from_raw(process).ok_or("no process")?;
    let process = pidfd_open(process, PidfdFlags::empty())?;
    let socket = pidfd_getfd(process, descriptor, PidfdGetfdFlags::empty())?;
    Ok(shutdown(socket, Shutdown::Both)?)
}

/// Asserts that the second node takes over, long before a lease expires, when the first cannot accept connections, and
/// that the first ends with an error.
async fn another_leads(mut first: Node, second: &Node) -> Result {
    answers(first.at, "/leader", 200).await?;
    assert_eq!(get(second.at, "/leader").await?.status, 503);
    break_listener(first.pid(), first.at)?;
    answers(second.at, "/leader", 200).await?;
    let status = first.end().await?;
    assert!(
        status.code().is_some_and(|code| code != 0),
        "{status}: {}",
        first.log()
    );
    Ok(())
}

#[tokio::test]
async fn node_whose_listener_breaks_ends() -> Result {
    let stage = Stage::new().await?;
    let first = stage.node("60s", "a", &[]).await?;
    let second = stage.node("60s", "b", &[]).await?;
    another_leads(first, &second).await
}

#[tokio::test]
async fn node_whose_listener_breaks_ends_its_program_and_resigns() -> Result {
    let stage = Stage::new().await?;
    let mut nodes = Vec::new();
    for name in ["a", "b"] {
        let program = format!("echo $$ > {name}.pid; exec sleep 1000");
        let node = stage.runner("60s", name, &program, &[]).await?;
        nodes.push(node);
    }
    let second = nodes.pop().ok_or("two")?;
    let first = nodes.pop().ok_or("two")?;
    let file = stage.path("a.pid");
    let pid = eventually(SOON, "its program has begun", async || {
        fs::read_to_string(&file)
            .ok()
            .filter(|pid| pid.ends_with('\n'))
    })
    .await?;
    another_leads(first, &second).await?;
    let gone = !fs::exists(format!("/proc/{}", pid.trim()))?;
    assert!(gone, "its program is alive");
    Ok(())
}

//! Carries out a test's orders: ways in which a process ends, and events that look like an end.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use eldest::Session;
use rustix::io::FdFlags;
use rustix::net::{AddressFamily, Shutdown, SocketType, sockopt};
use rustix::process::{
    PidfdFlags, PidfdGetfdFlags, Signal, getpid, kill_process, pidfd_getfd, pidfd_open,
};

/// Carries out one line of the standard input.
pub(crate) async fn obey(order: &str, sessions: &[Session]) -> Result<()> {
    match order {
        "close" => {
            for session in sessions {
                session.close().await?;
            }
            println!("closed");
        }
        list if list.starts_with("endpoints ") => {
            for session in sessions {
                session.set_endpoints(list[10..].split(' ')).await?;
            }
            println!("endpoints set");
        }
        also if also.starts_with("also ") => {
            let session = sessions.first().context("no session")?;
            crate::lives::add(&also[5..], session)?;
        }
        other => end(other)?,
    }
    Ok(())
}

/// Carries out an order that needs no session.
pub(crate) fn end(order: &str) -> Result<()> {
    let (word, rest) = order.split_once(' ').unwrap_or((order, ""));
    match word {
        "abort" => std::process::abort(),
        "kill" => kill_process(getpid(), Signal::KILL)?,
        "pid" => println!("pid {}", getpid().as_raw_nonzero()),
        "hang-up" => {
            for socket in guards()? {
                rustix::net::shutdown(&socket, Shutdown::Both)?;
            }
        }
        "ping" => println!("pong"),
        // The process becomes another program; every file that is closed on `exec` is closed.
        "exec" => bail!("exec: {}", command(rest)?.exec()),
        "exec-by-thread" => {
            let mut command = command(rest)?;
            let thread = std::thread::spawn(move || command.exec());
            bail!("exec: {:?}", thread.join());
        }
        // The guard's socket stays open in the program that this process becomes.
        "keep-and-exec" => {
            for socket in guards()? {
                rustix::io::fcntl_setfd(&socket, FdFlags::empty())?;
                std::mem::forget(socket);
            }
            bail!("exec: {}", command(rest)?.exec())
        }
        // A grandchild has the guard's socket as its standard input.
        "leave" => {
            let socket = guards()?.pop().context("no guard's socket")?;
            let script = "sleep 600 <&0 & echo left $!";
            let status = Command::new("sh")
                .args(["-c", script])
                .stdin(socket)
                .status()?;
            println!("{status}");
        }
        other => bail!("no such order: {other}"),
    }
    std::io::stdout().flush()?;
    Ok(())
}

fn command(words: &str) -> Result<Command> {
    let mut words = words.split(' ');
    let mut command = Command::new(words.next().context("no program")?);
    command.args(words).stdin(Stdio::null());
    Ok(command)
}

/// Returns copies of the sockets that go to guards.
fn guards() -> Result<Vec<OwnedFd>> {
    let own = pidfd_open(getpid(), PidfdFlags::empty())?;
    let mut guards = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_string_lossy().parse()?;
        // A descriptor may have been closed since.
        let Ok(copy) = pidfd_getfd(&own, number, PidfdGetfdFlags::empty()) else {
            continue;
        };
        let kind = sockopt::socket_type(&copy);
        let family = sockopt::socket_domain(&copy);
        if kind == Ok(SocketType::SEQPACKET) && family == Ok(AddressFamily::UNIX) {
            guards.push(copy);
        }
    }
    Ok(guards)
}

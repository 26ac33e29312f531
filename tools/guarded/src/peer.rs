//! Speaks the protocol of guards message by message, as its standard input says, so that a test can stop at every step
//! and send messages that no session would.

use std::fs::File;
use std::io::BufRead;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use anyhow::{Context, Result};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

use crate::orders;
use crate::raw::Raw;

/// A flag for a descriptor of one thread (`PIDFD_THREAD`, Linux 6.9).
const THREAD: PidfdFlags = PidfdFlags::from_bits_retain(0o200);

/// Connects to an agent, writes `received MESSAGE` for each message of the agent, and `parted` when the agent has
/// closed the connection.
pub(crate) fn speak(socket: &str) -> Result<()> {
    let mut raw = Some(Raw::connect(Path::new(socket))?);
    let listening = raw.as_ref().context("connected")?.try_clone()?;
    std::thread::spawn(move || {
        while let Ok(Some(message)) = listening.receive() {
            println!("received {message}");
        }
        println!("parted");
    });
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        match line.splitn(3, ' ').collect::<Vec<_>>()[..] {
            ["send", file, message] => {
                let raw = raw.as_ref().context("parted already")?;
                let file = descriptor(file)?;
                raw.send(message.as_bytes(), file.as_ref().map(AsFd::as_fd))?;
            }
            ["garbage", length] => {
                let raw = raw.as_ref().context("parted already")?;
                // A long message fills the buffer of the socket, unless the kernel refuses it.
                raw.send(&vec![b'{'; length.parse()?], None)?;
            }
            ["part"] => raw = None,
            _ => orders::end(&line)?,
        }
    }
    Ok(())
}

/// Returns the file that goes with a message.
fn descriptor(word: &str) -> Result<Option<OwnedFd>> {
    Ok(match word {
        "none" => None,
        "own" => Some(pidfd_open(getpid(), PidfdFlags::empty())?),
        "thread" => Some(pidfd_open(getpid(), THREAD)?),
        "null" => Some(File::open("/dev/null")?.into()),
        number => {
            let pid = Pid::from_raw(number.parse()?).context("a process is no 0")?;
            Some(pidfd_open(pid, PidfdFlags::empty())?)
        }
    })
}

//! Receives notifications of systemd's protocol, by which a program says that it is ready.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::{Pid, getpgid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::descriptor::register;

/// The longest message that is read. A longer one is read up to here, and is valid all the same.
const LONGEST: usize = 4096;
/// How many open files a message may carry: the protocol sends one, and waits until it is closed.
const MOST_FILES: usize = 1;
/// The line by which a program says that it is ready.
const READY: &[u8] = b"READY=1";

/// A socket at which programs say that they are ready. Any process of the machine may send to it, so each message
/// counts for the process group of its sender alone.
#[derive(Debug)]
pub struct NotifySocket {
    socket: AsyncFd<OwnedFd>,
    name: String,
}

impl NotifySocket {
    /// Opens a socket with that name, which no other process of the machine may have.
    ///
    /// # Errors
    ///
    /// `AddrInUse`: another process has the name. The kernel refuses further sockets.
    pub fn open(name: &str) -> io::Result<Self> {
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        socket.set_nonblocking(true)?;
        set_socket_passcred(&socket, true)?;
        Ok(Self {
            socket: register(socket.into(), Interest::READABLE)?,
            name: name.to_owned(),
        })
    }

    /// Returns the value of the variable `NOTIFY_SOCKET` for the programs.
    pub fn address(&self) -> String {
        format!("@{}", self.name)
    }

    /// Waits until a process of that group says that it is ready. Ignores all other messages. The sender must live until
    /// its message is read.
    ///
    /// # Errors
    ///
    /// The kernel cannot read the socket.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: a message that was read has been considered.
    pub async fn ready(&self, group: i32) -> io::Result<()> {
        loop {
            let read = self.socket.async_io(Interest::READABLE, receive).await?;
            if read.is_some_and(|sender| is_of(sender, group)) {
                return Ok(());
            }
        }
    }

    /// Reads and ignores messages, so that no program waits for room in the socket's queue. Returns when the kernel
    /// cannot read the socket.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe.
    pub async fn ignore(&self) -> io::Error {
        loop {
            let read = self.socket.async_io(Interest::READABLE, receive).await;
            if let Err(error) = read {
                return error;
            }
        }
    }
}

/// Returns true if the process lives and is in that group.
fn is_of(process: Pid, group: i32) -> bool {
    getpgid(Some(process)).is_ok_and(|its| its.as_raw_nonzero().get() == group)
}

/// Reads a message, and returns its sender if it says that a program is ready. Files that came with it are closed.
fn receive(socket: &OwnedFd) -> io::Result<Option<Pid>> {
    let mut bytes = [0; LONGEST];
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES), ScmCredentials(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(socket.as_fd(), &mut parts, &mut ancillary, flags)?;
    let sender = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmCredentials(sender) => Some(sender.pid),
        _ => None,
    });
    let mut lines = bytes[..got.bytes].split(|byte| *byte == b'\n');
    Ok(sender.filter(|_| lines.any(|line| line == READY)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn program_is_ready_once_a_process_of_its_group_says_so() {
        let name = format!("eldest-test-{}", std::process::id());
        let socket = NotifySocket::open(&name).unwrap();
        assert!(NotifySocket::open(&name).is_err(), "the name is taken");
        assert_eq!(socket.address(), format!("@{name}"));
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let sender = UnixDatagram::unbound().unwrap();
        let say = |message: &str| sender.send_to_addr(message.as_bytes(), &address).unwrap();
        let (own, group) = (rustix::process::getpid(), getpgid(None).unwrap());
        let group = group.as_raw_nonzero().get();
        for (message, is_ready) in [
            ("READY=1", true),
            ("STATUS=well\nREADY=1\nMAINPID=1", true),
            ("STATUS=READY=1\nREADY=10", false),
        ] {
            say(message);
            let read = receive(socket.socket.get_ref()).unwrap();
            assert_eq!(read, is_ready.then_some(own), "{message}");
        }
        assert!(is_of(own, group) && !is_of(own, group + 1));
        say("STOPPING=1");
        say("READY=1");
        socket.ready(group).await.unwrap();

        // More than fit into the queue.
        let many = async {
            sender.set_nonblocking(true).unwrap();
            for _ in 0..10_000 {
                while let Err(error) = sender.send_to_addr(b"STATUS=well", &address) {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    tokio::task::yield_now().await;
                }
            }
        };
        tokio::select! {
            () = many => {}
            error = socket.ignore() => panic!("{error}"),
        }
    }
}

//! Sends and receives single messages of the protocol between a session and its guard, also wrong ones, as a test needs
//! them.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// Longer than any answer takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// One end of a connection. Every call blocks.
#[derive(Debug)]
pub(crate) struct Raw(OwnedFd);

/// A socket at which a test plays the agent.
#[derive(Debug)]
pub(crate) struct Listener(OwnedFd);

impl Raw {
    pub(crate) fn connect(path: &Path) -> io::Result<Self> {
        let socket = unbound()?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Self::new(socket)
    }

    fn new(socket: OwnedFd) -> io::Result<Self> {
        set_socket_timeout(&socket, Timeout::Recv, Some(LONG))?;
        Ok(Self(socket))
    }

    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }

    /// Sends those bytes as one message.
    pub(crate) fn send(&self, message: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let files: Vec<BorrowedFd<'_>> = file.into_iter().collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&files));
        }
        let parts = [IoSlice::new(message)];
        rustix::net::sendmsg(&self.0, &parts, &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Receives the next message; `None` when the other end is closed.
    pub(crate) fn receive(&self) -> io::Result<Option<String>> {
        let mut bytes = vec![0; 64 * 1024];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = match rustix::net::recvmsg(&self.0, &mut parts, &mut ancillary, flags) {
            Ok(got) => got.bytes,
            Err(rustix::io::Errno::CONNRESET) => 0,
            Err(error) => return Err(error.into()),
        };
        bytes.truncate(got);
        Ok((got > 0).then(|| String::from_utf8_lossy(&bytes).into_owned()))
    }
}

impl Listener {
    /// Listens at that path, and replaces any file there.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        let _ = std::fs::remove_file(path);
        let socket = unbound()?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&socket, 16)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(LONG))?;
        Ok(Self(socket))
    }

    pub(crate) fn accept(&self) -> io::Result<Raw> {
        Raw::new(rustix::net::accept_with(&self.0, SocketFlags::CLOEXEC)?)
    }
}

fn unbound() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    Ok(socket)
}

//! Sends and receives messages with an open file each over a Unix socket that keeps messages apart.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use serde_json::Value;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

use super::descriptor::register;

/// The longest message, in bytes: room for the certificates of a spawned guard, and below the kernel's default buffer.
const LONGEST: usize = 64 * 1024;
/// Connections that the kernel keeps until the listener accepts them.
const BACKLOG: i32 = 1024;

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Socket(AsyncFd<OwnedFd>);

/// A message, with the file that came with it.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) message: Value,
    pub(super) file: Option<OwnedFd>,
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer {
    pub(super) pid: Option<i32>,
    pub(super) uid: u32,
}

/// A socket that accepts connections.
#[derive(Debug)]
pub(super) struct Listener(AsyncFd<OwnedFd>);

impl Socket {
    /// Connects to the listener at that path.
    pub(super) fn connect(path: &Path) -> io::Result<Self> {
        let socket = unbound()?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Self::new(socket)
    }

    /// Makes two connected ends; the second one is for another process.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self::new(ours)?, theirs))
    }

    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        Ok(Self(register(socket, interest)?))
    }

    /// Returns the process that connected, and its user, as this process' namespaces name them. A process that this
    /// namespace does not see has the number 0, for which `rustix` has no value.
    pub(super) fn peer(&self) -> io::Result<Peer> {
        let socket = self.0.get_ref().try_clone()?;
        let stream = UnixStream::from_std(socket.into())?;
        let peer = stream.peer_cred()?;
        Ok(Peer {
            pid: peer.pid().filter(|pid| *pid > 0),
            uid: peer.uid(),
        })
    }

    /// Sends a message, with an open file if there is one.
    ///
    /// # Cancellation safety
    ///
    /// If it is dropped before it is ready, nothing is sent.
    pub(super) async fn send(
        &self,
        message: &Value,
        file: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let bytes = message.to_string();
        if bytes.len() > LONGEST {
            return Err(io::Error::other(format!(
                "a message to the guard has {} bytes; at most {LONGEST} are allowed",
                bytes.len()
            )));
        }
        let files: Vec<BorrowedFd<'_>> = file.into_iter().collect();
        let send = |socket: &OwnedFd| {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !files.is_empty() {
                ancillary.push(SendAncillaryMessage::ScmRights(&files));
            }
            let parts = [IoSlice::new(bytes.as_bytes())];
            rustix::net::sendmsg(socket, &parts, &mut ancillary, SendFlags::NOSIGNAL)?;
            Ok(())
        };
        self.0.async_io(Interest::WRITABLE, send).await
    }

    /// Receives the next message; `None` when the other end is closed.
    ///
    /// # Cancellation safety
    ///
    /// No message is lost.
    pub(super) async fn receive(&self) -> io::Result<Option<Received>> {
        self.0.async_io(Interest::READABLE, receive).await
    }

    /// Receives a message that is already there.
    pub(super) fn try_receive(&self) -> io::Result<Option<Received>> {
        receive(self.0.get_ref())
    }
}

impl Listener {
    /// Listens at that path, and replaces a socket file on which nobody listens.
    ///
    /// # Errors
    ///
    /// `AddrInUse`: somebody listens there already.
    pub(super) fn bind(path: &Path) -> io::Result<Self> {
        let socket = unbound()?;
        let address = SocketAddrUnix::new(path)?;
        if rustix::net::connect(&socket, &address).is_ok() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = unbound()?;
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(Self(register(socket, Interest::READABLE)?))
    }

    /// Accepts the next connection.
    ///
    /// # Cancellation safety
    ///
    /// No connection is lost.
    pub(super) async fn accept(&self) -> io::Result<Socket> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let accept = |socket: &OwnedFd| Ok(rustix::net::accept_with(socket, flags)?);
        Socket::new(self.0.async_io(Interest::READABLE, accept).await?)
    }
}

fn unbound() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    Ok(socket)
}

fn receive(socket: &OwnedFd) -> io::Result<Option<Received>> {
    let mut bytes = vec![0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let got = rustix::net::recvmsg(
        socket.as_fd(),
        &mut parts,
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut files = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let file = files.by_ref().flatten().next();
    if got.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::other("a message was longer than allowed"));
    }
    if got.bytes == 0 {
        return Ok(None);
    }
    let message = serde_json::from_slice(&bytes[..got.bytes])?;
    Ok(Some(Received { message, file }))
}

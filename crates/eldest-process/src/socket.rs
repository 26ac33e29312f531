//! Sends and receives messages with open files over a Unix socket that preserves message boundaries. A message is a JSON
//! value.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, lchown};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use serde_json::Value;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

use crate::descriptor::register;

/// The longest message, in bytes: enough for the certificates of a spawned guard, and less than the kernel's default
/// buffer.
const LONGEST: usize = 64 * 1024;
/// The longest message to a listener: enough for a greeting whose names JSON writes with six bytes for each byte.
const LONGEST_TO_LISTENER: usize = 16 * 1024;
/// How many bytes of answers a caller of a listener may leave unread, as the kernel counts them.
pub const UNREAD: usize = 32 * 1024;
/// How many open files one message may carry.
const MOST_FILES: usize = 2;
/// How many connections the kernel keeps until the listener accepts them.
const BACKLOG: i32 = 1024;

/// One end of a connection.
#[derive(Debug)]
pub struct Socket {
    file: AsyncFd<OwnedFd>,
    /// The longest message that is received.
    longest: usize,
}

/// A message, with the files that came with it.
#[derive(Debug)]
pub struct Received {
    /// The message.
    pub message: Value,
    /// The open files; none if some were lost on the way.
    pub files: Vec<OwnedFd>,
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    /// The number of its process; `None` if this process does not see it.
    pub pid: Option<i32>,
    /// Its user.
    pub uid: u32,
}

/// The file of a socket, and its permissions to connect.
#[derive(Debug, Clone)]
pub struct SocketFile {
    path: PathBuf,
    mode: Option<u32>,
    group: Option<u32>,
}

impl SocketFile {
    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets the permission bits of the file. Users who may write it may connect.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = Some(mode & 0o777);
        self
    }

    /// Sets the group of the file.
    #[must_use]
    pub fn group(mut self, group: u32) -> Self {
        self.group = Some(group);
        self
    }
}

impl From<&Path> for SocketFile {
    /// Leaves the permissions to the process's umask.
    fn from(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            mode: None,
            group: None,
        }
    }
}

/// A socket that accepts connections. Dropping it removes its file.
#[derive(Debug)]
pub struct Listener {
    socket: AsyncFd<OwnedFd>,
    path: PathBuf,
    /// The device and the number of the file, which distinguish it from another agent's.
    file: (u64, u64),
}

impl Socket {
    /// Connects to the listener at that path.
    ///
    /// # Errors
    ///
    /// `NotFound`, `ConnectionRefused`: no program listens there. `PermissionDenied`: this user may not connect.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let socket = unbound()?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Self::new(socket)
    }

    /// Makes two connected ends; the second one is for another process.
    ///
    /// # Errors
    ///
    /// The kernel refuses further sockets.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self::new(ours)?, theirs))
    }

    /// Takes a connected socket.
    ///
    /// # Errors
    ///
    /// The async runtime cannot wait for it.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        Ok(Self {
            file: register(socket, interest)?,
            longest: LONGEST,
        })
    }

    /// Takes a connection from a user who is not trusted, and gives it no more memory than it needs.
    fn accepted(socket: OwnedFd) -> io::Result<Self> {
        // The kernel doubles the size.
        set_socket_send_buffer_size(&socket, UNREAD / 2)?;
        Ok(Self {
            longest: LONGEST_TO_LISTENER,
            ..Self::new(socket)?
        })
    }

    /// Returns the process that connected, and its user, as this process' namespaces name them. A process that this
    /// namespace does not see has the number 0, for which `rustix` has no value.
    ///
    /// # Errors
    ///
    /// The kernel refuses another descriptor.
    pub fn peer(&self) -> io::Result<Peer> {
        let socket = self.file.get_ref().try_clone()?;
        let stream = UnixStream::from_std(socket.into())?;
        let peer = stream.peer_cred()?;
        Ok(Peer {
            pid: peer.pid().filter(|pid| *pid > 0),
            uid: peer.uid(),
        })
    }

    /// Checks that this process may trust the listener: the user who made the socket at that path must be root, this
    /// process' own user, or the owner of the directory, who decides which files are in it. In a directory such as
    /// `/tmp`, any user may make a socket.
    ///
    /// # Errors
    ///
    /// Names the owner of the socket.
    pub fn is_trusted(&self, path: &Path) -> Result<(), String> {
        let peer = self
            .peer()
            .map_err(|error| format!("its user is unknown: {error}"))?;
        let own = rustix::process::geteuid().as_raw();
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let owner = fs::metadata(folder).map(|folder| folder.uid());
        let owner = owner.map_err(|error| format!("its directory cannot be examined: {error}"))?;
        if [0, own, owner].contains(&peer.uid) {
            return Ok(());
        }
        Err(format!(
            "it belongs to user {}, who is neither root, nor the user of this process, nor the owner of the directory {}",
            peer.uid,
            folder.display()
        ))
    }

    /// Sends a message, with at most two open files.
    ///
    /// # Errors
    ///
    /// The message is too long, or the other end is closed.
    ///
    /// # Cancellation safety
    ///
    /// If it is dropped before it is ready, nothing is sent.
    pub async fn send(&self, message: &Value, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = bytes(message)?;
        let send = |socket: &OwnedFd| send(socket, &bytes, files);
        self.file.async_io(Interest::WRITABLE, send).await
    }

    /// Sends a message if there is room for it. A peer that does not read its answers delays no other.
    pub fn send_now(&self, message: &Value) {
        let bytes = message.to_string();
        let parts = [IoSlice::new(bytes.as_bytes())];
        let mut nothing = SendAncillaryBuffer::default();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        // A peer that has gone needs no answer.
        let _ = rustix::net::sendmsg(self.file.get_ref(), &parts, &mut nothing, flags);
    }

    /// Sends a message at once.
    ///
    /// # Errors
    ///
    /// `WouldBlock`: the other end does not read. Others: the message is too long, or the other end is closed.
    pub fn try_send(&self, message: &Value, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(self.file.get_ref(), &bytes(message)?, files)
    }

    /// Receives the next message; `None` when the other end is closed.
    ///
    /// # Errors
    ///
    /// The message is too long or no JSON, or the connection broke.
    ///
    /// # Cancellation safety
    ///
    /// No message is lost.
    pub async fn receive(&self) -> io::Result<Option<Received>> {
        let receive = |socket: &OwnedFd| receive(socket, self.longest);
        self.file.async_io(Interest::READABLE, receive).await
    }

    /// Receives a message that is already there.
    ///
    /// # Errors
    ///
    /// `WouldBlock`: there is none. Others: as [`Socket::receive`].
    pub fn try_receive(&self) -> io::Result<Option<Received>> {
        receive(self.file.get_ref(), self.longest)
    }
}

impl Listener {
    /// Listens at that path, and replaces a socket file that has no listener.
    ///
    /// # Errors
    ///
    /// `AddrInUse`: another program listens there already. `AlreadyExists`: the path names a file that is no socket.
    /// `PermissionDenied`: for example, this user may not check whether a program listens there.
    pub fn bind(file: &SocketFile) -> io::Result<Self> {
        let path = &*file.path;
        let address = SocketAddrUnix::new(path)?;
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            Ok(_) => make_room(path, &address)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let socket = unbound()?;
        bind_with(&socket, &address, file.mode)?;
        let listening = Self::listen(socket, file);
        if listening.is_err() {
            // No caller could connect to it.
            let _ = fs::remove_file(path);
        }
        listening
    }

    /// Lets callers connect to the socket, whose file has been made.
    fn listen(socket: OwnedFd, file: &SocketFile) -> io::Result<Self> {
        let path = &*file.path;
        if let Some(group) = file.group {
            lchown(path, None, Some(group))?;
        }
        let found = fs::symlink_metadata(path)?;
        rustix::net::listen(&socket, BACKLOG)?;
        // Not before it listens: the kernel reports a socket that does not listen as closed, and the runtime remembers
        // that.
        let socket = register(socket, Interest::READABLE)?;
        Ok(Self {
            socket,
            path: path.to_owned(),
            file: (found.dev(), found.ino()),
        })
    }

    /// Accepts the next connection.
    ///
    /// # Errors
    ///
    /// The kernel refuses, for example because this process has too many open files.
    ///
    /// # Cancellation safety
    ///
    /// No connection is lost.
    pub async fn accept(&self) -> io::Result<Socket> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let accept = |socket: &OwnedFd| Ok(rustix::net::accept_with(socket, flags)?);
        Socket::accepted(self.socket.async_io(Interest::READABLE, accept).await?)
    }

    /// Returns `true` while the path names this socket.
    pub fn is_found(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.file)
    }

    /// Removes the file, unless it belongs to another socket.
    pub fn remove(&self) {
        if self.is_found() {
            // The file may just have gone.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Removes the socket file of a listener that is gone.
fn make_room(path: &Path, address: &SocketAddrUnix) -> io::Result<()> {
    match rustix::net::connect(unbound()?, address) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path),
        Err(Errno::NOENT) => Ok(()),
        Err(Errno::ACCESS | Errno::PERM) => Err(io::ErrorKind::PermissionDenied.into()),
        // The listener exists, but its queue is full, or its sockets are of another type.
        _ => Err(io::ErrorKind::AddrInUse.into()),
    }
}

/// Makes the file with exactly these permissions. The umask belongs to the whole process, so it is changed for this
/// moment only.
fn bind_with(socket: &OwnedFd, address: &SocketAddrUnix, mode: Option<u32>) -> io::Result<()> {
    let Some(mode) = mode else {
        return Ok(rustix::net::bind(socket, address)?);
    };
    let before = rustix::process::umask(Mode::from_raw_mode(!mode & 0o777));
    let bound = rustix::net::bind(socket, address);
    rustix::process::umask(before);
    Ok(bound?)
}

fn unbound() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    Ok(socket)
}

fn bytes(message: &Value) -> io::Result<String> {
    let bytes = message.to_string();
    if bytes.len() > LONGEST {
        return Err(io::Error::other(format!(
            "a message to the guard has {} bytes; at most {LONGEST} are allowed",
            bytes.len()
        )));
    }
    Ok(bytes)
}

fn send(socket: &OwnedFd, bytes: &str, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(files));
    }
    let parts = [IoSlice::new(bytes.as_bytes())];
    rustix::net::sendmsg(socket, &parts, &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives some bytes of a stream, and the last file that came with them. The system closes files for which there is no
/// room.
///
/// # Errors
///
/// `WouldBlock`: nothing has arrived. Others: the connection broke.
pub fn receive_file(stream: impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(stream, &mut parts, &mut ancillary, flags)?;
    Ok((got.bytes, files(&mut ancillary).last()))
}

/// Returns the open files that came with a message.
fn files(ancillary: &mut RecvAncillaryBuffer<'_>) -> impl Iterator<Item = OwnedFd> {
    let files = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    files.flatten()
}

fn receive(socket: &OwnedFd, longest: usize) -> io::Result<Option<Received>> {
    match receive_once(socket, longest) {
        // The other end closed before it had read everything. The messages that it had sent follow.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
            receive_once(socket, longest)
        }
        received => received,
    }
}

fn receive_once(socket: &OwnedFd, longest: usize) -> io::Result<Option<Received>> {
    let mut bytes = vec![0; longest];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let got = rustix::net::recvmsg(
        socket.as_fd(),
        &mut parts,
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut files: Vec<OwnedFd> = files(&mut ancillary).collect();
    if got.flags.contains(ReturnFlags::CTRUNC) {
        // Files are missing: this process has too many open, or too many were sent.
        files.clear();
    }
    if got.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::other("a message was longer than allowed"));
    }
    if got.bytes == 0 {
        return Ok(None);
    }
    let message = serde_json::from_slice(&bytes[..got.bytes])?;
    Ok(Some(Received { message, files }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(path: &Path) -> io::ErrorKind {
        Listener::bind(&SocketFile::from(path)).unwrap_err().kind()
    }

    #[tokio::test]
    async fn the_file_of_a_listener_that_is_gone_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let gone = unbound().unwrap();
        rustix::net::bind(&gone, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        drop(gone);
        let listener = Listener::bind(&SocketFile::from(&*path)).unwrap();
        assert!(listener.is_found());
        assert_eq!(refused(&path), io::ErrorKind::AddrInUse);
        assert!(listener.is_found());
    }

    #[tokio::test]
    async fn the_socket_of_another_program_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(refused(&path), io::ErrorKind::AddrInUse);
        std::os::unix::net::UnixStream::connect(&path).unwrap();
        drop(other);
    }

    #[tokio::test]
    async fn a_listener_that_does_not_accept_now_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let address = SocketAddrUnix::new(&path).unwrap();
        let hung = unbound().unwrap();
        rustix::net::bind(&hung, &address).unwrap();
        rustix::net::listen(&hung, 0).unwrap();
        let mut waiting = Vec::new();
        loop {
            let one = unbound().unwrap();
            if rustix::net::connect(&one, &address).is_err() {
                break;
            }
            waiting.push(one);
        }
        assert_eq!(refused(&path), io::ErrorKind::AddrInUse);
        rustix::net::accept(&hung).unwrap();
        Socket::connect(&path).unwrap();
    }
}

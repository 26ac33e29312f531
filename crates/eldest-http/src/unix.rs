//! Binds the Unix socket of a server, with the permissions of its file.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::UnixListener;

/// The number of connections that the kernel keeps until the listener accepts them.
const BACKLOG: i32 = 1024;

/// Listens at a Unix socket, for [`serve_unix`](super::serve_unix). `mode` holds the permissions of its file, such as
/// `0o660`: a user who may write to the file may connect.
///
/// A socket's file without a listener, left by a killed process, is replaced. Remove the file after the server has
/// ended.
///
/// # Errors
///
/// `AddrInUse` if a server listens at the path; `AlreadyExists` if the file is no socket; `InvalidInput` if the path is
/// too long for a socket; and the errors of the file system.
pub fn bind_unix(path: impl AsRef<Path>, mode: u32) -> io::Result<UnixListener> {
    let path = path.as_ref();
    let address = SockAddr::unix(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "the file exists and is no socket",
            ));
        }
        Ok(_) => make_room(path, &address)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    socket.bind(&address)?;
    // The permissions are set before the socket listens, so before any client can connect.
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    UnixListener::from_std(socket.into())
}

/// Removes the socket's file of a server that no longer runs.
fn make_room(path: &Path, address: &SockAddr) -> io::Result<()> {
    let caller = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A full backlog also proves that a server listens.
    caller.set_nonblocking(true)?;
    match caller.connect(address) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
        _ => Err(io::ErrorKind::AddrInUse.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_socket_file_of_a_dead_server_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let first = bind_unix(&path, 0o640).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        let error = bind_unix(&path, 0o600).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(path.exists());
        drop(bind_unix(&path, 0o600).unwrap());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "a text").unwrap();
        let error = bind_unix(&path, 0o600).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "a text");
        let long = folder.path().join("x".repeat(108));
        assert_eq!(
            bind_unix(long, 0o600).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
    }
}

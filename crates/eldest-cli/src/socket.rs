//! Listens at a Unix socket for `--listen-unix`, and removes its file at the end.

#[cfg(unix)]
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Result;
#[cfg(unix)]
use eldest::internal::check_socket_path;

use crate::exit::{Code, fault};

/// A bound Unix socket. Its file is removed when the value is dropped.
pub(crate) struct SocketFile {
    path: PathBuf,
    #[cfg(unix)]
    listener: Option<tokio::net::UnixListener>,
    /// The device and inode of the file when it was created.
    #[cfg(unix)]
    created: (u64, u64),
}

/// Parses permission bits as `chmod` writes them.
pub(crate) fn mode(text: &str) -> Result<u32, String> {
    let digits = text.len() <= 4 && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    let mode = u32::from_str_radix(text, 8).ok().filter(|_| digits);
    match mode {
        Some(mode @ 0o600..=0o777) => Ok(mode),
        _ => Err("write it in octal, from 0600 to 0777, such as 0660".to_owned()),
    }
}

#[cfg(unix)]
impl SocketFile {
    pub(crate) fn bind(path: PathBuf, mode: u32) -> Result<Self> {
        let shown = path.display().to_string();
        check_socket_path(&path)
            .map_err(|rule| fault(Code::Usage, format!("--listen-unix {shown}: {rule}")))?;
        let bound = eldest_http::bind_unix(&path, mode).and_then(|listener| {
            let created = file(&path)?;
            Ok((listener, created))
        });
        let (listener, created) =
            bound.map_err(|error| anyhow::anyhow!("--listen-unix {shown}: {error}"))?;
        Ok(Self {
            path,
            listener: Some(listener),
            created,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the socket; works only once.
    pub(crate) fn take(&mut self) -> Option<tokio::net::UnixListener> {
        self.listener.take()
    }
}

#[cfg(unix)]
impl Drop for SocketFile {
    fn drop(&mut self) {
        // A successor may have replaced the file.
        if file(&self.path).is_ok_and(|found| found == self.created) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(unix)]
fn file(path: &Path) -> io::Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let found = std::fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

#[cfg(not(unix))]
impl SocketFile {
    pub(crate) fn bind(path: PathBuf, _: u32) -> Result<Self> {
        let message = format!(
            "--listen-unix {}: this system has no Unix sockets",
            path.display()
        );
        Err(fault(Code::Usage, message))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_read_in_octal_and_lets_its_owner_in() {
        assert_eq!(mode("0660"), Ok(0o660));
        assert_eq!(mode("666"), Ok(0o666));
        for wrong in [
            "0060",
            "0o660",
            "1777",
            "rw-rw----",
            "0688",
            "",
            "-660",
            "+660",
        ] {
            assert!(
                mode(wrong).unwrap_err().contains("from 0600 to 0777"),
                "{wrong}"
            );
        }
    }
}

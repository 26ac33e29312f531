//! Registers open files with the async runtime.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

#[allow(
    deprecated,
    reason = "an `OwnedFd` that is moved in stays open, so this is sound; the successor is an unsafe function"
)]
pub(crate) fn register(file: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(file, interest)
}

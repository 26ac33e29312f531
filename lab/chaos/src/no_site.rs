//! Replaces data centres on systems other than Linux, which have no network namespaces: creating one returns an error.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::net::Ipv4Addr;

use crate::Result;

/// A data centre, which cannot exist here.
pub(crate) struct Site {
    /// The address at which its programs would listen.
    pub(crate) address: Ipv4Addr,
    never: Infallible,
}

/// Returns an error without calling the closure.
///
/// # Errors
///
/// Always.
pub(crate) fn apart<T: Send>(_: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    Err("data centres are network namespaces, which only Linux has".into())
}

impl Site {
    pub(crate) fn here(_: Ipv4Addr) -> Result<Self> {
        apart(|| unreachable!("only Linux would do it"))
    }

    pub(crate) fn elsewhere(address: Ipv4Addr) -> Result<Self> {
        Self::here(address)
    }

    /// Returns the command that would start another program there.
    pub(crate) fn command(&self) -> Vec<OsString> {
        match self.never {}
    }

    pub(crate) fn inside<T: Send>(&self, _: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        match self.never {}
    }

    pub(crate) async fn leaves(&self, _: &mut [u8]) -> io::Result<usize> {
        match self.never {}
    }

    pub(crate) async fn arrives(&self, _: &[u8]) {
        match self.never {}
    }
}

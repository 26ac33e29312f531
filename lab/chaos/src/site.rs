//! Creates a data centre as a network namespace, starts programs in it, and leaves no part of it behind.
//!
//! The namespace has no name. The kernel keeps it and its device only while a process is in it or holds a file of it.
//! Only this process and its children do so, and the children end with this process. So there is nothing to clean up,
//! however this process ends.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::process::Command;

use nix::sched::{CloneFlags, setns, unshare};
use tokio_tun::Tun;

use crate::Result;

/// Advice if the machine lacks something, or this program lacks a permission.
const REMEDY: &str = "data centres are network namespaces whose packets pass through TUN devices: run this as root, on \
    Linux with /dev/net/tun (`modprobe tun`), `ip` (iproute2) and `nsenter` (util-linux)";
const DEVICE: &str = "wire";
const NETMASK: Ipv4Addr = Ipv4Addr::new(255, 255, 255, 0);

/// A network of its own, whose only way out is a device that this process reads.
pub(crate) struct Site {
    /// The address at which its programs listen.
    pub(crate) address: Ipv4Addr,
    namespace: File,
    device: Tun,
}

/// Runs the closure in a new namespace. Threads and processes that it starts are in it, too.
///
/// # Errors
///
/// This machine or this program's permissions do not allow it; or the closure failed.
pub(crate) fn apart<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    in_a_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET).map_err(lacking)?;
        let mut loopback = Command::new("ip");
        let up = loopback.args(["link", "set", "lo", "up"]).status();
        let up = up.map_err(lacking)?;
        if !up.success() {
            return Err(lacking(format!("`ip link set lo up` ended with {up}")));
        }
        work()
    })
}

impl Site {
    /// Returns the namespace of this thread, with a device that has that address. Call it in a runtime.
    pub(crate) fn here(address: Ipv4Addr) -> Result<Self> {
        let device = Tun::builder()
            .name(DEVICE)
            .address(address)
            .netmask(NETMASK)
            .up()
            .build();
        let device = device.map_err(lacking)?.pop();
        Ok(Self {
            address,
            namespace: File::open("/proc/thread-self/ns/net")?,
            device: device.ok_or("no device")?,
        })
    }

    /// Creates a new namespace. Call it in a runtime.
    pub(crate) fn elsewhere(address: Ipv4Addr) -> Result<Self> {
        let runtime = tokio::runtime::Handle::current();
        apart(|| {
            let _within = runtime.enter();
            Self::here(address)
        })
    }

    /// Returns the command that starts another program in this namespace.
    pub(crate) fn command(&self) -> Vec<OsString> {
        let (process, file) = (std::process::id(), self.namespace.as_raw_fd());
        let namespace = format!("--net=/proc/{process}/fd/{file}");
        vec!["nsenter".into(), namespace.into()]
    }

    /// Runs the closure in this namespace.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        in_a_thread(|| {
            setns(&self.namespace, CloneFlags::CLONE_NEWNET)?;
            work()
        })
    }

    /// Reads the next packet that leaves the namespace.
    pub(crate) async fn leaves(&self, packet: &mut [u8]) -> io::Result<usize> {
        self.device.recv(packet).await
    }

    /// Writes a packet that arrives. The kernel drops invalid packets, as it does elsewhere.
    pub(crate) async fn arrives(&self, packet: &[u8]) {
        let _ = self.device.send(packet).await;
    }
}

/// Runs the closure in a thread of its own, because a namespace is changed for one thread and those that it starts.
fn in_a_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(work);
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn lacking(error: impl std::fmt::Display) -> eldest::BoxError {
    format!("{REMEDY} ({error})").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn site_is_a_network_that_ends_with_it() -> Result {
        let own = std::fs::read_link("/proc/thread-self/ns/net")?;
        let site = Site::elsewhere(Ipv4Addr::new(10, 77, 0, 1))?;
        let devices =
            || -> Result<String> { Ok(std::fs::read_to_string("/proc/thread-self/net/dev")?) };
        let inside = site.inside(|| Ok(std::fs::read_link("/proc/thread-self/ns/net")?))?;
        assert_ne!(inside, own);
        assert!(site.inside(devices)?.contains(DEVICE));
        assert!(!devices()?.contains(DEVICE));
        // The programs that are started there see the namespace this way.
        let [enter, namespace] = &site.command()[..] else {
            panic!("two words")
        };
        let mut command = Command::new(enter);
        command
            .arg(namespace)
            .args(["readlink", "/proc/self/ns/net"]);
        let seen = String::from_utf8(command.output()?.stdout)?;
        assert_eq!(seen.trim(), inside.display().to_string());
        Ok(())
    }
}

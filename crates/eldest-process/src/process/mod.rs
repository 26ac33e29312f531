//! Opens other processes by their number, and waits until they have ended. The number is opened as a process descriptor
//! (pidfd) at once and never interpreted again, so a number that the kernel reuses cannot mislead.

use std::fmt;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use unsupported as system;

/// Another process.
pub struct Process {
    opened: system::Opened,
    number: u32,
}

impl Process {
    /// Opens the process that has this number for the calling process.
    ///
    /// # Errors
    ///
    /// Says why the number cannot be used: no process has it here, it is the caller's own, or it belongs to a thread or
    /// to the kernel.
    pub fn open(number: u32) -> Result<Self, String> {
        let opened = system::open(number)?;
        Ok(Self { opened, number })
    }

    /// Opens the process of a descriptor (pidfd) that any process has opened.
    ///
    /// # Errors
    ///
    /// Says why: the descriptor refers to something else, or to a process that this one does not see.
    #[cfg(target_os = "linux")]
    pub fn of_descriptor(descriptor: std::os::fd::OwnedFd) -> Result<Self, String> {
        let (opened, number) = system::of_descriptor(descriptor)?;
        Ok(Self { opened, number })
    }

    /// Returns `true` if the process is in the pid namespace of this one, so that both know other processes by the same
    /// numbers.
    pub fn shares_numbers(&self) -> bool {
        self.opened.shares_numbers()
    }

    /// Returns the number by which the process was opened.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the effective user of the process when it was opened, as this process's namespace names it.
    pub fn user(&self) -> u32 {
        self.opened.user()
    }

    /// Returns another descriptor of the process.
    ///
    /// # Errors
    ///
    /// The kernel refuses another descriptor.
    #[cfg(target_os = "linux")]
    pub fn share(&self) -> std::io::Result<std::os::fd::OwnedFd> {
        self.opened.share()
    }

    /// Waits until every thread of the process has ended.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe.
    pub async fn ended(&self) {
        self.opened.ended().await;
    }

    /// Returns `true` if every thread of the process has ended.
    pub fn has_ended(&self) -> bool {
        self.opened.has_ended()
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Process").field(&self.number).finish()
    }
}

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod unsupported;

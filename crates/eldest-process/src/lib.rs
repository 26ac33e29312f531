//! Observes the processes of this machine for [`eldest`](https://docs.rs/eldest), leader election on etcd. This crate is
//! internal to `eldest`: semantic versioning does not cover its interface.
//!
//! | item | contents |
//! |---|---|
//! | [`Process`] | another process, opened by its number: its user, and its end |
//! | `Pidfd` | a process by an open file that another process has sent |
//! | `cgroup` | a cgroup by its open files, and a cgroup that this process makes |
//! | `timer` | a timer that several processes share |
//! | `socket` | messages with open files between processes |
//! | `notify` | a socket at which a program says that it is ready |
//! | [`clock`] | on Linux and Android, the time since boot, and alarms; elsewhere, the time since the first use |
//! | [`Bell`] | a wait for a point in time, which another thread can end |
//!
//! Processes, cgroups, timers and sockets need Linux. Elsewhere, [`Process::open`] returns an error, and only the clock and
//! the bell work. A process, a cgroup by its open files, and a socket need a tokio runtime from the moment they are made;
//! nothing else needs one.

mod bell;
#[cfg(target_os = "linux")]
pub mod cgroup;
pub mod clock;
#[cfg(target_os = "linux")]
mod descriptor;
#[cfg(target_os = "linux")]
pub mod notify;
#[cfg(target_os = "linux")]
pub mod pidfd;
mod process;
#[cfg(target_os = "linux")]
pub mod socket;
#[cfg(target_os = "linux")]
pub mod timer;

pub use bell::Bell;
#[cfg(target_os = "linux")]
pub use pidfd::Pidfd;
pub use process::Process;

//! Keeps a program from outliving its permission to run, even if supervisor or keeper is killed or stopped. It does not
//! matter which signals the program ignores, or how the program hides its children.

mod after;
#[cfg(target_os = "linux")]
mod board;
#[cfg(target_os = "linux")]
mod children;
// Compiled for tests on every platform, so that it does not rot.
#[cfg(target_os = "linux")]
mod child_registry;
#[cfg(target_os = "linux")]
mod job;
#[cfg(target_os = "linux")]
mod keeper;
#[cfg(target_os = "linux")]
mod shim;
mod spec;
#[cfg(any(not(target_os = "linux"), test))]
mod unsupported;
#[cfg(target_os = "linux")]
mod watched;
#[cfg(target_os = "linux")]
mod wire;

use std::process::ExitCode;
use std::time::Duration;

use eldest_process::clock;

pub(crate) use after::{After, LEASE_EXPIRING, STOPPED};
#[cfg(target_os = "linux")]
pub(crate) use child_registry::ChildRegistry;
#[cfg(target_os = "linux")]
pub(crate) use job::Keeper;
pub(crate) use spec::{Commands, Ending, Exit, Gone, Limit, Spec, Stop};
#[cfg(not(target_os = "linux"))]
pub(crate) use unsupported::{ChildRegistry, Keeper};

/// First arguments by which this program starts itself as keeper or shim. No command that a person types looks like
/// them.
#[cfg(target_os = "linux")]
const KEEPER: &str = "__keeper";
#[cfg(target_os = "linux")]
const SHIM: &str = "__become";

/// Runs the role that this process has instead of a command, if the program has started itself.
#[cfg(target_os = "linux")]
pub(crate) fn entry() -> Option<ExitCode> {
    let arguments: Vec<std::ffi::OsString> = std::env::args_os().skip(1).collect();
    let (mode, rest) = arguments.split_first()?;
    match mode.to_str()? {
        KEEPER => Some(keeper::main(rest)),
        SHIM => Some(shim::main(rest)),
        _ => None,
    }
}

/// Returns `None`: the program never starts itself here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn entry() -> Option<ExitCode> {
    None
}

/// Returns the present time of the clock by which programs are [stopped](Stop).
pub(crate) fn now() -> Duration {
    Duration::from_nanos(clock::now())
}

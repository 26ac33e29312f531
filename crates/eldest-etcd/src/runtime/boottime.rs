//! Reads the deadline clock of this machine.

use eldest_core::time::Time;

/// Returns the time since boot, including suspended time.
pub(super) fn now() -> Time {
    Time::from_nanos(eldest_process::clock::now())
}

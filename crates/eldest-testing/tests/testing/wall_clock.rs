//! Tests that a process sees the wall clock that it is given.

use std::process::Command;
use std::time::Duration;

use eldest_testing::WallClock;

use crate::Result;

/// Returns the wall clock of a process, in seconds.
fn seconds(clock: &WallClock) -> Result<i64> {
    let mut command = Command::new("date");
    clock.apply_to(command.arg("+%s"));
    let said = String::from_utf8(command.output()?.stdout)?;
    Ok(said.trim().parse()?)
}

#[test]
#[cfg(target_os = "linux")]
fn a_process_sees_its_moved_wall_clock() -> Result {
    const HOUR: i64 = 3_600;
    // Seconds that the processes may take on a busy machine.
    const SLACK: i64 = 600;
    let clock = WallClock::new()?;
    let (by, now) = (Duration::from_secs(HOUR.unsigned_abs()), seconds(&clock)?);
    clock.forward(by)?;
    assert!((HOUR..HOUR + SLACK).contains(&(seconds(&clock)? - now)));
    clock.back(by)?;
    assert!((-HOUR..SLACK - HOUR).contains(&(seconds(&clock)? - now)));
    clock.correct()?;
    assert!((0..SLACK).contains(&(seconds(&clock)? - now)));
    Ok(())
}

//! Three data centres far apart: nobody's term ends by itself, and the next one leads as soon as it may.
#![cfg(target_os = "linux")]

use std::time::Duration;

use eldest_chaos::{Result, Settings, Wide, wide};

/// A short one of the runs that docs/chaos keeps.
#[test]
fn over_120_ms_with_5_percent_loss_no_term_ends_but_those_that_are_ended() -> Result {
    let round_trip = Duration::from_millis(120);
    let far = Wide {
        quiet: Duration::from_secs(6),
        ..Wide::new(round_trip, 0.05)
    };
    let settings = Settings::new(env!("CARGO_BIN_EXE_eldest-chaos")).far(round_trip);
    let outcome = wide(&settings, &far.plan(1), &far)?;
    assert!(outcome.is_ok(), "{outcome}");
    println!("{outcome}");
    Ok(())
}

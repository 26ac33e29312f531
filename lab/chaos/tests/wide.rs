//! Tests three data centres far apart: no term ends without a fault, and the next node leads as soon as it may.
#![cfg(target_os = "linux")]

use std::time::Duration;

use eldest_chaos::{Plan, Result, Settings, Wide, actions, wide};

/// This is a short version of the runs of docs/faults.md.
#[test]
fn only_steps_end_terms_over_120_ms_with_5_percent_loss() -> Result {
    let round_trip = Duration::from_millis(120);
    let far = Wide {
        quiet: Duration::from_secs(6),
        ..Wide::new(round_trip, 0.05)
    };
    let settings = Settings::new(env!("CARGO_BIN_EXE_eldest-chaos")).far(round_trip);
    let outcome = wide(&settings, &Plan::far(&far), &far)?;
    assert!(outcome.is_ok(), "{outcome}");
    println!("{outcome}");
    Ok(())
}

/// The data centres are close to each other; the TTL just survives a change of etcd's leader.
#[test]
fn a_leader_isolated_with_etcd_s_leader_does_not_trust_its_acknowledgements() -> Result {
    let round_trip = Duration::from_millis(4);
    let far = Wide {
        preset: false,
        quiet: Duration::ZERO,
        rounds: 0,
        ..Wide::new(round_trip, 0.0)
    };
    let settings = Settings {
        ttl: Duration::from_secs(4),
        ..Settings::new(env!("CARGO_BIN_EXE_eldest-chaos"))
    };
    let plan = Plan::only(actions::find("isolate-etcd-leader").into_iter().collect());
    let outcome = wide(&settings, &plan, &far)?;
    assert!(outcome.is_ok(), "{outcome}");
    println!("{outcome}");
    Ok(())
}

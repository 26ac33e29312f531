//! Tests that the checker sees a stale write of a stopped leader when fencing is off.
#![cfg(target_os = "linux")]

use std::time::Duration;

use eldest_chaos::{Plan, Result, Settings, actions, run};
use eldest_testing::history::Invariant;

fn plan() -> Plan {
    Plan::only(actions::find("stop-leader").into_iter().collect())
}

fn settings(fenced: bool) -> Settings {
    Settings {
        ttl: Duration::from_secs(4),
        fenced,
        ..Settings::new(env!("CARGO_BIN_EXE_eldest-chaos"))
    }
}

#[tokio::test]
async fn without_fencing_the_write_of_a_stopped_leader_is_admitted_and_reported() -> Result {
    let outcome = run(&settings(false), &plan()).await?;
    assert!(!outcome.is_ok(), "{outcome}");
    let broken: Vec<Invariant> = outcome
        .report
        .violations
        .iter()
        .map(|v| v.invariant)
        .collect();
    assert!(broken.contains(&Invariant::Fencing), "{outcome}");
    let stale = outcome
        .report
        .violations
        .iter()
        .filter(|violation| violation.invariant == Invariant::Fencing);
    for violation in stale {
        assert!(violation.explanation.contains("stale write"), "{outcome}");
        assert_eq!(violation.election, "chaos, in the register");
    }
    Ok(())
}

#[tokio::test]
async fn with_fencing_the_same_write_is_refused() -> Result {
    let outcome = run(&settings(true), &plan()).await?;
    assert!(outcome.is_ok(), "{outcome}");
    assert!(outcome.report.counts.writes_refused > 0, "{outcome}");
    Ok(())
}

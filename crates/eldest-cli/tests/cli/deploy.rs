//! Tests the unit of docs/deploy.md: its command is understood, its times fit, and systemd accepts it.

use std::process::Command;
use std::time::Duration;

use crate::common::{Result, eldest, run};

const PAGE: &str = include_str!("../../../../docs/deploy.md");

fn unit() -> &'static str {
    let (_, rest) = PAGE.split_once("```ini\n").expect("a unit");
    rest.split("```").next().unwrap_or_default()
}

/// Returns the value after `key=`.
fn value(key: &str) -> &'static str {
    let found = unit().lines().find_map(|line| line.strip_prefix(key));
    found.and_then(|value| value.strip_prefix('=')).expect(key)
}

#[tokio::test]
async fn unit_starts_a_valid_command_and_allows_time_to_stop() -> Result {
    let start = value("ExecStart");
    let (ours, program) = start.split_once(" -- ").ok_or("a program")?;
    let mut args: Vec<&str> = ours.split_whitespace().skip(1).collect();
    let ttl = args.iter().skip_while(|arg| **arg != "--ttl").nth(1);
    let seconds = |text: &str| {
        text.strip_suffix('s')
            .and_then(|number| number.parse().ok())
    };
    let ttl = ttl.and_then(|ttl| seconds(ttl)).map(Duration::from_secs);
    let stop = seconds(value("TimeoutStopSec")).map(Duration::from_secs);
    assert_eq!(stop, ttl.map(|ttl| 2 * ttl + Duration::from_secs(5)));
    args.push("--help");
    args.extend(["--", program]);
    run(eldest(&args)).await?.done();
    Ok(())
}

#[test]
fn systemd_accepts_the_unit() -> Result {
    for line in unit().lines().filter(|line| !line.is_empty()) {
        let section = line.starts_with('[') && line.ends_with(']');
        assert!(section || line.contains('='), "{line}");
    }
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("billing-scheduler.service");
    // systemd checks that the programs in the unit exist.
    let here = env!("CARGO_BIN_EXE_eldest");
    std::fs::write(&file, unit().replace("/usr/bin/eldest", here))?;
    let verified = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&file)
        .output();
    let Ok(verified) = verified else {
        println!("left out: there is no systemd-analyze");
        return Ok(());
    };
    let said = String::from_utf8_lossy(&verified.stderr).into_owned();
    let complaints: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("billing-scheduler"))
        .collect();
    assert!(verified.status.success() && complaints.is_empty(), "{said}");
    Ok(())
}

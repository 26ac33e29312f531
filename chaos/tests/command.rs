//! The command as it is called by hand.
#![cfg(unix)]

use std::process::{Command, Output};

use eldest_chaos::actions;

fn chaos(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_eldest-chaos"));
    command.args(args).output().expect("it runs")
}

#[test]
fn the_list_names_every_fault_once() {
    let output = chaos(&["--list"]);
    assert!(output.status.success());
    let listed = String::from_utf8(output.stdout).expect("text");
    let mut names: Vec<&str> = listed
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    let wanted: Vec<_> = actions::all()
        .iter()
        .map(|action| action.card().name)
        .collect();
    assert_eq!(names, wanted);
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), wanted.len());
}

#[test]
fn what_does_not_exist_is_refused_by_name() {
    let output = chaos(&["--fault", "bad-weather"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("bad-weather"));
}

/// What it writes, and that its exit code is 0 for a run in which all was well.
#[test]
fn one_fault_is_made_and_reported_as_text_as_json_and_as_a_picture() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (json, picture) = (path("report.json"), path("picture.svg"));
    let output = chaos(&[
        "--fault",
        "terminate-leader",
        "--seed",
        "5",
        "--ttl",
        "4",
        "--json",
        &json,
        "--picture",
        &picture,
    ]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.ends_with("every invariant held\n"), "{text}");
    let json = std::fs::read_to_string(json).expect("a report");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json["ok"], &json["seed"]), (&true.into(), &5.into()));
    let steps = json["steps"].as_array().expect("steps");
    assert_eq!(steps.len(), 1);
    assert_ne!(steps[0]["token_before"], steps[0]["token_after"]);
    assert!(json["counts"]["elections"].as_u64() >= Some(2), "{json}");
    let picture = std::fs::read_to_string(picture).expect("a picture");
    assert!(picture.starts_with("<svg") && picture.contains("terminate-leader"));
}

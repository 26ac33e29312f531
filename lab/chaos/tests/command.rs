//! Tests the command as people call it.
#![cfg(target_os = "linux")]

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
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
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
fn unknown_fault_is_refused_by_name() {
    let output = chaos(&["--fault", "bad-weather"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("bad-weather"));
}

/// The test covers all three outputs and the exit code 0 of a run in which every invariant held.
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

/// However the run ends, its processes and their files must go, and with them the namespaces.
#[test]
fn killed_run_leaves_nothing_behind() {
    use std::io::{BufRead, BufReader};
    use std::path::Path;
    use std::process::Stdio;

    let mut command = Command::new(env!("CARGO_BIN_EXE_eldest-chaos"));
    command.args(["--wide", "--rtt", "4", "--seconds", "600"]);
    let mut run = command.stdout(Stdio::piped()).spawn().expect("it runs");
    let lines = BufReader::new(run.stdout.take().expect("piped")).lines();
    let mut lines = lines.map_while(std::result::Result::ok);
    let stands = lines.find_map(|line| Some(line.split_once(" of etcd, in ")?.1.to_owned()));
    let folder = stands.expect("it stands");
    // Nodes carry the folder in their environment, and servers in their names.
    let marks = [folder.clone(), format!("eldest-{}-", run.id())];
    let ours = || {
        processes()
            .into_iter()
            .filter(|process| marks.iter().any(|mark| process.contains(mark)))
    };
    assert!(ours().count() >= 6, "three nodes and three servers");
    run.kill().expect("killed");
    run.wait().expect("ended");
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while ours().count() > 0 || Path::new(&folder).exists() {
        let left: Vec<_> = ours().collect();
        assert!(std::time::Instant::now() < until, "{folder}, {left:?}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Returns the arguments and the environment of all processes.
fn processes() -> Vec<String> {
    let all = std::fs::read_dir("/proc").expect("processes").flatten();
    let describe = |path: std::path::PathBuf| {
        let read = |name: &str| std::fs::read(path.join(name)).unwrap_or_default();
        let bytes = [read("cmdline"), read("environ")].concat();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    all.map(|entry| describe(entry.path())).collect()
}

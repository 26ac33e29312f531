//! Tests that the table of docs/logging.md has exactly the lines that the source can log.

use std::collections::BTreeSet;
use std::path::Path;

use crate::capture::Logs;

/// The rows of the table: target, level, message and fields.
fn documented() -> BTreeSet<(String, String, String, Vec<String>)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/logging.md");
    let document = std::fs::read_to_string(path).expect("docs/logging.md beside tests/");
    let plain = |cell: &str| cell.trim().trim_matches('`').to_owned();
    document
        .lines()
        .filter(|line| line.starts_with("| `eldest::"))
        .map(|line| {
            let cells: Vec<&str> = line.split('|').collect();
            let fields = cells[4].split_whitespace().map(plain).collect();
            (plain(cells[1]), plain(cells[2]), plain(cells[3]), fields)
        })
        .collect()
}

/// Checks that every log line is in the table, field by field.
pub(crate) fn all_documented(logs: &Logs) {
    let rows = documented();
    for kind in logs.kinds() {
        assert!(rows.contains(&kind), "not in docs/logging.md: {kind:?}");
    }
}

/// Finds target and message of every event that a folder of sources can log.
fn in_the_source(folder: &Path, found: &mut BTreeSet<(String, String)>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            in_the_source(&path, found);
        } else {
            let text = std::fs::read_to_string(&path).expect("text");
            // The macros that choose the level.
            let text = text.replace(" log_event!(", " tracing::log_event!(");
            let text = text.replace(" span!(", " tracing::span!(");
            for call in text.split("tracing::").skip(1) {
                let call = call.split_once(");").map_or(call, |(call, _)| call);
                let literals: Vec<&str> = call.split('"').skip(1).step_by(2).collect();
                let is_span = call.split('(').next().is_some_and(|m| m.ends_with("span!"));
                // A span's name comes before its fields, a message behind them.
                let found_here = match literals[..] {
                    [target, name, ..] if is_span => Some((target, name)),
                    [target, .., message] => Some((target, message)),
                    _ => None,
                };
                if let Some((target, message)) = found_here
                    && target.starts_with("eldest::")
                {
                    found.insert((target.to_owned(), message.to_owned()));
                }
            }
        }
    }
}

#[test]
fn the_table_names_exactly_what_the_source_can_log() {
    let mut source = BTreeSet::new();
    for folder in [
        "src",
        "crates/eldest-etcd/src",
        "crates/eldest-guard/src",
        "crates/eldest-http/src",
    ] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        in_the_source(&folder, &mut source);
    }
    let rows = documented().into_iter();
    let table = rows.map(|(target, _, message, _)| (target, message));
    assert_eq!(source, table.collect());
}

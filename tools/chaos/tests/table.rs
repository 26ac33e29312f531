//! docs/faults.md says what is there: no more, and no less.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The lines of the table: fault, actions, tests, what is left.
fn table(text: &str) -> Vec<[String; 4]> {
    let rows = text.lines().filter_map(|line| {
        let cells = line.strip_prefix("| ")?.strip_suffix('|')?;
        let cells: Vec<String> = cells
            .split('|')
            .map(|cell| cell.trim().to_owned())
            .collect();
        cells.try_into().ok()
    });
    rows.skip(1).collect()
}

fn names(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Every `fn name(` below the folder.
fn functions(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && !path.ends_with("target") {
            functions(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("text");
            let functions = text.split("fn ").skip(1);
            let named = functions
                .filter_map(|rest| rest.split_once('('))
                .map(|(name, _)| name);
            found.extend(named.map(str::to_owned));
        }
    }
}

#[test]
#[cfg(unix)]
fn the_table_of_faults_names_what_there_is_and_all_of_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let rows = table(&fs::read_to_string(root.join("docs/faults.md")).expect("docs/faults.md"));
    assert!(!rows.is_empty());
    let mut functions_there = BTreeSet::new();
    for folder in ["src", "crates", "tests", "tools"] {
        functions(&root.join(folder), &mut functions_there);
    }
    let actions: BTreeSet<&str> = eldest_chaos::actions::all()
        .iter()
        .map(|action| action.card().name)
        .collect();
    let mut named = BTreeSet::new();
    for [fault, harness, tests, left] in &rows {
        for action in names(harness) {
            assert!(actions.contains(action), "{fault}: there is no `{action}`");
            named.insert(action);
        }
        for test in names(tests) {
            assert!(
                functions_there.contains(test),
                "{fault}: there is no test `{test}`"
            );
        }
        let covered = names(harness).chain(names(tests)).count() > 0;
        assert!(
            covered || !left.is_empty(),
            "{fault}: by nothing, and for no reason"
        );
    }
    assert_eq!(named, actions, "each is in the table");
}

/// What docs/ttl.md says that etcd needs for a distance is what the harness gives it for that distance.
#[test]
#[cfg(unix)]
fn etcd_is_set_up_for_a_distance_as_documented() {
    use std::time::Duration;

    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ttl.md");
    let page = fs::read_to_string(page).expect("docs/ttl.md");
    let mut rows = 0;
    for line in page.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", distance, heartbeat, timeout, _, _, _, _, _, ""] = cells[..] else {
            continue;
        };
        let Some(distance) = distance.strip_suffix(" ms") else {
            continue;
        };
        let millis = |text: &str| Duration::from_millis(text.parse().expect("milliseconds"));
        let settings = eldest_chaos::Settings::new("").far(millis(distance));
        let told = (millis(heartbeat), millis(timeout));
        assert_eq!((settings.heartbeat, settings.election_timeout), told);
        rows += 1;
    }
    assert!(rows > 0, "the page says nothing of distances");
}

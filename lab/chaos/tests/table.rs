//! Tests that docs/faults.md says what must hold under the faults of the harness, and names only existing tests.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const PAGE: &str = "docs/faults.md";

/// Returns the rows of the table of tests: fault, tests, limits.
fn rows(text: &str) -> Vec<[String; 3]> {
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

/// Collects the name of every function below the folder.
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
fn page_explains_the_effect_of_every_fault() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join(PAGE)).expect(PAGE);
    for action in eldest_chaos::actions::all() {
        let card = action.card();
        let row = format!("| {} |", card.effect.word());
        assert!(page.contains(&row), "{}: no row {row}", card.name);
    }
}

#[test]
fn page_names_only_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let rows = rows(&fs::read_to_string(root.join(PAGE)).expect(PAGE));
    assert!(!rows.is_empty());
    let mut there = BTreeSet::new();
    for folder in ["src", "crates", "examples", "tests", "tools", "lab"] {
        functions(&root.join(folder), &mut there);
    }
    for [fault, tests, _] in &rows {
        assert!(names(tests).count() > 0, "{fault}: no test");
        for test in names(tests) {
            assert!(there.contains(test), "{fault}: there is no test `{test}`");
        }
    }
}

/// docs/ttl.md says how etcd must be configured for a distance, and the harness does so.
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
        let stated = (millis(heartbeat), millis(timeout));
        assert_eq!((settings.heartbeat, settings.election_timeout), stated);
        rows += 1;
    }
    assert!(rows > 0, "the page says nothing of distances");
}

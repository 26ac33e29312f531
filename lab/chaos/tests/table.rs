//! Tests that docs/faults.md says what must hold under the faults of the harness.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::Path;

const PAGE: &str = "docs/faults.md";

#[test]
fn page_explains_the_effect_of_every_fault() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join(PAGE)).expect(PAGE);
    for action in eldest_chaos::actions::all() {
        let card = action.card();
        let row = format!("| {} |", card.effect.word());
        assert!(page.contains(&row), "{}: no row {row}", card.name);
    }
}

/// docs/ttl.md says how etcd must be configured for a distance, and the harness does so.
#[test]
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

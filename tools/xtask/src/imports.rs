//! Checks that the rooms of the library import one another as ARCHITECTURE.md says.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};

use crate::setup;
use crate::stage::Stage;

/// The heading of the table that names each room and what it may import.
const HEADING: &str = "## Rooms of the library";
/// A line of code, not of a comment, that names an item of a room.
const IMPORT: &str = "^[^/]*crate::[a-z_]+";

/// Runs as a part of the stages `source` and `check`.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    let text = fs::read_to_string(setup::root().join("ARCHITECTURE.md"))?;
    let rooms = rooms(&text)?;
    let mut grep = setup::program("git");
    grep.args(["grep", "--untracked", "--extended-regexp", IMPORT, "--"]);
    let lines = stage.output(grep.args(["src", ":!*tests.rs"]))?;
    let broken = lines.lines().filter(|line| !is_allowed(&rooms, line));
    let broken = broken.map(|line| format!("{HEADING} does not allow {line}"));
    stage.judge("rooms import as ARCHITECTURE.md says", broken.collect());
    Ok(())
}

/// Reads the table: its first column names a room, its last one the rooms that it may import, or `everything`.
fn rooms(text: &str) -> Result<BTreeMap<&str, &str>> {
    let (_, section) = text.split_once(HEADING).context(HEADING)?;
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let rooms = rows.filter_map(|row| {
        let (_, allowed) = row.strip_suffix('|')?.rsplit_once('|')?;
        Some((word(&row[3..]), allowed))
    });
    let rooms: BTreeMap<_, _> = rooms.collect();
    ensure!(rooms.len() > 3, "{HEADING} names {} rooms", rooms.len());
    Ok(rooms)
}

/// Judges a line in the form that git prints, `src/ROOM/FILE.rs:use crate::OTHER::Item;`. What is in no room may be imported.
fn is_allowed(rooms: &BTreeMap<&str, &str>, line: &str) -> bool {
    let room = word(line.trim_start_matches("src/"));
    let mut others = line.split("crate::").skip(1).map(word);
    let allowed = rooms.get(room).copied().unwrap_or("everything");
    allowed.trim() == "everything"
        || others.all(|other| {
            let is_named = allowed.contains(&format!("`{other}`"));
            other == room || is_named || !rooms.contains_key(other)
        })
}

fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_lowercase() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

#[cfg(test)]
mod tests {
    use super::{is_allowed, rooms};

    #[test]
    fn an_import_against_the_table_is_refused() {
        let table = "## Rooms of the library\n\n| room | holds | may import |\n|---|---|---|\n\
            | `driver/` | the task | `state`, `util` |\n| `state/` | what is shown | `util` |\n\
            | `util/` | containers | |\n| `fuzzing.rs` | all | everything |\n\n## Next\n";
        let rooms = rooms(table).unwrap();
        for (line, allowed) in [
            ("src/driver/turn.rs:use crate::state::Term;", true),
            ("src/state.rs:use crate::shutdown_signal;", true),
            ("src/fuzzing.rs:use crate::driver::parse;", true),
            ("src/state/term.rs:    crate::driver::run();", false),
            ("src/util.rs:use crate::state::Term;", false),
        ] {
            assert_eq!(is_allowed(&rooms, line), allowed, "{line}");
        }
    }
}

//! Checks that the rooms of the library import one another as ARCHITECTURE.md says, and that no package has an import
//! circle.

mod graph;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::setup;
use crate::stage::Stage;
use graph::{Graph, Import};

/// The heading of the table that names each room and what it may import.
const HEADING: &str = "## Rooms of the library";
/// The entry of a room that may import everything.
const EVERYTHING: &str = "everything";

/// Runs the stage `imports`.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    let text = fs::read_to_string(setup::root().join("ARCHITECTURE.md"))?;
    let rooms = Rooms::parse(&text)?;
    let library = Graph::read(&setup::root().join("src/lib.rs"))?;
    let holds = format!("{} rooms import as ARCHITECTURE.md says", rooms.0.len());
    stage.judge(&holds, rooms.broken(&library.imports));
    let packages = roots()?;
    let mut broken = Vec::new();
    for root in &packages {
        let name = root.strip_prefix(setup::root()).unwrap_or(root);
        let circles = Graph::read(root)?.circles();
        broken.extend(
            circles
                .iter()
                .map(|circle| format!("{}: a circle: {circle}", name.display())),
        );
    }
    let holds = format!("{} packages have no import circle", packages.len());
    stage.judge(&holds, broken);
    Ok(())
}

/// Returns the root file of every library and program of both workspaces.
fn roots() -> Result<Vec<PathBuf>> {
    let mut packages = vec![setup::root().to_owned()];
    for folder in ["crates", "tools", "lab"] {
        for package in fs::read_dir(setup::root().join(folder))? {
            packages.push(package?.path());
        }
    }
    let files = ["src/lib.rs", "src/main.rs"];
    let roots = packages
        .iter()
        .flat_map(|package| files.map(|file| package.join(file)));
    let mut roots: Vec<PathBuf> = roots.filter(|root| root.is_file()).collect();
    roots.sort();
    ensure!(roots.len() > 5, "only {} packages", roots.len());
    Ok(roots)
}

/// The rooms that each room may import; `None` means all.
struct Rooms(BTreeMap<String, Option<BTreeSet<String>>>);

impl Rooms {
    /// Reads the table below [`HEADING`]: its first column names a room, its last one the rooms that it may import.
    fn parse(text: &str) -> Result<Self> {
        let (_, section) = text
            .split_once(HEADING)
            .with_context(|| format!("ARCHITECTURE.md has no section {HEADING:?}"))?;
        let lines = section.lines().skip_while(|line| !line.starts_with("|---"));
        let rows = lines.skip(1).take_while(|line| line.starts_with('|'));
        let names = |cell: &str| -> Vec<String> {
            let quoted = cell.split('`').skip(1).step_by(2);
            quoted
                .map(|name| {
                    name.trim_end_matches('/')
                        .trim_end_matches(".rs")
                        .to_owned()
                })
                .collect()
        };
        let mut rooms = BTreeMap::new();
        for row in rows {
            let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
            let (first, last) = (cells[0], cells[cells.len() - 1].trim());
            for room in names(first) {
                let imports = (last != EVERYTHING).then(|| names(last).into_iter().collect());
                rooms.insert(room, imports);
            }
        }
        ensure!(
            rooms.len() > 3,
            "the table below {HEADING:?} names {} rooms",
            rooms.len()
        );
        Ok(Self(rooms))
    }

    /// Returns the imports that the table does not allow, and rooms that it does not name.
    fn broken(&self, imports: &[Import]) -> Vec<String> {
        let mut broken = BTreeSet::new();
        for import in imports {
            let (Some(from), Some(to)) = (import.from.first(), import.to.first()) else {
                continue;
            };
            if from == to {
                continue;
            }
            match self.0.get(from) {
                None => {
                    let why = format!("ARCHITECTURE.md does not say what {from} may import");
                    broken.insert(why);
                }
                Some(None) => {}
                Some(Some(allowed)) if allowed.contains(to) => {}
                Some(Some(_)) => {
                    let file = import.from.join("/");
                    broken.insert(format!("src/{file} imports {to}, which {from} may not"));
                }
            }
        }
        broken.into_iter().collect()
    }
}

/// Returns the file of a child module.
fn file_of(folder: &Path, name: &str) -> Option<PathBuf> {
    let files = [format!("{name}.rs"), format!("{name}/mod.rs")];
    files
        .iter()
        .map(|file| folder.join(file))
        .find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "## Rooms of the library\n\n| room | holds | may import |\n|---|---|---|\n\
        | `driver/` | the task | `state`, `util` |\n| `state/` | what is shown | `util` |\n\
        | `util/` | containers |  |\n| `lib.rs` | all | everything |\n\n## Next\n";

    /// Makes a package of these files in a folder of its own.
    fn package(files: &[(&str, &str)]) -> (tempfile::TempDir, Graph) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let graph = Graph::read(&folder.path().join("lib.rs")).unwrap();
        (folder, graph)
    }

    #[test]
    fn an_import_against_the_table_is_named() {
        let rooms = Rooms::parse(TABLE).unwrap();
        let (_folder, graph) = package(&[
            (
                "lib.rs",
                "mod driver;\nmod state;\nmod util;\npub use state::Term;",
            ),
            ("driver.rs", "use crate::state::Term;\nuse crate::util;"),
            ("state/mod.rs", "pub mod term;\npub struct Term;"),
            ("state/term.rs", "fn f() { crate::driver::run(); }"),
            (
                "util.rs",
                "use crate::Term;\n#[cfg(test)]\nmod tests { use crate::driver; }\n#[cfg(all(test, unix))]\nmod more { use crate::driver; }",
            ),
        ]);
        let broken = rooms.broken(&graph.imports);
        let expected = [
            "src/state/term imports driver, which state may not",
            "src/util imports state, which util may not",
        ];
        assert_eq!(broken, expected);
    }

    #[test]
    fn a_room_that_the_table_does_not_know_is_named() {
        let rooms = Rooms::parse(TABLE).unwrap();
        let (_folder, graph) = package(&[
            ("lib.rs", "mod other;\nmod util;"),
            ("other.rs", "use crate::util;"),
            ("util.rs", ""),
        ]);
        let broken = rooms.broken(&graph.imports);
        assert_eq!(
            broken,
            ["ARCHITECTURE.md does not say what other may import"]
        );
    }

    #[test]
    fn a_circle_is_found_at_every_level_and_through_re_exports() {
        let (_folder, graph) = package(&[
            ("lib.rs", "mod a;\nmod b;"),
            (
                "a/mod.rs",
                "mod x;\nmod y;\npub use x::X;\nuse crate::b::B;\nfn up() -> y::Y { y::Y }",
            ),
            ("a/x.rs", "use super::y::Y;\npub struct X;"),
            ("a/y.rs", "use super::{X, up};\npub struct Y;"),
            ("b.rs", "pub struct B;\nuse crate::a::X;"),
        ]);
        assert_eq!(graph.circles(), ["a::x, a::y", "a, b"]);
    }

    #[test]
    fn a_module_and_its_children_are_no_circle() {
        let (_folder, graph) = package(&[
            ("lib.rs", "mod a;\npub fn root() {}"),
            ("a.rs", "mod x;\nuse x::X;\npub struct A;"),
            ("a/x.rs", "use super::A;\nuse crate::root;\npub struct X;"),
        ]);
        assert!(graph.circles().is_empty(), "{:?}", graph.circles());
    }

    #[test]
    fn a_text_without_the_table_is_refused() {
        assert!(Rooms::parse("## Others\n").is_err());
        assert!(Rooms::parse("## Rooms of the library\n\nnone\n").is_err());
    }
}

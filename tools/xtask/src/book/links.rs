//! Finds links in HTML whose file or anchor does not exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use html5gum::{Token, Tokenizer};

use crate::pages;

/// A server may show this page for any address, so its links start at the root of the server.
const NOT_FOUND: &str = "404.html";

/// Returns the number of links inside the book in that folder, and the dead ones. rustdoc has checked the pages in the
/// folder `apart`, so only their names count.
pub(super) fn check(book: &Path, apart: &str) -> Result<(usize, Vec<String>)> {
    let mut pages = BTreeMap::new();
    let mut files = BTreeSet::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(book.join(&folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                folders.push(path);
                continue;
            }
            let is_page = path
                .extension()
                .is_some_and(|extension| extension == "html");
            if is_page && !path.starts_with(apart) && path != Path::new(NOT_FOUND) {
                let html = fs::read_to_string(book.join(&path));
                let html = html.with_context(|| format!("reading {}", path.display()))?;
                pages.insert(path.clone(), Page::parse(&html));
            }
            files.insert(path);
        }
    }
    let mut links = 0;
    let mut dead = Vec::new();
    for (path, page) in &pages {
        for link in page.links.iter().filter(|link| !pages::is_external(link)) {
            links += 1;
            if !leads_somewhere(path, link, &pages, &files) {
                dead.push(format!("{}: {link}", path.display()));
            }
        }
    }
    ensure!(
        links > pages.len(),
        "only {links} links on {} pages",
        pages.len()
    );
    Ok((links, dead))
}

fn leads_somewhere(
    from: &Path,
    link: &str,
    pages: &BTreeMap<PathBuf, Page>,
    files: &BTreeSet<PathBuf>,
) -> bool {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let path = path.split('?').next().unwrap_or_default();
    let target = if path.is_empty() {
        Some(from.to_owned())
    } else {
        pages::resolve(&from.parent().unwrap_or(Path::new("")).join(path))
    };
    let Some(mut target) = target else {
        return false;
    };
    if !files.contains(&target) {
        target.push("index.html");
    }
    let page = pages.get(&target);
    files.contains(&target)
        && (anchor.is_empty() || page.is_none_or(|page| page.anchors.contains(anchor)))
}

#[derive(Default)]
struct Page {
    links: Vec<String>,
    anchors: BTreeSet<String>,
}

impl Page {
    fn parse(html: &str) -> Self {
        let mut page = Self::default();
        for Ok(token) in Tokenizer::new(html) {
            let Token::StartTag(tag) = token else {
                continue;
            };
            for (name, value) in &tag.attributes {
                let value = String::from_utf8_lossy(value).into_owned();
                match &***name {
                    b"href" | b"src" => page.links.push(value),
                    b"id" | b"name" => _ = page.anchors.insert(value),
                    _ => {}
                }
            }
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::check;
    use std::fs;

    #[test]
    fn dead_links_are_found_and_good_ones_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, html: &str| {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, html).unwrap();
        };
        write("404.html", "<a href=/nowhere.html>gone</a>");
        write("api/a/index.html", "<a href=nowhere.html>gone</a>");
        write(
            "b/c.html",
            "<h1 id=h>H</h1><img src='../p.svg?v=1'><a name=\"n\">n</a>",
        );
        write("p.svg", "<svg/>");
        let good = "<a href=b/c.html#h>1</a><a href=b/c.html#n>2</a><a href='https://e.org/'>3</a><a href=\"api/a/\">4</a><a href=api/a/index.html#x>5</a><p id=q><a href='#q'>6</a><!-- <a href=no> -->";
        write("index.html", good);
        assert_eq!(check(folder.path(), "api").unwrap(), (6, vec![]));
        let dead = "<a href=b/d.html>1</a><a href=b/c.html#x>2</a><script src=../x.js></script><a href=b/>4</a>";
        write("index.html", dead);
        let (links, dead) = check(folder.path(), "api").unwrap();
        assert_eq!((links, dead.len()), (5, 4), "{dead:?}");
    }
}

//! The command `docs`: builds the guide as a book in `target/book`, with the libraries' API documentation beside it.
//!
//! The stage `source` has checked every link of the pages. The book has the pages at their places in the repository, so that links
//! between them stay as they are; it names what else they link to.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use pulldown_cmark::{Event, Options, Parser, Tag};

use crate::install::Tool;
use crate::metadata::Metadata;
use crate::published::PUBLISHED;
use crate::stage::Stage;
use crate::{pages, setup, sources};

/// mdBook, without the features that serve a book while it is written.
const MDBOOK: Tool = Tool {
    name: "mdbook",
    version: Some("0.5.4"),
    arguments: &["--no-default-features", "--features", "search"],
};
/// The preprocessor that lets the reader's browser draw the guide's diagrams, as GitHub does.
const MERMAID: Tool = Tool {
    name: "mdbook-mermaid",
    version: Some("0.17.1"),
    arguments: &[],
};
/// The page that leads to the API documentation.
const API: &str = "API.md";
/// mdBook's settings, and the file that they name.
const SETTINGS: [&str; 2] = ["book.toml", "book.css"];

/// Runs the command `docs`.
pub(crate) fn run() -> Result<()> {
    let (mdbook, mermaid) = (MDBOOK.get()?, MERMAID.get()?);
    let stage = Stage::start("docs", crate::stage::DEFAULT_LIMIT);
    let folder = setup::target().join("book-source");
    let book = setup::target().join("book");
    let metadata = Metadata::of_workspace(&stage)?;
    let mut document = setup::cargo(["doc", "--no-deps", "--lib", "--all-features"])?;
    let mut api = vec!["# API documentation\n".to_owned()];
    for package in PUBLISHED {
        let package = metadata.package(package)?;
        if let Some(target) = package.targets.iter().find(|target| target.is_lib()) {
            let (name, about) = (&target.name, package.description.as_deref());
            let about = about.unwrap_or_default();
            api.push(format!(
                "- [`{}`](api/{name}/index.html): {about}",
                package.name
            ));
            document.args(["--package", &package.name]);
        }
    }
    sources::empty(&folder)?;
    write(setup::root(), &folder, &api.join("\n"))?;
    // The tool adds itself to the book's settings, and its script beside them.
    let mut install = setup::program(&mermaid.to_string_lossy());
    stage.output(install.arg("install").arg(&folder))?;
    let mut command = setup::program(&mdbook.to_string_lossy());
    command.env("MDBOOK_PREPROCESSOR__MERMAID__COMMAND", &mermaid);
    command.arg("build").arg(&folder).arg("--dest-dir");
    stage.output(command.arg(&book))?;
    // Otherwise the search would also find pages that other commands have written there.
    let documented = setup::target().join("doc");
    sources::empty(&documented)?;
    stage.output(&mut document)?;
    let mut copy = setup::program("cp");
    copy.arg("--recursive").arg(&documented);
    stage.output(copy.arg(book.join("api")))?;
    stage.say(&book.join("index.html").display().to_string());
    Ok(())
}

/// Writes the source of the book into that folder.
fn write(root: &Path, folder: &Path, api: &str) -> Result<()> {
    let into = folder.join("src");
    let guide = into.join(pages::GUIDE);
    fs::create_dir_all(into.join("docs/decisions"))?;
    for entry in fs::read_dir(root.join(pages::GUIDE))? {
        let path = entry?.path();
        if path.is_file() {
            fs::copy(&path, guide.join(path.file_name().context("a name")?))?;
        }
    }
    for name in SETTINGS {
        fs::rename(guide.join(name), folder.join(name)).context(name)?;
    }
    let listed = fs::read_to_string(root.join(pages::SUMMARY))?;
    let listed = listed.trim_start_matches("# Summary\n");
    let listed = listed.replace("](", &format!("]({}/", pages::GUIDE));
    let mut summary = vec![
        format!(
            "# Summary\n\n[eldest](README.md)\n[Contents]({})",
            pages::SUMMARY
        ),
        format!("{listed}\n# The project\n\n- [API documentation]({API})"),
    ];
    let mut pages = pages::files(root)?;
    pages.sort();
    for page in &pages {
        let text = fs::read_to_string(root.join(page))?;
        fs::write(
            into.join(page),
            without_other_links(root, &pages, page, &text),
        )?;
        if page.parent() == Some(Path::new("")) && !page.ends_with("README.md") {
            let title = text.lines().next().unwrap_or_default();
            let title = title.trim_start_matches("# ");
            summary.push(format!("- [{title}]({})", page.display()));
        }
    }
    fs::write(into.join(API), api)?;
    Ok(fs::write(into.join("SUMMARY.md"), summary.join("\n"))?)
}

/// Returns the text of a page; of links to others than the known pages only the text is left.
fn without_other_links(root: &Path, known: &[PathBuf], page: &Path, text: &str) -> String {
    let folder = root.join(page).with_file_name("");
    let is_page = |target: PathBuf| {
        let target = target.canonicalize().ok();
        let mut pages = known.iter().map(|page| root.join(page));
        target.is_some() && pages.any(|page| page.canonicalize().ok() == target)
    };
    let mut kept = String::new();
    let mut copied = 0;
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        let Event::Start(Tag::Link { dest_url, .. }) = event else {
            continue;
        };
        let (path, _) = dest_url.split_once('#').unwrap_or((&dest_url, ""));
        let is_external = path.contains("://") || path.starts_with("mailto:");
        if path.is_empty() || is_external || is_page(folder.join(path)) {
            continue;
        }
        let written = &text[range.clone()];
        kept.push_str(&text[copied..range.start]);
        kept.push_str(&written[1..written.rfind("](").unwrap_or(written.len())]);
        copied = range.end;
    }
    kept + &text[copied..]
}

#[cfg(test)]
mod tests {
    use super::{setup, without_other_links};
    use std::path::{Path, PathBuf};

    #[test]
    fn links_between_pages_stay_and_others_are_named() {
        let text = "[b](run.md#x) ![s](status-page.png) [r](../README.md) [`l`](../src/lib.rs#L1) [s](../src/) [e](https://e.org/) [h](#h)";
        let shown = "[b](run.md#x) ![s](status-page.png) [r](../README.md) `l` s [e](https://e.org/) [h](#h)";
        let page = Path::new("docs/ttl.md");
        let known = ["docs/run.md", "README.md"].map(PathBuf::from);
        let found = without_other_links(setup::root(), &known, page, text);
        assert_eq!(found, shown);
    }
}

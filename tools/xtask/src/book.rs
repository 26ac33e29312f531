//! The command `docs`: builds the guide as a book in `target/book`, with the libraries' API documentation beside it.
//!
//! The stage `source` has checked every link of the pages. The book has the pages at their places in the repository, so that links
//! between them stay as they are; it names what else they link to.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::install::Tool;
use crate::pages::{FRONT, GUIDE, SUMMARY};
use crate::published::{CLI, PUBLISHED};
use crate::setup;
use crate::stage::{DEFAULT_LIMIT, Stage};

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
/// Leaves only the text of links to files that the book does not have, for sed.
const WITHOUT_OTHERS: &str = r"s#\[([^]]*)\]\((\.\./)*((crates|deploy|examples|lab|src|tests|tools)(/[^)]*)?|LICENSE-[A-Z]+)\)#\1#g";

/// Runs the command `docs`.
pub(crate) fn run() -> Result<()> {
    let (mdbook, mermaid) = (MDBOOK.get()?, MERMAID.get()?);
    let stage = Stage::start("docs", DEFAULT_LIMIT);
    let (source, book) = (
        setup::target().join("book-source"),
        setup::target().join("book"),
    );
    setup::empty(&source)?;
    write(&stage, &source)?;
    // The tool adds itself to the book's settings, and its script beside them.
    let mut install = setup::program(&mermaid.to_string_lossy());
    stage.output(install.arg("install").arg(&source))?;
    let mut command = setup::program(&mdbook.to_string_lossy());
    command.env("MDBOOK_PREPROCESSOR__MERMAID__COMMAND", &mermaid);
    command.arg("build").arg(&source).arg("--dest-dir");
    stage.output(command.arg(&book))?;
    // Otherwise the search would also find pages that other commands have written there.
    let documented = setup::target().join("doc");
    setup::empty(&documented)?;
    let mut document = setup::cargo(["doc", "--no-deps", "--lib", "--all-features"])?;
    let libraries = PUBLISHED.iter().filter(|it| **it != CLI);
    document.args(libraries.flat_map(|library| ["--package", library]));
    stage.output(&mut document)?;
    let mut copy = setup::program("cp");
    copy.arg("--recursive").arg(&documented);
    stage.output(copy.arg(book.join("api")))?;
    stage.say(&book.join("index.html").display().to_string());
    Ok(())
}

/// Writes the source of the book into that folder.
fn write(stage: &Stage, folder: &Path) -> Result<()> {
    let pages = folder.join("src");
    fs::create_dir_all(&pages)?;
    let front = FRONT.map(|(file, _)| file);
    let mut copy = setup::program("cp");
    copy.arg("--recursive").arg(GUIDE).args(front);
    stage.output(copy.arg(&pages))?;
    for name in SETTINGS {
        fs::rename(pages.join(GUIDE).join(name), folder.join(name)).context(name)?;
    }
    let mut find = setup::program("find");
    find.arg(&pages)
        .args(["-name", "*.md", "-exec", "sed", "-i", "-E"]);
    stage.output(find.args([WITHOUT_OTHERS, "{}", "+"]))?;

    let libraries = PUBLISHED.iter().filter(|it| **it != CLI).map(|library| {
        let name = library.replace('-', "_");
        format!("- [`{library}`](api/{name}/index.html)\n")
    });
    let api = format!("# API documentation\n\n{}", libraries.collect::<String>());
    fs::write(pages.join(API), api)?;
    let listed = fs::read_to_string(setup::root().join(SUMMARY))?;
    let listed = listed.trim_start_matches("# Summary\n");
    let listed = listed.replace("](", &format!("]({GUIDE}/"));
    let mut summary = format!(
        "# Summary\n\n[eldest](README.md)\n[Contents]({SUMMARY})\n{listed}\n\
         # The project\n\n- [API documentation]({API})\n"
    );
    for file in front.iter().filter(|file| **file != "README.md") {
        let text = fs::read_to_string(pages.join(file))?;
        let title = text.lines().next().unwrap_or_default();
        let title = title.trim_start_matches("# ");
        writeln!(summary, "- [{title}]({file})")?;
    }
    Ok(fs::write(pages.join("SUMMARY.md"), summary)?)
}

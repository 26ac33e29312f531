//! The command `docs`: builds the guide as a book in `target/book`, with the libraries' API documentation beside it, and checks
//! every link in it.

mod links;
mod source;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

use crate::install::Tool;
use crate::metadata::Metadata;
use crate::published::PUBLISHED;
use crate::setup;
use crate::stage::Stage;

/// mdBook, without the features that serve a book while it is written.
const MDBOOK: Tool = Tool {
    name: "mdbook",
    version: Some("0.5.4"),
    ask: &["--version"],
    arguments: &["--no-default-features", "--features", "search"],
};
/// The preprocessor that lets the reader's browser draw the guide's diagrams, as GitHub does.
const MERMAID: Tool = Tool {
    name: "mdbook-mermaid",
    version: Some("0.17.1"),
    ask: &["--version"],
    arguments: &[],
};
/// The folder of the API documentation inside the book.
const API: &str = "api";

/// Runs the command `docs`.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    ensure!(args.is_empty(), "`cargo xtask docs` takes no arguments");
    let (mdbook, mermaid) = (MDBOOK.get()?, MERMAID.get()?);
    let stage = Stage::start("docs", crate::stage::DEFAULT_LIMIT);
    let (folder, book) = (
        setup::target().join("book-source"),
        setup::target().join("book"),
    );
    let libraries = libraries(&stage)?;
    let pages = source::write(setup::root(), &folder, &api_page(&libraries))?;
    stage.say(&format!("{pages} pages; building the book"));
    // The tool adds itself to the book's settings, and its script beside them.
    let mut install = setup::program(&mermaid.to_string_lossy());
    stage.output(install.arg("install").arg(&folder))?;
    let mut command = setup::program(&mdbook.to_string_lossy());
    command.env("MDBOOK_PREPROCESSOR__MERMAID__COMMAND", &mermaid);
    command.arg("build").arg(&folder).arg("--dest-dir");
    stage.output(command.arg(&book))?;
    stage.say("building the API documentation");
    document(&stage, &libraries, &book.join(API))?;
    let (links, dead) = links::check(&book, API)?;
    for link in &dead {
        println!("dead link: {link}");
    }
    ensure!(dead.is_empty(), "{} of {links} links are dead", dead.len());
    stage.say(&format!("{links} links, and each leads somewhere"));
    stage.say(&book.join("index.html").display().to_string());
    Ok(ExitCode::SUCCESS)
}

/// A published package with a library.
struct Library {
    package: String,
    /// The library's name in Rust.
    name: String,
    description: String,
    features: Vec<String>,
}

fn libraries(stage: &Stage) -> Result<Vec<Library>> {
    let metadata = Metadata::of_workspace(stage)?;
    let mut libraries = Vec::new();
    for published in PUBLISHED {
        let mut packages = metadata.packages().iter();
        let package = packages
            .find(|package| package.name == published)
            .with_context(|| format!("no package {published}"))?;
        let target = package.targets.iter().find(|target| target.is_lib());
        if let Some(target) = target {
            let features = package.features.keys();
            libraries.push(Library {
                package: published.to_owned(),
                name: target.name.replace('-', "_"),
                description: package.description.clone().unwrap_or_default(),
                features: features
                    .map(|feature| format!("{published}/{feature}"))
                    .collect(),
            });
        }
    }
    Ok(libraries)
}

/// Returns the page of the book that leads to the API documentation.
fn api_page(libraries: &[Library]) -> String {
    let lines = libraries.iter().map(|library| {
        let (package, name) = (&library.package, &library.name);
        format!(
            "- [`{package}`]({API}/{name}/index.html): {}\n",
            library.description
        )
    });
    format!("# API documentation\n\n{}", lines.collect::<String>())
}

/// Writes the API documentation of these libraries, with all their features, into that folder.
fn document(stage: &Stage, libraries: &[Library], into: &Path) -> Result<()> {
    // Otherwise the search would also find pages that other commands have written there.
    let written = setup::target().join("doc");
    if written.exists() {
        fs::remove_dir_all(&written).with_context(|| format!("emptying {}", written.display()))?;
    }
    let mut cargo = setup::cargo(["doc", "--no-deps", "--lib"])?;
    for library in libraries {
        cargo.args(["--package", &library.package]);
    }
    let features = libraries.iter().flat_map(|library| &library.features);
    cargo.args([
        "--features",
        &features.cloned().collect::<Vec<_>>().join(","),
    ]);
    stage.output(&mut cargo)?;
    let mut copy = setup::program("cp");
    stage.output(copy.arg("--recursive").arg(&written).arg(into))?;
    Ok(())
}

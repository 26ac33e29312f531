//! Writes the source of the book: the pages, at their places in the repository so that links between them stay as they are, and
//! a page for each file or folder outside the guide that a page links to.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::pages;

/// mdBook's settings, and the files that they name.
const SETTINGS: &str = "book.toml";
const STYLE: &str = "book.css";
/// The front page of the repository and of the book.
const README: &str = "README.md";
/// The README's place in the book, and that of the first page of any folder.
const INDEX: &str = "index.md";
/// The file from which mdBook reads the order of the pages.
const SUMMARY: &str = "SUMMARY.md";
/// The page that leads to the API documentation, and the one that lists the files.
const API: &str = "API.md";
const FILES: &str = "FILES.md";

/// Writes the source of the book into that folder, and returns the number of its pages.
pub(super) fn write(root: &Path, folder: &Path, api: &str) -> Result<usize> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("emptying {}", folder.display()))?;
    }
    let source = Source::of(root)?;
    let into = folder.join("src");
    for (path, text) in &source.pages {
        put(&into.join(path), text)?;
    }
    put(&into.join(API), api)?;
    put(&into.join(FILES), &source.list_of_files())?;
    put(&into.join(SUMMARY), &source.summary()?)?;
    for path in &source.copies {
        let to = into.join(path);
        fs::create_dir_all(to.parent().unwrap_or(&into))?;
        fs::copy(root.join(path), to).with_context(|| format!("copying {}", path.display()))?;
    }
    let guide = root.join(pages::GUIDE);
    let settings = fs::read_to_string(guide.join(SETTINGS)).context("reading the settings")?;
    put(&folder.join(SETTINGS), &(settings + &source.unsearched()))?;
    fs::copy(guide.join(STYLE), folder.join(STYLE)).context("copying the style")?;
    Ok(source.pages.len())
}

fn put(path: &Path, text: &str) -> Result<()> {
    let folder = path.parent().context("a folder")?;
    fs::create_dir_all(folder)?;
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// The target of a page's link, by its path in the repository.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Page(PathBuf),
    /// A file, shown on a page of its own.
    File(PathBuf),
    /// A folder without a README, whose files are listed.
    Folder(PathBuf),
    /// A file that is copied unchanged.
    Copy(PathBuf),
}

impl Target {
    fn of(root: &Path, path: PathBuf) -> Self {
        let readme = path.join(README);
        let is_text = || fs::read_to_string(root.join(&path)).is_ok();
        if root.join(&readme).is_file() {
            Self::Page(readme)
        } else if root.join(&path).is_dir() {
            Self::Folder(path)
        } else if path.extension().is_some_and(|extension| extension == "md") {
            Self::Page(path)
        } else if path.starts_with(pages::GUIDE) || !is_text() {
            Self::Copy(path)
        } else {
            Self::File(path)
        }
    }

    /// Returns the link to the target, if `link` leads to its path in the repository.
    fn link(&self, link: &str) -> String {
        let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
        match self {
            Self::Page(page) if page.ends_with(README) => {
                let folder = path.trim_end_matches(README).trim_end_matches('/');
                let folder = PathBuf::from(folder);
                folder.join(INDEX).display().to_string()
            }
            Self::Folder(_) => format!("{}/{INDEX}", path.trim_end_matches('/')),
            Self::File(_) => format!("{path}.md"),
            Self::Page(_) if !anchor.is_empty() => link.to_owned(),
            Self::Page(_) | Self::Copy(_) => path.to_owned(),
        }
    }
}

struct Source<'a> {
    root: &'a Path,
    /// The text of each page.
    pages: BTreeMap<PathBuf, String>,
    /// Files that are copied unchanged.
    copies: BTreeSet<PathBuf>,
    /// The pages that the guide's summary cannot list, and what they show.
    others: BTreeMap<PathBuf, String>,
}

impl<'a> Source<'a> {
    /// Reads all pages, and all files that they link to.
    fn of(root: &'a Path) -> Result<Self> {
        let mut source = Self {
            root,
            pages: BTreeMap::new(),
            copies: BTreeSet::new(),
            others: BTreeMap::new(),
        };
        let written = pages::files(root)?;
        let known: BTreeSet<PathBuf> = written.iter().cloned().collect();
        let mut due: VecDeque<Target> = written.into_iter().map(Target::Page).collect();
        let mut seen = BTreeSet::new();
        while let Some(target) = due.pop_front() {
            if seen.insert(target.clone()) {
                due.extend(source.add(target, &known)?);
            }
        }
        Ok(source)
    }

    /// Adds the page of a target, and returns the targets of its links.
    fn add(&mut self, target: Target, known: &BTreeSet<PathBuf>) -> Result<Vec<Target>> {
        let root = self.root;
        let (page, shows, text, linked) = match target {
            Target::Copy(path) => {
                self.copies.insert(path);
                return Ok(Vec::new());
            }
            Target::Page(path) => {
                let text = fs::read_to_string(root.join(&path));
                let text = text.with_context(|| format!("reading {}", path.display()))?;
                let (text, linked) = relinked(root, &path, &text)
                    .with_context(|| format!("the links of {}", path.display()))?;
                let shows = (!known.contains(&path)).then(|| path.display().to_string());
                (placed(&path), shows, text, linked)
            }
            Target::File(path) => {
                let text = fs::read_to_string(root.join(&path))?;
                let shows = path.display().to_string();
                (appended(&path), Some(shows), listing(&path, &text), vec![])
            }
            Target::Folder(path) => {
                let (text, linked) = contents(root, &path)?;
                let shows = format!("{}/", path.display());
                (path.join(INDEX), Some(shows), text, linked)
            }
        };
        if let Some(shows) = shows {
            self.others.insert(page.clone(), shows);
        }
        self.pages.insert(page, text);
        Ok(linked)
    }

    fn list_of_files(&self) -> String {
        let mut text = "# Files\n\nThe pages of this book link to these files and folders of the repository.\n\n".to_owned();
        for (page, shows) in &self.others {
            let _ = writeln!(text, "- [`{shows}`]({})", page.display());
        }
        text
    }

    /// Returns settings that keep the files out of the book's search, which would otherwise find little else.
    fn unsearched(&self) -> String {
        let pages = self.others.keys();
        let lines =
            pages.map(|page| format!("{:?} = {{ enable = false }}\n", page.display().to_string()));
        format!(
            "\n[output.html.search.chapter]\n{}",
            lines.collect::<String>()
        )
    }

    /// Returns the guide's summary, with the other pages around it.
    fn summary(&self) -> Result<String> {
        let guide = fs::read_to_string(self.root.join(pages::SUMMARY))?;
        let guide = guide.trim_start_matches("# Summary\n");
        let guide = replaced(guide, |link| {
            let page = Path::new(pages::GUIDE).join(link);
            Some(placed(&page).display().to_string())
        })?;
        let mut text = format!(
            "# Summary\n\n[eldest]({INDEX})\n[Contents]({})\n{guide}\n# The project\n\n- [API documentation]({API})\n",
            pages::SUMMARY
        );
        let front = self.pages.iter().filter(|(page, _)| {
            let is_front = page.parent() == Some(Path::new(""));
            is_front && !self.others.contains_key(*page) && *page != Path::new(INDEX)
        });
        for (page, page_text) in front {
            let title = title(page_text).with_context(|| format!("{}", page.display()))?;
            let _ = writeln!(text, "- [{title}]({})", page.display());
        }
        let _ = writeln!(text, "- [Files]({FILES})");
        for (page, shows) in &self.others {
            let _ = writeln!(text, "  - [`{shows}`]({})", page.display());
        }
        Ok(text)
    }
}

/// Returns the place of a page of the repository in the book.
fn placed(page: &Path) -> PathBuf {
    if page.ends_with(README) {
        page.with_file_name(INDEX)
    } else {
        page.to_owned()
    }
}

/// Returns the path of a file's page.
fn appended(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}.md", path.display()))
}

/// Returns a page that shows a file.
fn listing(path: &Path, text: &str) -> String {
    let extension = path.extension().and_then(|extension| extension.to_str());
    let language = match extension {
        // The lines that mdBook would add or run are excluded.
        Some("rs") => "rust,ignore",
        Some(extension) => extension,
        None => "text",
    };
    let longest = text.lines().map(|line| {
        let line = line.trim_start();
        line.len() - line.trim_start_matches('`').len()
    });
    let fence = "`".repeat(longest.max().unwrap_or(0).max(2) + 1);
    format!(
        "# `{}`\n\n{fence}{language}\n{}\n{fence}\n",
        path.display(),
        text.trim_end()
    )
}

/// Returns a page that lists the files of a folder, and those files.
fn contents(root: &Path, folder: &Path) -> Result<(String, Vec<Target>)> {
    let mut text = format!("# `{}/`\n\n", folder.display());
    let mut linked = Vec::new();
    let mut folders = vec![folder.to_owned()];
    let mut files = BTreeSet::new();
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(root.join(&next))? {
            let entry = entry?;
            let path = next.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else {
                files.insert(path);
            }
        }
    }
    for path in files {
        let shown = path.strip_prefix(folder)?.display().to_string();
        let target = Target::of(root, path);
        let _ = writeln!(text, "- [`{shown}`]({})", target.link(&shown));
        linked.push(target);
    }
    Ok((text, linked))
}

/// Returns the text of a page with links to the targets' places in the book, and the targets.
fn relinked(root: &Path, from: &Path, text: &str) -> Result<(String, Vec<Target>)> {
    let folder = from.parent().unwrap_or(Path::new(""));
    let mut linked = Vec::new();
    let text = replaced(text, |link| {
        let (path, _) = link.split_once('#').unwrap_or((link, ""));
        if path.is_empty() || pages::is_external(link) {
            return None;
        }
        let target = Target::of(root, pages::resolve(&folder.join(path))?);
        let link = target.link(link);
        linked.push(target);
        Some(link)
    })?;
    Ok((text, linked))
}

/// Returns the text with other links, where `change` returns one.
fn replaced(text: &str, mut change: impl FnMut(&str) -> Option<String>) -> Result<String> {
    let mut replaced = String::new();
    let mut copied = 0;
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        let Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) = event else {
            continue;
        };
        let Some(changed) = change(&dest_url) else {
            continue;
        };
        let written = &text[range.clone()];
        let at = written.rfind(&*dest_url).with_context(|| {
            format!("`{written}` must contain its target; references are not supported")
        })?;
        let start = range.start + at;
        replaced.push_str(&text[copied..start]);
        replaced.push_str(&changed);
        copied = start + dest_url.len();
    }
    replaced.push_str(&text[copied..]);
    Ok(replaced)
}

/// Returns the first heading of a page.
fn title(text: &str) -> Option<String> {
    let events =
        Parser::new(text).skip_while(|event| !matches!(event, Event::Start(Tag::Heading { .. })));
    let events = events.take_while(|event| !matches!(event, Event::End(TagEnd::Heading(_))));
    let title: String = events
        .filter_map(|event| match event {
            Event::Text(text) | Event::Code(text) => Some(text.to_string()),
            _ => None,
        })
        .collect();
    (!title.is_empty()).then_some(title)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_where_the_book_has_their_targets() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for (file, text) in [
            ("README.md", "# A"),
            ("docs/b.md", "# B"),
            ("docs/b.svg", "<svg/>"),
            ("src/lib.rs", "//! ```\n"),
            ("tool/README.md", "# Tool"),
        ] {
            put(&root.join(file), text).unwrap();
        }
        let text = "[b](b.md#x) ![s](b.svg) [README.md](../README.md) [l](../src/lib.rs#L1) [s](../src/) [t](../tool) [e](https://e.org/) [h](#h)";
        let (text, linked) = relinked(root, Path::new("docs/a.md"), text).unwrap();
        assert_eq!(
            text,
            "[b](b.md#x) ![s](b.svg) [README.md](../index.md) [l](../src/lib.rs.md) [s](../src/index.md) [t](../tool/index.md) [e](https://e.org/) [h](#h)"
        );
        let paths = [
            "docs/b.md",
            "docs/b.svg",
            "README.md",
            "src/lib.rs",
            "src",
            "tool/README.md",
        ];
        let [page, copy, readme, file, sources, tool] = paths.map(PathBuf::from);
        let expected = [
            Target::Page(page),
            Target::Copy(copy),
            Target::Page(readme),
            Target::File(file),
            Target::Folder(sources.clone()),
            Target::Page(tool),
        ];
        assert_eq!(linked, expected);
        let (text, linked) = contents(root, &sources).unwrap();
        assert_eq!(text, "# `src/`\n\n- [`lib.rs`](lib.rs.md)\n");
        assert_eq!(linked, [expected[3].clone()]);
    }

    #[test]
    fn a_link_by_reference_is_refused() {
        let text = "[a][b]\n\n[b]: ../c.md\n";
        assert!(replaced(text, |_| Some(String::new())).is_err());
        assert_eq!(replaced(text, |_| None).unwrap(), text);
    }

    #[test]
    fn a_listing_contains_its_file_whole() {
        let page = listing(Path::new("a/b.rs"), "//! ```\n//! ````\n");
        assert_eq!(
            page,
            "# `a/b.rs`\n\n```rust,ignore\n//! ```\n//! ````\n```\n"
        );
        let page = listing(Path::new("LICENSE"), "````\n");
        assert_eq!(page, "# `LICENSE`\n\n`````text\n````\n`````\n");
    }

    #[test]
    fn a_page_is_titled_by_its_first_heading() {
        assert_eq!(
            title("text\n\n# The `a` page\n\n# B\n").as_deref(),
            Some("The a page")
        );
        assert_eq!(title("text"), None);
    }

    #[test]
    fn the_summary_lists_every_page_of_this_repository() {
        let source = Source::of(crate::setup::root()).unwrap();
        let summary = source.summary().unwrap();
        for page in source.pages.keys() {
            let link = format!("]({})", page.display());
            assert_eq!(summary.matches(&link).count(), 1, "{}", page.display());
        }
    }
}

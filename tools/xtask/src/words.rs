//! Refuses comments and names of tests that hide their subject: those that open with `What` or `Who`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::setup;
use crate::stage::Stage;

/// The openings that no comment may have.
const REFUSED: [&str; 11] = [
    "As of", "It", "Of", "That", "These", "Those", "Until", "What", "Whether", "Who", "Whoever",
];
/// The first words that no name of a test may have.
const RIDDLES: [&str; 10] = [
    "it", "nobody", "of", "somebody", "that", "until", "what", "whatever", "who", "whose",
];
const RULE: &str = "name the subject first, or open with a verb";
const MARKERS: [&str; 3] = ["///", "//!", "//"];
/// The end of a test's attribute, whichever macro it names.
const TEST: &str = "test]";
/// The folders of compiled files and of the history, which have foreign comments.
const NOT_OURS: [&str; 2] = ["target", ".git"];

/// Runs as a part of the stages `source` and `check`.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    let files = files(setup::root(), &["rs"])?;
    ensure!(!files.is_empty(), "there are no sources");
    let mut broken = Vec::new();
    for file in &files {
        let path = file.strip_prefix(setup::root()).unwrap_or(file);
        let (name, source) = (path.display(), fs::read_to_string(file)?);
        let openings = refused(&source).into_iter();
        broken.extend(
            openings
                .map(|(line, word)| format!("{name}:{line}: a comment opens with {word}: {RULE}")),
        );
        let riddles = riddles(&source).into_iter();
        broken.extend(
            riddles
                .map(|(line, word)| format!("{name}:{line}: a test is named {word}_...: {RULE}")),
        );
    }
    let holds = format!(
        "{} sources: comments and tests name their subjects",
        files.len()
    );
    stage.judge(&holds, broken);
    Ok(())
}

/// Returns the files below that folder whose names end like that.
pub(crate) fn files(folder: &Path, endings: &[&str]) -> Result<Vec<PathBuf>> {
    let (mut folders, mut files) = (vec![folder.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder);
        for entry in entries.with_context(|| format!("reading {}", folder.display()))? {
            let entry = entry?;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                let is_ours = NOT_OURS.iter().all(|name| entry.file_name() != *name);
                folders.extend(is_ours.then_some(path));
            } else if path
                .extension()
                .is_some_and(|extension| endings.iter().any(|ending| extension == *ending))
            {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Returns the line and the opening of each documentation comment that must not open like that.
fn refused(source: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    let mut above = None;
    for (line, text) in (1..).zip(source.lines().map(str::trim_start)) {
        let marker = MARKERS.into_iter().find(|marker| text.starts_with(marker));
        if let Some(marker) = marker.filter(|_| marker != above) {
            let text = text[marker.len()..].trim_start();
            let opens = |word: &&str| {
                let rest = text.strip_prefix(word);
                rest.is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
            };
            found.extend(REFUSED.into_iter().find(opens).map(|word| (line, word)));
        }
        above = marker;
    }
    found
}

/// Returns the line and the first word of each test's name that hides its subject.
fn riddles(source: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    let mut is_test = false;
    for (line, text) in (1..).zip(source.lines().map(str::trim)) {
        if text.starts_with("#[") {
            is_test |= text.ends_with(TEST) || text.starts_with("#[tokio::test");
        } else if let Some((_, name)) = text.split_once("fn ") {
            let first = name.split('_').next();
            let riddle = RIDDLES
                .into_iter()
                .find(|word| is_test && first == Some(word));
            found.extend(riddle.map(|word| (line, word)));
            is_test = false;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{refused, riddles};

    #[test]
    fn opening_that_hides_the_subject_is_found_with_its_line() {
        let source = "//! What it does.\n\n/// Returns the leader.\n/// It may be old.\nfn a() {}\n  /// As of now.\n// Who calls.\n\
                      \t/// It's gone.\n/// Of two.\na,\n/// Items.\nb,\n/// `What`.\n";
        let found = [(1, "What"), (6, "As of"), (7, "Who"), (8, "It")];
        assert_eq!(refused(source), found);
    }

    #[test]
    fn name_that_hides_the_subject_is_found_in_tests_alone() {
        let source = "#[test]\nfn who_leads() {}\nfn what_is_left() {}\n#[tokio::test(start_paused = true)]\n#[ignore]\n\
                      async fn that_is_it() {}\n#[test]\nfn whole_names_count() {}\n";
        assert_eq!(riddles(source), [(2, "who"), (6, "that")]);
    }
}

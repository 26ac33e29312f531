//! Holds the project's terms, one for each thing, and refuses their synonyms in sources, pages, help texts and field names.

use std::fs;

use anyhow::{Result, ensure};

use crate::setup;
use crate::stage::Stage;
use crate::words;

/// A thing, and the words for it that nobody must use.
struct Term {
    /// The word that is used, in every place.
    used: &'static str,
    refused: &'static [&'static str],
}

const TERMS: [Term; 17] = [
    term("again, or `a new ...`", &["anew"]),
    term("candidacy", &["candidature"]),
    term(
        "data centre in prose, data-center in options, data_center in fields",
        &[
            "data center",
            "data centers",
            "datacenter",
            "datacenters",
            "datacentre",
        ],
    ),
    term("endpoint", &["end point", "end points"]),
    term("fencing token", &["fence token", "fencing number"]),
    term("grace period", &["grace time"]),
    term("hand-over", &["hand-off", "handoff"]),
    term("linearizable", &["linearisable"]),
    term("member of etcd", &["etcd node", "etcd nodes"]),
    term("namespace", &["name space"]),
    term("notified, reported, logged or answered", &["told"]),
    term("observer", &["onlooker", "onlookers"]),
    term("rejoin", &["re-join", "re-joins"]),
    term("step down, or step-down in names", &["stepdown"]),
    term("takeover", &["take-over"]),
    term("the one that acts", &["whoever"]),
    term(
        "trust, assume or expect",
        &["believe", "believed", "believes"],
    ),
];

const fn term(used: &'static str, refused: &'static [&'static str]) -> Term {
    Term { used, refused }
}

/// The endings of the files that people read or write.
const TEXTS: [&str; 10] = [
    "html", "js", "json", "md", "py", "rs", "sh", "toml", "yaml", "yml",
];
/// The two files that contain the words, and the list of changes, which quotes former names.
const EXCEPT: [&str; 3] = [
    "tools/xtask/src/terms.rs",
    "tools/xtask/src/words.rs",
    "CHANGELOG.md",
];

/// Runs as a part of the stages `source` and `check`.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    let files = words::files(setup::root(), &TEXTS)?;
    ensure!(!files.is_empty(), "there are no texts");
    let mut broken = Vec::new();
    for file in &files {
        let path = file.strip_prefix(setup::root()).unwrap_or(file);
        if EXCEPT.iter().any(|name| path.ends_with(name)) {
            continue;
        }
        let text = fs::read_to_string(file)?;
        broken.extend(refused(&text).into_iter().map(|(line, word, used)| {
            format!("{}:{line}: the word {word}: write {used}", path.display())
        }));
    }
    stage.judge(
        &format!("{} texts: one word for one thing", files.len()),
        broken,
    );
    Ok(())
}

/// Returns the line, the word and its replacement for each word that is refused. The parts of a name are words.
fn refused(text: &str) -> Vec<(usize, &'static str, &'static str)> {
    let mut found = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        for Term { used, refused } in &TERMS {
            let here = refused.iter().filter(|word| contains(text, word));
            found.extend(here.map(|word| (line, *word, *used)));
        }
    }
    found
}

/// Returns true if the word stands in the line by itself, with or without a capital letter.
fn contains(line: &str, word: &str) -> bool {
    let (first, rest) = word.split_at(1);
    let capital = first.to_uppercase() + rest;
    [word, &capital].into_iter().any(|word| {
        line.match_indices(word).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + word.len()..].chars().next();
            let ends = |next: Option<char>| next.is_none_or(|next| !next.is_alphabetic());
            ends(before) && ends(after)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::refused;

    #[test]
    fn synonym_is_found_in_prose_and_in_names_with_its_line() {
        let text = "Whoever asks.\nfn a() {}\nlet is_told = untold;\nTwo data centers, data_center, --data-center.\nDataCenter\n";
        let found = refused(text).into_iter();
        let found: Vec<_> = found.map(|(line, word, _)| (line, word)).collect();
        assert_eq!(found, [(1, "whoever"), (3, "told"), (4, "data centers")]);
    }
}

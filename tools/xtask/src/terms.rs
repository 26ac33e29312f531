//! Holds the project's terms, one for each thing, and refuses their synonyms in pages, help texts and field names.

use anyhow::{Context, Result, ensure};

use crate::setup;
use crate::stage::Stage;

/// The word that is used in every place, and its synonyms as an extended regular expression.
const TERMS: [(&str, &str); 17] = [
    ("again, or `a new ...`", "anew"),
    ("candidacy", "candidature"),
    (
        "data centre in prose, data-center in options, data_center in fields",
        "data ?centers?|datacentre",
    ),
    ("endpoint", "end points?"),
    ("fencing token", "fence token|fencing number"),
    ("grace period", "grace time"),
    ("hand-over", "hand-?off"),
    ("linearizable", "linearisable"),
    ("member of etcd", "etcd nodes?"),
    ("namespace", "name space"),
    ("notified, reported, logged or answered", "told"),
    ("observer", "onlookers?"),
    ("rejoin", "re-joins?"),
    ("step down, or step-down in names", "stepdown"),
    ("takeover", "take-over"),
    ("the one that acts", "whoever"),
    ("trust, assume or expect", "believe[ds]?"),
];
/// Where former names and the refused ones themselves may stand.
const EXCEPT: [&str; 3] = [":!CHANGELOG.md", ":!*.lock", ":!tools/xtask/src/terms.rs"];

/// Runs as a part of the stages `source` and `check`.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    let words = TERMS.iter().flat_map(|(_, refused)| refused.split('|'));
    let words = words.map(|word| {
        let (first, rest) = word.split_at(1);
        format!("[{first}{}]{rest}", first.to_uppercase())
    });
    let words = words.collect::<Vec<_>>().join("|");
    // The parts of a name are words.
    let alone = format!("(^|[^[:alpha:]])({words})([^[:alpha:]]|$)");
    let mut grep = setup::program("git");
    grep.args([
        "grep",
        "--untracked",
        "-I",
        "--line-number",
        "--extended-regexp",
    ]);
    let found = grep.args([&alone, "--"]).args(EXCEPT).output();
    let found = found.context("starting git")?;
    // git exits with 1 if it finds nothing, and with more if it cannot search.
    ensure!(found.status.code() < Some(2), "git grep refuses {alone}");
    let lines = String::from_utf8_lossy(&found.stdout).into_owned();
    let broken = lines
        .lines()
        .map(|line| format!("{line}: tools/xtask/src/terms.rs has a word for it"));
    stage.judge("one word for one thing", broken.collect());
    Ok(())
}

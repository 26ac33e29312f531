//! Writes the tables of `docs/performance.md` from saved runs, so that nobody copies figures by hand.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::kept::{self, Kept, Line, PEERS};
use crate::report::figure;

const BEGIN: &str = "<!-- written by `cargo xtask bench plot`: begin -->\n";
const END: &str = "<!-- written by `cargo xtask bench plot`: end -->\n";

/// One thing that peers did, and what it cost each of them.
type Measured<'a> = ((&'a str, usize, &'a str), Vec<&'a Line>);

/// The page that belongs to a folder of kept runs, with the tables of these; none if it has no place for them.
pub(crate) fn page(folder: &Path) -> Result<Option<String>> {
    let path = folder.with_extension("md");
    let Ok(page) = fs::read_to_string(&path) else {
        return Ok(None);
    };
    let Some((before, (_, after))) = page
        .split_once(BEGIN)
        .and_then(|(before, rest)| Some((before, rest.split_once(END)?)))
    else {
        return Ok(None);
    };
    let tables = tables(&kept::read(folder)?)?;
    Ok(Some(format!("{before}{BEGIN}\n{tables}\n{END}{after}")))
}

fn tables(runs: &[Kept]) -> Result<String> {
    let first = runs.first().context("nothing is kept there")?;
    let about = &first.about;
    let mut text = format!(
        "`{}`, begun {}, {} s, load {} at the beginning; medians.\n\n",
        about.command, about.begun, about.seconds, about.load[0]
    );
    costs(&mut text, &first.lines)?;
    text.push_str("\nWhat had to be reached, in the same run:\n\n");
    verdicts(&mut text, &first.table)?;
    if runs.len() > 1 {
        text.push_str("\nThe medians of `eldest` to those of the limit and of Go, by where etcd has its data:\n\n");
        places(&mut text, runs)?;
    }
    Ok(text)
}

/// What was measured, in the order in which that began.
fn measured(lines: &[Line]) -> Vec<Measured<'_>> {
    let mut groups: Vec<Measured> = Vec::new();
    for line in lines {
        let what = (line.bench.as_str(), line.n, line.unit.as_str());
        match groups.iter_mut().find(|(known, _)| *known == what) {
            Some((_, lines)) => lines.push(line),
            None => groups.push((what, vec![line])),
        }
    }
    groups
}

fn costs(text: &mut String, lines: &[Line]) -> Result<()> {
    writeln!(
        text,
        "| bench | n | unit | {} | others | to the limit | to Go | samples |",
        PEERS.join(" | ")
    )?;
    writeln!(text, "|{}", "---|".repeat(PEERS.len() + 7))?;
    for ((bench, n, unit), lines) in measured(lines) {
        let of = |peer: &str| lines.iter().find(|line| line.peer == peer);
        let cells = PEERS.map(|peer| of(peer).map(|line| figure(line.p50)).unwrap_or_default());
        let others = lines
            .iter()
            .filter(|line| !PEERS.contains(&line.peer.as_str()));
        let others: Vec<_> = others
            .map(|line| format!("{} {}", line.peer, figure(line.p50)))
            .collect();
        let to = |peer: &str| {
            let ratio = of("eldest")?.p50 / of(peer)?.p50;
            ratio.is_finite().then(|| format!("{ratio:.2}"))
        };
        let samples = of("eldest")
            .or(lines.first())
            .map_or(0, |line| line.samples);
        writeln!(
            text,
            "| `{bench}` | {n} | {unit} | {} | {} | {} | {} | {samples} |",
            cells.join(" | "),
            others.join(", "),
            to("limit").unwrap_or_default(),
            to("go").unwrap_or_default(),
        )?;
    }
    Ok(())
}

/// What was told under the rows: `bench n=2: what 1.14, at most 1.30: reached`, and perhaps that the limit forbids it.
fn verdicts(text: &mut String, table: &str) -> Result<()> {
    text.push_str("| bench | what | measured | at most | |\n|---|---|---|---|---|\n");
    let mut lines = table.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(verdict) = line.strip_prefix("  ").and_then(verdict) else {
            continue;
        };
        let [bench, what, measured, most, reached] = verdict;
        let forbidden = lines
            .peek()
            .and_then(|next| next.trim_start().strip_prefix("the limit itself: "));
        let said = match (reached, forbidden) {
            ("reached", _) => "reached".to_owned(),
            (_, Some(limit)) => format!("**cannot be**: the limit itself needs {limit}"),
            _ => "**not reached**".to_owned(),
        };
        writeln!(
            text,
            "| `{bench}` | {what} | {measured} | {most} | {said} |"
        )?;
    }
    Ok(())
}

fn verdict(line: &str) -> Option<[&str; 5]> {
    let (bench, rest) = line.split_once(": ")?;
    let (figures, reached) = rest.rsplit_once(": ")?;
    let (measured, most) = figures.split_once(", at most ")?;
    let (what, measured) = measured.rsplit_once(' ')?;
    Some([bench, what, measured, most, reached])
}

fn places(text: &mut String, runs: &[Kept]) -> Result<()> {
    let mut rows: BTreeMap<(&str, usize), Vec<String>> = BTreeMap::new();
    let mut head = String::from("| bench | n |");
    for (at, run) in runs.iter().enumerate() {
        write!(head, " {} |", run.kind())?;
        for line in run.lines.iter().filter(|line| line.peer == "eldest") {
            let (Some(limit), Some(go)) = (line.ratio_to_limit, line.ratio_to_go) else {
                continue;
            };
            let row = rows.entry((&line.bench, line.n)).or_default();
            row.resize(at, String::new());
            row.push(format!("{limit:.2}, {go:.2}"));
        }
    }
    writeln!(text, "{head}\n|{}", "---|".repeat(runs.len() + 2))?;
    for ((bench, n), cells) in rows.iter().filter(|(_, cells)| cells.len() > 1) {
        writeln!(text, "| `{bench}` | {n} | {} |", cells.join(" | "))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{page, verdict};

    /// `cargo xtask bench plot` writes them again.
    #[test]
    fn the_page_s_tables_are_of_the_figures_in_its_folder() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/performance");
        let written = page(&folder)
            .unwrap()
            .expect("a page with a place for them");
        let kept = fs::read_to_string(folder.with_extension("md")).unwrap();
        assert!(written == kept, "`cargo xtask bench plot` writes others");
    }

    #[test]
    fn a_verdict_is_told_as_the_report_writes_it() {
        let line = "takeover/killed n=5: max, eldest / go 1.02, at most 1.00: NOT REACHED";
        let parts = [
            "takeover/killed n=5",
            "max, eldest / go",
            "1.02",
            "1.00",
            "NOT REACHED",
        ];
        assert_eq!(verdict(line), Some(parts));
        assert_eq!(verdict("handover: 48.7 s"), None);
        assert_eq!(verdict("skipped go: it is not there"), None);
    }
}

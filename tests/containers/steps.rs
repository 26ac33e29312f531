//! Reads the steps of the walk in docs/compose.md, and replaces the parts of a line that differ between walks.

/// A command of the page, and the lines that the page shows after it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) command: String,
    pub(crate) lines: Vec<String>,
}

/// Reads the page's steps: commands from its shell blocks, each with the lines of the next text block.
pub(crate) fn steps() -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut language = None;
    for line in include_str!("../../docs/compose.md").lines() {
        match (line.strip_prefix("```"), language) {
            (Some(begins), None) => language = Some(begins),
            (Some(_), Some(_)) => language = None,
            (None, Some("sh")) => {
                let command = line.split(" # ").next().unwrap_or_default().trim();
                let command = command.to_owned();
                steps.push(Step {
                    command,
                    lines: Vec::new(),
                });
            }
            (None, Some("text")) => {
                let step = steps.last_mut().expect("a command comes before its lines");
                step.lines.push(line.to_owned());
            }
            (None, _) => {}
        }
    }
    steps
}

/// Replaces the parts that differ from run to run: times, tokens, counts, ages, and the width of a column for them.
pub(crate) fn alike(line: &str) -> String {
    let mut before = "";
    let words = line.split_whitespace().map(|word| {
        let time = word.len() == "2026-11-21T11:00:00.123Z".len() && word.ends_with('Z');
        let counted = ["token", "answered"].contains(&before) || is_age(before);
        let number = word.trim_end_matches(',').parse::<u64>().is_ok() && counted;
        let alike = match (time, number, is_age(word)) {
            (true, _, _) => "TIME",
            (_, true, _) => "N",
            (_, _, true) => "AGE",
            _ => word,
        };
        before = word;
        alike.to_owned()
            + if word.ends_with(',') && number {
                ","
            } else {
                ""
            }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Returns true for an age as it is shown to people: `7s`, `1m24s`.
fn is_age(word: &str) -> bool {
    let digits = |c: char| c.is_ascii_digit();
    word.starts_with(digits) && word.ends_with('s') && {
        let units = word.split(digits).filter(|unit| !unit.is_empty());
        units
            .into_iter()
            .all(|unit| ["h", "m", "s", "ms"].contains(&unit))
    }
}

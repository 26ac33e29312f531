//! Weaves many mutants into one source file: a function with mutants gets its own body and one for each of them, and
//! the environment selects one. So the workspace is built once, not once for each mutant.
//!
//! It does not parse Rust. In rustfmt's layout a function ends at the first line that is a closing brace with the
//! indentation of its first line.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result};

use super::list::Mutant;

/// The variable that names the broken rule. Without it no rule is broken.
pub(crate) const VARIABLE: &str = "ELDEST_BROKEN_RULE";

/// The range of a function's body: behind the opening brace, up to the closing one.
type Body = (usize, usize);

/// A mutant's change, without the equal text before and after it.
struct Change<'a> {
    from: usize,
    to: usize,
    text: &'a str,
}

/// Returns the text of a file with the mutants in it, each under its number.
pub(crate) fn weave(text: &str, mutants: &[(usize, &Mutant)]) -> Result<String> {
    let bodies = bodies(text);
    let mut by_body: BTreeMap<Body, Vec<String>> = BTreeMap::new();
    for (number, mutant) in mutants {
        mutant.check(text)?;
        let change = change(text, mutant).with_context(|| mutant.name.clone())?;
        let around = bodies
            .iter()
            .filter(|(from, to)| *from <= change.from && change.to <= *to);
        let body = around.max_by_key(|(from, _)| *from);
        let (from, to) = *body.with_context(|| format!("`{}` is in no function", mutant.name))?;
        let (before, after) = (&text[from..change.from], &text[change.to..to]);
        let arm = format!("{number} => {{{before}{}{after}}}\n", change.text);
        by_body.entry((from, to)).or_default().push(arm);
    }
    let mut woven = text.to_owned();
    for ((from, to), arms) in by_body.iter().rev() {
        let arms = arms.concat();
        let own = &text[*from..*to];
        let body = format!("\nmatch crate::broken::rule() {{\n{arms}_ => {{{own}}}\n}}\n");
        woven.replace_range(*from..*to, &body);
    }
    Ok(woven)
}

/// Returns the module that says which rule is broken: 0 means none.
pub(crate) fn module(names: &[&str]) -> String {
    let mut text = String::from("\nmod broken {\n");
    let _ = write!(
        text,
        "static RULE: std::sync::LazyLock<usize> = std::sync::LazyLock::new(|| {{
            let names = {names:?};
            let Ok(name) = std::env::var({VARIABLE:?}) else {{ return 0 }};
            1 + names.iter().position(|other| *other == name).expect(\"a mutant\")
        }});
        pub(crate) fn rule() -> usize {{ *RULE }}\n}}\n"
    );
    text
}

fn change<'a>(text: &str, mutant: &'a Mutant) -> Option<Change<'a>> {
    let at = text.find(&mutant.from)?;
    let (from, to) = (&mutant.from, &mutant.to);
    let same = |(a, b): &(u8, u8)| a == b;
    let before = from.bytes().zip(to.bytes()).take_while(same).count();
    let most = from.len().min(to.len()) - before;
    let after = from.bytes().rev().zip(to.bytes().rev());
    let after = after.take(most).take_while(same).count();
    Some(Change {
        from: at + before,
        to: at + from.len() - after,
        text: to.get(before..to.len() - after)?,
    })
}

/// Returns the bodies of all functions.
fn bodies(text: &str) -> Vec<Body> {
    let mut lines = Vec::new();
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        lines.push((at, line.trim_end_matches('\n')));
        at += line.len();
    }
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut bodies = Vec::new();
    for (first, (_, line)) in lines.iter().enumerate() {
        let depth = indent(line);
        if !begins_function(line.trim_start()) {
            continue;
        }
        let rest = lines[first..].iter();
        let mut rest = rest.skip_while(|(_, l)| !(l.ends_with('{') && indent(l) == depth));
        let Some((open, head)) = rest.next() else {
            continue;
        };
        let end = rest.find(|(_, l)| l.trim_start() == "}" && indent(l) == depth);
        bodies.extend(end.map(|(end, _)| (open + head.len(), end + depth)));
    }
    bodies
}

fn begins_function(line: &str) -> bool {
    let visible = ["pub(crate) ", "pub(super) ", "pub "];
    let visible = visible.iter().find_map(|word| line.strip_prefix(word));
    visible.unwrap_or(line).starts_with("fn ")
}

//! Draws the guide's sequence diagrams: each docs/diagrams/*.mmd, in a small part of Mermaid's language, becomes an SVG beside it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use svg::Document;
use svg::node::element::{Group, Line, Polygon, Rectangle, Text, Title};

use crate::setup;

const FOLDER: &str = "docs/diagrams";

/// Pixels that a character of the text takes on average, a line of text, and the room around it.
const CHARACTER: f64 = 6.7;
const LINE: f64 = 16.0;
const ROOM: f64 = 12.0;
/// Half the width of the bar on the line of a participant that is active.
const BAR: f64 = 5.0;

const INK: &str = "#1f2328";
const PAPER: &str = "#ffffff";

/// The command `diagrams`.
pub(crate) fn run() -> Result<ExitCode> {
    for source in sources(&setup::root().join(FOLDER))? {
        let picture = source.with_extension("svg");
        fs::write(&picture, draw(&source)?)?;
        println!("{}", picture.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut sources: Vec<PathBuf> = entries.filter_map(|it| Some(it.ok()?.path())).collect();
    sources.retain(|path| path.extension().is_some_and(|extension| extension == "mmd"));
    sources.sort();
    Ok(sources)
}

fn draw(source: &Path) -> Result<String> {
    let diagram = Diagram::parse(&fs::read_to_string(source)?);
    let diagram = diagram.with_context(|| format!("in {}", source.display()))?;
    Ok(format!("{}\n", diagram.picture()))
}

#[derive(Default)]
struct Diagram {
    title: String,
    /// What the source calls each participant, and its name in the picture.
    participants: Vec<(String, String)>,
    steps: Vec<Step>,
}

/// Participants are numbers of columns; texts are lines.
enum Step {
    Message {
        from: usize,
        to: usize,
        is_answer: bool,
        text: Vec<String>,
    },
    Note {
        first: usize,
        last: usize,
        text: Vec<String>,
    },
    Activate(usize),
    Deactivate(usize),
}

impl Diagram {
    fn parse(source: &str) -> Result<Self> {
        let mut diagram = Self::default();
        for (number, line) in source.lines().enumerate() {
            let line = line.trim();
            if !line.is_empty() && line != "sequenceDiagram" && !line.starts_with("%%") {
                let read = diagram.read(line);
                read.with_context(|| format!("line {}: {line}", number + 1))?;
            }
        }
        Ok(diagram)
    }

    fn read(&mut self, line: &str) -> Result<()> {
        if let Some(title) = line.strip_prefix("accTitle: ") {
            title.clone_into(&mut self.title);
        } else if let Some(participant) = line.strip_prefix("participant ") {
            let (id, name) = participant.split_once(" as ").context("no name")?;
            self.participants.push((id.to_owned(), name.to_owned()));
        } else if let Some(id) = line.strip_prefix("activate ") {
            self.steps.push(Step::Activate(self.column(id)?));
        } else if let Some(id) = line.strip_prefix("deactivate ") {
            self.steps.push(Step::Deactivate(self.column(id)?));
        } else if let Some(note) = line.strip_prefix("Note over ") {
            let (over, text) = note.split_once(": ").context("no text")?;
            let (first, last) = over.split_once(',').unwrap_or((over, over));
            let (first, last) = (self.column(first)?, self.column(last)?);
            let text = lines(text);
            self.steps.push(Step::Note { first, last, text });
        } else {
            let (ends, text) = line.split_once(": ").context("not understood")?;
            let (from, to) = ends.split_once("->>").context("not understood")?;
            let (from, is_answer) = match from.strip_suffix('-') {
                Some(from) => (from, true),
                None => (from, false),
            };
            let (from, to) = (self.column(from)?, self.column(to)?);
            if from == to {
                bail!("a message goes to another participant");
            }
            let text = lines(text);
            self.steps.push(Step::Message {
                from,
                to,
                is_answer,
                text,
            });
        }
        Ok(())
    }

    fn column(&self, id: &str) -> Result<usize> {
        let found = self.participants.iter().position(|(known, _)| known == id);
        found.with_context(|| format!("no participant {id:?}"))
    }

    /// The middle of each column, and the width of the picture.
    fn columns(&self) -> (Vec<f64>, f64) {
        let names = self.participants.iter();
        let halves: Vec<f64> = names.map(|(_, name)| width(name) / 2.0 + ROOM).collect();
        let (mut left, mut right) = (halves[0], halves[halves.len() - 1]);
        let mut gaps: Vec<f64> = halves.windows(2).map(|pair| pair[0] + pair[1]).collect();
        for step in &self.steps {
            let (first, last, text) = match step {
                Step::Message { from, to, text, .. } => (*from.min(to), *from.max(to), text),
                Step::Note { first, last, text } => (*first, *last, text),
                Step::Activate(_) | Step::Deactivate(_) => continue,
            };
            let wide = widest(text) + 2.0 * ROOM;
            if first < last {
                let missing = wide - gaps[first..last].iter().sum::<f64>();
                let each = missing.max(0.0) / (last - first) as f64;
                gaps[first..last].iter_mut().for_each(|gap| *gap += each);
            } else {
                let half = wide / 2.0 + ROOM;
                let before = first.checked_sub(1).map_or(&mut left, |gap| &mut gaps[gap]);
                *before = before.max(half);
                let after = gaps.get_mut(first).unwrap_or(&mut right);
                *after = after.max(half);
            }
        }
        let mut columns = vec![left + ROOM];
        for gap in gaps {
            columns.push(columns[columns.len() - 1] + gap);
        }
        let width = columns[columns.len() - 1] + right + ROOM;
        (columns, width)
    }

    fn picture(&self) -> Document {
        let (columns, width) = self.columns();
        let mut ink = Group::new();
        let mut bars = Group::new();
        let mut active = vec![None; columns.len()];
        let mut y = 4.0 * ROOM;
        for step in &self.steps {
            match step {
                Step::Activate(column) => active[*column] = Some(y + ROOM / 2.0),
                Step::Deactivate(column) => {
                    if let Some(since) = active[*column].take() {
                        bars = bars.add(bar(columns[*column], since, y + ROOM / 2.0));
                    }
                }
                Step::Note { first, last, text } => {
                    let half = (widest(text) / 2.0 + ROOM)
                        .max((columns[*last] - columns[*first]) / 2.0 + ROOM);
                    let middle = f64::midpoint(columns[*first], columns[*last]);
                    let high = text.len() as f64 * LINE + ROOM;
                    let note = rectangle(middle - half, y + ROOM, 2.0 * half, high);
                    ink = ink.add(note.set("fill", "#fff8c5").set("stroke", "#d4a72c"));
                    ink = write(ink, middle, y + 1.5 * ROOM, text);
                    y += high + ROOM;
                }
                Step::Message {
                    from,
                    to,
                    is_answer,
                    text,
                } => {
                    let (from, to) = (columns[*from], columns[*to]);
                    ink = write(ink, f64::midpoint(from, to), y + ROOM, text);
                    y += ROOM + text.len() as f64 * LINE + 6.0;
                    ink = arrow(ink, from, to, y, *is_answer);
                }
            }
        }
        y += 2.0 * ROOM;
        for (column, since) in active.iter().enumerate() {
            if let Some(since) = since {
                bars = bars.add(bar(columns[column], *since, y));
            }
        }
        let paper = rectangle(0.5, 0.5, width - 1.0, y + ROOM - 1.0).set("stroke", "#d0d7de");
        let picture = Document::new()
            .set("viewBox", (0, 0, width.ceil(), (y + ROOM).ceil()))
            .set("width", width.ceil())
            .set("font-family", "Helvetica, Arial, sans-serif")
            .set("font-size", 13)
            .add(Title::new(self.title.as_str()))
            .add(paper.set("fill", PAPER));
        let heads = self.heads(&columns, y);
        picture.add(heads).add(bars).add(ink)
    }

    /// The names of the participants, and their lines.
    fn heads(&self, columns: &[f64], bottom: f64) -> Group {
        let mut heads = Group::new();
        for ((_, name), x) in self.participants.iter().zip(columns) {
            let half = width(name) / 2.0 + ROOM;
            let line = line(*x, 3.0 * ROOM, *x, bottom).set("stroke", "#8c959f");
            let head = rectangle(x - half, ROOM, 2.0 * half, LINE + ROOM);
            heads = heads
                .add(line)
                .add(head.set("fill", "#ddf4ff").set("stroke", "#54aeff"));
            heads = write(heads, *x, 1.5 * ROOM, &lines(name));
        }
        heads
    }
}

fn lines(text: &str) -> Vec<String> {
    text.split("<br/>")
        .map(|line| line.trim().to_owned())
        .collect()
}

fn width(text: &str) -> f64 {
    text.chars().count() as f64 * CHARACTER
}

fn widest(text: &[String]) -> f64 {
    text.iter().map(|line| width(line)).fold(0.0, f64::max)
}

fn rectangle(x: f64, y: f64, width: f64, height: f64) -> Rectangle {
    Rectangle::new()
        .set("x", round(x))
        .set("y", round(y))
        .set("width", round(width))
        .set("height", round(height))
        .set("rx", 3)
}

fn line(x1: f64, y1: f64, x2: f64, y2: f64) -> Line {
    let line = Line::new().set("x1", round(x1)).set("y1", round(y1));
    line.set("x2", round(x2)).set("y2", round(y2))
}

fn bar(x: f64, from: f64, to: f64) -> Rectangle {
    let bar = rectangle(x - BAR, from, 2.0 * BAR, to - from);
    bar.set("fill", "#aceebb").set("stroke", "#2da44e")
}

fn arrow(ink: Group, from: f64, to: f64, y: f64, is_answer: bool) -> Group {
    let away = (to - from).signum();
    let (from, to) = (from + away * BAR, to - away * BAR);
    let mut shaft = line(from, y, to, y).set("stroke", INK);
    if is_answer {
        shaft = shaft.set("stroke-dasharray", "5 4");
    }
    let back = round(to - away * 9.0);
    let points = format!("{},{y} {back},{} {back},{}", round(to), y - 4.5, y + 4.5);
    ink.add(shaft)
        .add(Polygon::new().set("points", points).set("fill", INK))
}

/// Lines of text below `top`, each with its middle at `middle`.
fn write(mut ink: Group, middle: f64, top: f64, text: &[String]) -> Group {
    for (number, line) in text.iter().enumerate() {
        let y = top + number as f64 * LINE + 12.0;
        ink = ink.add(
            Text::new(line.as_str())
                .set("x", round(middle))
                .set("y", round(y))
                .set("text-anchor", "middle")
                .set("fill", INK),
        );
    }
    ink
}

/// Tenths of a pixel are enough, and short.
fn round(pixels: f64) -> f64 {
    (pixels * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_picture_is_what_its_source_gives() {
        let sources = sources(&setup::root().join(FOLDER)).expect("sources");
        assert!(!sources.is_empty());
        for source in sources {
            let picture = source.with_extension("svg");
            let committed = fs::read_to_string(&picture).unwrap_or_default();
            let drawn = draw(&source).expect("a picture");
            let remedy = "run `cargo xtask diagrams` and commit it";
            assert!(committed == drawn, "{}: {remedy}", picture.display());
        }
    }

    #[test]
    fn a_text_makes_room_for_itself() {
        let wide = "x".repeat(100);
        let source = format!("participant A as a\nparticipant B as b\nA->>B: {wide}\n");
        let (columns, _) = Diagram::parse(&source).expect("a diagram").columns();
        assert!(columns[1] - columns[0] > width(&wide));
    }

    #[test]
    fn what_is_not_understood_is_named_with_its_line() {
        for wrong in ["A->B: x", "Note over C: x", "A->>A: x", "loop always"] {
            let source = format!("participant A as a\n{wrong}\n");
            let error = Diagram::parse(&source).err().expect("an error");
            assert!(error.to_string().starts_with("line 2"), "{error}");
        }
    }
}

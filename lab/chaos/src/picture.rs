//! Draws a history as a timeline in SVG, with a row for faults that hit all nodes, one for etcd, and one for each node.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use eldest_testing::history::{Change, Event, History, What};
use svg::Document;
use svg::node::element::{Line, Rectangle, Text, Title};

/// The largest distance between two checks that are drawn as one bar.
const APART: Duration = Duration::from_millis(500);

const LEFT: f64 = 110.0;
const ROW: f64 = 62.0;
const TOP: f64 = 30.0;
const BAR: f64 = 16.0;
/// Pixels for a second, if the picture stays within its bounds.
const SECOND: f64 = 24.0;
const WIDEST: f64 = 16_000.0;

/// A span of time in one row.
#[derive(Debug, Clone, PartialEq)]
struct Bar {
    row: String,
    from: Duration,
    to: Duration,
    kind: Kind,
    label: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A node leads, with this token.
    Leads(i64),
    Fault,
    Stopped,
    Dead,
}

/// The row of events that belong to no node.
const ETCD: &str = "etcd";
const EVERYBODY: &str = "everybody";

/// Draws the whole history as SVG.
pub(crate) fn draw(history: &History) -> String {
    let events = history.events();
    let (Some(first), Some(last)) = (events.first(), events.last()) else {
        return Document::new().to_string();
    };
    let mut bars = beliefs(events);
    let nodes: BTreeSet<String> = bars.iter().map(|bar| bar.row.clone()).collect();
    bars.extend(by_etcd(events, last.at));
    bars.extend(faults(events, last.at));
    let mut rows = vec![EVERYBODY.to_owned(), ETCD.to_owned()];
    let named = bars.iter().map(|bar| bar.row.clone());
    let named: BTreeSet<String> = named.chain(nodes).collect();
    rows.extend(
        named
            .into_iter()
            .filter(|row| row != ETCD && row != EVERYBODY),
    );
    sketch(&bars, &rows, first.at, last.at)
}

/// Bars of the times in which each node took itself for the leader.
fn beliefs(events: &[Event]) -> Vec<Bar> {
    let mut open: BTreeMap<(&str, i64), Bar> = BTreeMap::new();
    let mut bars = Vec::new();
    for event in events {
        let What::Valid { token } = event.what else {
            continue;
        };
        let bar = open
            .entry((&event.node, token))
            .or_insert_with(|| leads(event, token));
        if event.at.saturating_sub(bar.to) > APART {
            bars.push(std::mem::replace(bar, leads(event, token)));
        }
        bar.to = event.at;
    }
    bars.extend(open.into_values());
    bars
}

fn leads(event: &Event, token: i64) -> Bar {
    Bar {
        row: event.node.clone(),
        from: event.at,
        to: event.at,
        kind: Kind::Leads(token),
        label: format!("{} led with token {token}", event.node),
    }
}

/// Returns bars of the times in which each node's key was the oldest, by the independent watchers.
fn by_etcd(events: &[Event], end: Duration) -> Vec<Bar> {
    let mut changes: Vec<(i64, Duration, &Change)> = Vec::new();
    let mut owners: BTreeMap<i64, &str> = BTreeMap::new();
    for event in events {
        match &event.what {
            What::Truth { revision, change } => changes.push((*revision, event.at, change)),
            What::Joined {
                create_revision: token,
                ..
            }
            | What::Elected { token } => {
                owners.insert(*token, &event.node);
            }
            _ => {}
        }
    }
    changes.sort_by_key(|(revision, at, _)| (*revision, *at));
    let mut live = BTreeSet::new();
    let mut bars: Vec<Bar> = Vec::new();
    let mut eldest = None;
    for together in changes.chunk_by(|a, b| a.0 == b.0) {
        for (_, _, change) in together {
            match change {
                Change::Created {
                    create_revision, ..
                } => {
                    live.insert(*create_revision);
                }
                Change::Deleted {
                    create_revision, ..
                } => {
                    live.remove(create_revision);
                }
                _ => {}
            }
        }
        let at = together[0].1;
        if live.first().copied() == eldest {
            continue;
        }
        eldest = live.first().copied();
        if let Some(bar) = bars.last_mut().filter(|bar| bar.to == end) {
            bar.to = at.max(bar.from);
        }
        if let Some(token) = eldest {
            let owner = owners.get(&token).copied().unwrap_or("somebody else");
            bars.push(Bar {
                row: ETCD.to_owned(),
                from: at,
                to: end,
                kind: Kind::Leads(token),
                label: format!("the eldest key is {owner}'s, {token}"),
            });
        }
    }
    bars
}

/// Bars of the faults, the stopped processes and the killed ones.
fn faults(events: &[Event], end: Duration) -> Vec<Bar> {
    let mut open: BTreeMap<(String, Option<String>), Bar> = BTreeMap::new();
    let mut bars = Vec::new();
    for event in events {
        let row = if event.node.is_empty() {
            EVERYBODY
        } else {
            &event.node
        };
        let mut begins = |kind, name: Option<&String>, label: &str| {
            open.entry((row.to_owned(), name.cloned())).or_insert(Bar {
                row: row.to_owned(),
                from: event.at,
                to: end,
                kind,
                label: label.to_owned(),
            });
        };
        let name = match &event.what {
            What::Fault { name } => {
                begins(Kind::Fault, Some(name), name);
                continue;
            }
            What::Paused => {
                begins(Kind::Stopped, None, "stopped");
                continue;
            }
            What::Killed => {
                begins(Kind::Dead, None, "killed");
                continue;
            }
            What::Healed { name } => Some(name.clone()),
            What::Resumed | What::Baseline(_) => None,
            _ => continue,
        };
        if let Some(mut bar) = open.remove(&(row.to_owned(), name)) {
            bar.to = event.at;
            bars.push(bar);
        }
    }
    bars.extend(open.into_values());
    bars
}

fn sketch(bars: &[Bar], rows: &[String], from: Duration, to: Duration) -> String {
    let seconds = to.saturating_sub(from).as_secs_f64().max(1.0);
    let scale = SECOND.min((WIDEST - LEFT) / seconds);
    let x = |at: Duration| LEFT + at.saturating_sub(from).as_secs_f64() * scale;
    let (width, height) = (x(to) + 20.0, TOP + ROW * rows.len() as f64 + 10.0);
    let mut document = Document::new()
        .set("viewBox", (0.0, 0.0, width, height))
        .set("width", width)
        .set("height", height)
        .set("font-family", "sans-serif")
        .set("font-size", 11);
    document = document.add(shape(0.0, 0.0, width, height, "white"));
    let step = if seconds > 300.0 { 30 } else { 5 };
    for second in (0..=seconds as u64).step_by(step) {
        let at = x(from + Duration::from_secs(second));
        document = document.add(line(at, TOP - 8.0, at, height)).add(text(
            at + 2.0,
            TOP - 12.0,
            &format!("{second} s"),
        ));
    }
    for (index, row) in rows.iter().enumerate() {
        let y = TOP + ROW * index as f64;
        document = document
            .add(line(0.0, y, width, y))
            .add(text(6.0, y + BAR * 1.8, row));
        for bar in bars.iter().filter(|bar| bar.row == *row) {
            // Two faults of a pair may hit the same node, for example its process and its links.
            let (color, place) = match bar.kind {
                Kind::Leads(token) => (hue(token), 0.0),
                Kind::Stopped => ("#ced4da".to_owned(), 1.0),
                Kind::Dead => ("#868e96".to_owned(), 1.0),
                Kind::Fault => ("#ffa94d".to_owned(), 2.0),
            };
            let (begin, y) = (x(bar.from), y + 4.0 + place * (BAR + 2.0));
            // A bar of no duration is visible, too.
            let length = (x(bar.to) - begin).max(2.0);
            let title = Title::new(format!(
                "{}, from {:.2} s to {:.2} s",
                bar.label,
                bar.from.saturating_sub(from).as_secs_f64(),
                bar.to.saturating_sub(from).as_secs_f64()
            ));
            document = document.add(shape(begin, y, length, BAR, &color).add(title));
            let short = match bar.kind {
                Kind::Leads(token) => token.to_string(),
                _ => bar.label.clone(),
            };
            document = document.add(text(begin + 2.0, y + BAR - 4.0, &short));
        }
    }
    document.to_string()
}

/// The same token has the same colour in every row.
fn hue(token: i64) -> String {
    format!("hsl({}, 70%, 75%)", token.wrapping_mul(47).rem_euclid(360))
}

fn shape(x: f64, y: f64, width: f64, height: f64, fill: &str) -> Rectangle {
    let shape = Rectangle::new().set("x", x).set("y", y);
    shape
        .set("width", width)
        .set("height", height)
        .set("fill", fill)
}

fn line(x: f64, y: f64, to_x: f64, to_y: f64) -> Line {
    let line = Line::new().set("x1", x).set("y1", y).set("x2", to_x);
    line.set("y2", to_y).set("stroke", "#dee2e6")
}

fn text(x: f64, y: f64, text: &str) -> Text {
    Text::new(text).set("x", x).set("y", y)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64, node: &str, what: What) -> Event {
        Event {
            at: Duration::from_millis(millis),
            node: node.to_owned(),
            election: "e".to_owned(),
            what,
        }
    }

    #[test]
    fn bar_of_a_term_ends_where_checks_are_far_apart() {
        let yes = |millis| at(millis, "a", What::Valid { token: 7 });
        let bars = beliefs(&[yes(0), yes(400), yes(2000), yes(2100)]);
        let mut spans: Vec<_> = bars.iter().map(|bar| (bar.from, bar.to)).collect();
        spans.sort();
        let millis = Duration::from_millis;
        assert_eq!(
            spans,
            [(millis(0), millis(400)), (millis(2000), millis(2100))]
        );
    }

    #[test]
    fn faults_are_drawn_from_their_beginning_to_their_end_and_names_are_escaped() {
        let name = || "cut <all>".to_owned();
        let history = History::new([
            at(0, "a", What::Valid { token: 7 }),
            at(1000, "a", What::Fault { name: name() }),
            at(1001, "a", What::Fault { name: name() }),
            at(3000, "a", What::Healed { name: name() }),
            at(4000, "", What::Paused),
        ]);
        let bars = faults(history.events(), Duration::from_secs(4));
        let fault = bars.iter().find(|bar| bar.kind == Kind::Fault).unwrap();
        assert_eq!(
            (fault.from, fault.to),
            (Duration::from_secs(1), Duration::from_secs(3))
        );
        let drawn = draw(&history);
        assert!(
            drawn.contains("cut &lt;all&gt;") && !drawn.contains("<all>"),
            "{drawn}"
        );
    }
}

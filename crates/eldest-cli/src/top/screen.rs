//! Draws the live view of `eldest top`.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use crossterm::style::{Attribute, Attributes, Print, SetAttribute, SetAttributes};
use crossterm::terminal::{Clear, ClearType};
use crossterm::{cursor, queue};

use super::{Look, Seen};
use crate::evacuate;
use crate::output::one_line;
use crate::view::{self, length};
use eldest::internal::steers;
use eldest_http::contract::Evacuation;
use eldest_http::contract::command::Queue;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// How long a change is highlighted.
const FRESH: Duration = Duration::from_secs(5);
/// The maximum number of orders shown; the candidates need room as well.
const MOST_ORDERS: usize = 4;
/// The widths of the columns for an election's name, and for the number of its candidates.
const NAME: (usize, usize) = (8, 60);
const COUNT: usize = 8;

/// One line of the screen, and how it is highlighted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shown {
    text: String,
    style: Attributes,
}

/// Replaces the terminal's content with these lines, in one write.
pub(super) fn print(lines: &[Shown]) -> io::Result<()> {
    let mut frame = Vec::new();
    for (row, line) in (0..).zip(lines) {
        queue!(
            frame,
            cursor::MoveTo(0, row),
            SetAttributes(line.style),
            Print(&line.text),
            SetAttribute(Attribute::Reset),
            Clear(ClearType::UntilNewLine)
        )?;
    }
    let mut terminal = io::stdout().lock();
    terminal.write_all(&frame)?;
    terminal.flush()
}

/// The state of the display.
pub(super) struct Screen {
    place: String,
    revision: i64,
    queues: Vec<Queue>,
    evacuations: Vec<Evacuation>,
    /// The time of etcd's last answer.
    seen: Option<Instant>,
    error: Option<String>,
    /// The last summary of each title, and the time of its last change.
    changed: HashMap<String, (String, Option<Instant>)>,
    selected: usize,
}

impl Screen {
    pub(super) fn new(place: String) -> Self {
        Self {
            place,
            revision: 0,
            queues: Vec::new(),
            evacuations: Vec::new(),
            seen: None,
            error: None,
            changed: HashMap::new(),
            selected: 0,
        }
    }

    /// Shows etcd's answer; after a failure the last answer stays.
    pub(super) fn update(&mut self, look: Look, now: Instant) {
        match look {
            Ok(look) => self.show(look, now),
            Err(error) => self.error = Some(error.report().to_string()),
        }
    }

    pub(super) fn show(&mut self, seen: Seen, now: Instant) {
        let Seen {
            revision,
            queues,
            evacuations,
        } = seen;
        // The selected queue may move to another line; it stays selected.
        let selected = self.queues.get(self.selected).map(view::title);
        let mut titles = queues.iter().map(view::title);
        let found = selected.and_then(|title| titles.position(|other| other == title));
        let last = queues.len().saturating_sub(1);
        self.selected = found.unwrap_or(self.selected).min(last);
        let first = self.seen.is_none();
        let mut changed = HashMap::new();
        for queue in &queues {
            let (title, summary) = (view::title(queue), view::summary(queue));
            let when = match self.changed.remove(&title) {
                Some((before, when)) if before == summary => when,
                Some(_) => Some(now),
                None => (!first).then_some(now),
            };
            changed.insert(title, (summary, when));
        }
        self.changed = changed;
        (self.revision, self.queues) = (revision, queues);
        self.evacuations = evacuations;
        (self.seen, self.error) = (Some(now), None);
    }

    /// Moves the selection.
    pub(super) fn select(&mut self, by: isize) {
        let last = self.queues.len().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(by).min(last);
    }

    /// Returns the lines for a terminal of that size: columns and rows.
    pub(super) fn lines(&self, (columns, rows): (u16, u16), now: Instant) -> Vec<Shown> {
        let rows = usize::from(rows);
        let mut lines = vec![self.title(now)];
        let orders = self.evacuations.iter().take(MOST_ORDERS).map(|order| {
            let order = format!("evacuated: {}", evacuate::described(order));
            styled(order, Attribute::Bold)
        });
        lines.extend(orders);
        let upper = (rows / 2).min(self.queues.len() + 1).max(2);
        lines.extend(self.list(upper, now));
        if let Some(queue) = self.queues.get(self.selected) {
            lines.push(styled(view::title(queue), Attribute::Bold));
            lines.extend(view::roster(queue).lines().map(plain));
        }
        lines.resize_with(rows.saturating_sub(1), || plain(""));
        lines.push(plain("arrows select   r asks now   q quits"));
        lines.truncate(rows);
        for line in &mut lines {
            line.text = cut(&line.text, usize::from(columns));
        }
        lines
    }

    fn title(&self, now: Instant) -> Shown {
        let place = if self.place.is_empty() {
            "all keys"
        } else {
            &self.place
        };
        let count = self.queues.len();
        let mut text = format!(
            "eldest top   {}   {count} standing   revision {}",
            one_line(place),
            self.revision
        );
        if let Some(error) = &self.error {
            let old = self
                .seen
                .map_or(Duration::ZERO, |seen| now.saturating_duration_since(seen));
            text = format!(
                "NO ANSWER, this is {} old: {}",
                length(old),
                one_line(error)
            );
        }
        styled(text, Attribute::Reverse)
    }

    /// Returns the head of the list, and as many elections around the selected one as fit.
    fn list(&self, rows: usize, now: Instant) -> Vec<Shown> {
        if self.queues.is_empty() {
            return vec![plain("no candidates")];
        }
        let room = rows - 1;
        let first = (self.selected + 1).saturating_sub(room);
        let widest = self.queues.iter().map(|queue| view::title(queue).width());
        let name = widest.max().unwrap_or_default().clamp(NAME.0, NAME.1);
        let row = |title: &str, count: &str, summary: &str| {
            let (title, count) = (padded(title, name), padded(count, COUNT));
            format!("{title}  {count}  {summary}")
        };
        let head = styled(row("ELECTION", "STANDING", "HOW"), Attribute::Underlined);
        let old = if self.error.is_some() {
            "last known: "
        } else {
            ""
        };
        let elections = self.queues.iter().enumerate().skip(first).take(room);
        let elections = elections.map(|(number, queue)| {
            let title = view::title(queue);
            let changed = self.changed.get(&title).and_then(|(_, when)| *when);
            let fresh = changed.is_some_and(|when| now.saturating_duration_since(when) < FRESH);
            let summary = format!("{old}{}{}", view::summary(queue), view::leads_for(queue));
            let text = row(&title, &queue.roster.len().to_string(), &summary);
            let mut style = Attributes::none();
            if number == self.selected {
                style.set(Attribute::Reverse);
            }
            if fresh {
                style.set(Attribute::Bold);
            }
            Shown { text, style }
        });
        std::iter::once(head).chain(elections).collect()
    }
}

fn plain(text: &str) -> Shown {
    Shown {
        text: text.to_owned(),
        style: Attributes::none(),
    }
}

fn styled(text: String, attribute: Attribute) -> Shown {
    Shown {
        text,
        style: attribute.into(),
    }
}

/// Cuts text to that many columns, and removes characters that would move the cursor or reorder the text.
fn cut(text: &str, columns: usize) -> String {
    let mut used = 0;
    let fits = |c: &char| {
        used += c.width().unwrap_or_default();
        used <= columns
    };
    let printed = text.chars().filter(|c| !steers(*c));
    printed.take_while(fits).collect()
}

/// Cuts or fills text to exactly that many columns.
fn padded(text: &str, columns: usize) -> String {
    let text = cut(text, columns);
    let missing = columns - text.width();
    text + &" ".repeat(missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::samples::{election, vacant};

    fn seen(revision: i64, queues: Vec<Queue>) -> Seen {
        Seen {
            revision,
            queues,
            evacuations: Vec::new(),
        }
    }

    const SIZE: (u16, u16) = (70, 12);

    fn drawn(screen: &Screen, now: Instant) -> Vec<Shown> {
        screen.lines(SIZE, now)
    }

    fn lines(shown: &[Shown]) -> Vec<String> {
        let text = |line: &Shown| line.text.trim_end().to_owned();
        shown.iter().map(text).collect()
    }

    fn is_bold(shown: &[Shown], line: usize) -> bool {
        shown[line].style.has(Attribute::Bold)
    }

    #[test]
    fn each_election_has_a_line_and_the_selected_one_its_candidates() {
        let now = Instant::now();
        let mut screen = Screen::new("eldest/".to_owned());
        screen.show(
            seen(7, vec![election("billing", &["a", "b"]), vacant("jobs")]),
            now,
        );
        let shown = lines(&drawn(&screen, now));
        assert_eq!(
            shown,
            [
                "eldest top   eldest/   2 standing   revision 7",
                "ELECTION  STANDING  HOW",
                "billing   2         a leads with token 1, 1 waiting",
                "jobs      0         vacant",
                "billing",
                "RANK  IDENTITY  ADDRESS  DATA CENTRE  AGE  LEASE LEFT  TOKEN",
                "  *1  a         -        -            -    -               1",
                "   2  b         -        -            -    -               2",
                "",
                "",
                "",
                "arrows select   r asks now   q quits",
            ]
        );
        screen.select(1);
        assert_eq!(lines(&drawn(&screen, now))[4], "jobs");
        screen.select(isize::MIN);
        screen.select(isize::MAX);
        assert_eq!(screen.selected, 1, "the last one");
    }

    #[test]
    fn selected_election_stays_selected_while_others_come_and_go() {
        let now = Instant::now();
        let mut screen = Screen::new(String::new());
        screen.show(seen(1, vec![vacant("a"), vacant("c")]), now);
        screen.select(1);
        screen.show(seen(2, vec![vacant("a"), vacant("b"), vacant("c")]), now);
        assert_eq!(screen.selected, 2);
        screen.show(seen(3, vec![vacant("a")]), now);
        assert_eq!(screen.selected, 0, "it is gone");
        screen.show(seen(4, Vec::new()), now);
        assert_eq!(lines(&drawn(&screen, now))[1], "no candidates");
    }

    #[test]
    fn a_change_is_bold_for_a_while() {
        let now = Instant::now();
        let mut screen = Screen::new(String::new());
        screen.show(
            seen(1, vec![election("a", &["x"]), election("b", &["x"])]),
            now,
        );
        assert!(
            !is_bold(&drawn(&screen, now), 3),
            "nothing is a change at first"
        );
        screen.show(
            seen(2, vec![election("a", &["x"]), election("b", &["y", "x"])]),
            now,
        );
        let soon = now + FRESH / 2;
        assert!(is_bold(&drawn(&screen, soon), 3));
        assert!(
            !is_bold(&drawn(&screen, soon), 2),
            "the other one is as it was"
        );
        screen.show(
            seen(3, vec![election("a", &["x"]), election("b", &["y", "x"])]),
            soon,
        );
        assert!(
            is_bold(&drawn(&screen, soon), 3),
            "seen again, it is no older"
        );
        assert!(!is_bold(&drawn(&screen, now + FRESH), 3));
    }

    #[test]
    fn old_view_says_that_it_is_old() {
        let now = Instant::now();
        let mut screen = Screen::new(String::new());
        screen.show(seen(1, vec![election("a", &["x"])]), now);
        screen.error = Some("etcd is unavailable".to_owned());
        let shown = lines(&drawn(&screen, now + Duration::from_secs(75)));
        assert_eq!(
            shown[0],
            "NO ANSWER, this is 1m15s old: etcd is unavailable"
        );
        assert!(shown[2].contains("last known: x leads"), "{shown:?}");
    }

    #[test]
    fn order_to_evacuate_is_shown_below_the_title_until_lifted() {
        let now = Instant::now();
        let mut screen = Screen::new("eldest/".to_owned());
        let order = |number: usize| Evacuation {
            data_center: format!("dc{number}"),
            by: Some("ops".to_owned()),
            reason: Some("new\u{1b}[2J switches".to_owned()),
            since_unix_ms: Some(1),
            until_unix_ms: None,
        };
        for (orders, shown_orders) in [(1, 1), (9, 4), (0, 0)] {
            let mut seen = seen(7, vec![election("billing", &["a"])]);
            seen.evacuations = (0..orders).map(order).collect();
            screen.show(seen, now);
            let shown = lines(&drawn(&screen, now));
            let said = |line: &&String| line.starts_with("evacuated: dc");
            assert_eq!(shown.iter().filter(said).count(), shown_orders);
            assert!(shown[shown_orders + 1].starts_with("ELECTION"), "{shown:?}");
            assert!(shown.iter().all(|line| !line.contains('\u{1b}')));
        }
    }
}

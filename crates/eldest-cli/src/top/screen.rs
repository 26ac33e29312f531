//! Draws the live view of `eldest top`.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use eldest_http::contract::Evacuation;
use eldest_http::contract::command::Queue;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};

use super::{Look, Seen};
use crate::evacuate;
use crate::output::one_line;
use crate::view::{self, length};

/// How long a change is shown as one.
const FRESH: Duration = Duration::from_secs(5);
/// So many orders are shown; the candidates need room as well.
const MOST_ORDERS: u16 = 4;
const HEAD: Style = Style::new().add_modifier(Modifier::REVERSED);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);

/// What is shown.
pub(super) struct Screen {
    place: String,
    revision: i64,
    queues: Vec<Queue>,
    evacuations: Vec<Evacuation>,
    /// When etcd last answered, and why it has not since.
    seen: Option<Instant>,
    error: Option<String>,
    /// By title: how it stood, and when that changed.
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

    /// What etcd answered, or that it did not: then what it said last stays.
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
        // The line that is selected may move; what it is about stays selected.
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

    pub(super) fn draw(&self, frame: &mut Frame<'_>, now: Instant) {
        let lines = self.queues.len() as u16;
        let upper = (frame.area().height / 2)
            .min(lines.saturating_add(1))
            .max(2);
        let orders = (self.evacuations.len() as u16).min(MOST_ORDERS);
        let parts = [
            Constraint::Length(1),
            Constraint::Length(orders),
            Constraint::Length(upper),
            Constraint::Length(1),
            Constraint::Min(0),
            Constraint::Length(1),
        ];
        let [title, evacuated, list, gap, members, foot] =
            Layout::vertical(parts).areas(frame.area());
        frame.render_widget(self.title(now), title);
        let orders = self.evacuations.iter().map(|order| {
            let order = format!("evacuated: {}", evacuate::described(order));
            Line::styled(order, BOLD)
        });
        frame.render_widget(Paragraph::new(orders.collect::<Vec<_>>()), evacuated);
        self.draw_list(frame, list, now);
        if let Some(queue) = self.queues.get(self.selected) {
            frame.render_widget(Line::styled(view::title(queue), BOLD), gap);
            frame.render_widget(Paragraph::new(view::roster(queue)), members);
        }
        frame.render_widget(Line::raw("arrows select   r asks now   q quits"), foot);
    }

    fn title(&self, now: Instant) -> Line<'_> {
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
        Line::styled(text, HEAD)
    }

    fn draw_list(&self, frame: &mut Frame<'_>, area: Rect, now: Instant) {
        if self.queues.is_empty() {
            frame.render_widget(Line::raw("no candidates"), area);
            return;
        }
        let rows = self.queues.iter().map(|queue| {
            let title = view::title(queue);
            let changed = self.changed.get(&title).and_then(|(_, when)| *when);
            let fresh = changed.is_some_and(|when| now.saturating_duration_since(when) < FRESH);
            let row = Row::new([
                Cell::from(title),
                Cell::from(queue.roster.len().to_string()),
                Cell::from(view::summary(queue)),
            ]);
            row.style(if fresh { BOLD } else { Style::new() })
        });
        let widest = self
            .queues
            .iter()
            .map(|s| Line::raw(view::title(s)).width());
        let widest = widest.max().unwrap_or(0).clamp(8, 60) as u16;
        let widths = [
            Constraint::Length(widest),
            Constraint::Length(8),
            Constraint::Min(10),
        ];
        let table = Table::new(rows, widths)
            .header(
                Row::new(["ELECTION", "STANDING", "HOW"])
                    .style(Style::new().add_modifier(Modifier::UNDERLINED)),
            )
            .column_spacing(2)
            .row_highlight_style(HEAD);
        let mut state = TableState::new().with_selected(self.selected);
        frame.render_stateful_widget(table, area, &mut state);
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::view::samples::{election, vacant};

    fn seen(revision: i64, queues: Vec<Queue>) -> Seen {
        Seen {
            revision,
            queues,
            evacuations: Vec::new(),
        }
    }

    fn drawn(screen: &Screen, now: Instant) -> Terminal<TestBackend> {
        let mut terminal = Terminal::new(TestBackend::new(70, 12)).unwrap();
        terminal.draw(|frame| screen.draw(frame, now)).unwrap();
        terminal
    }

    fn lines(terminal: &Terminal<TestBackend>) -> Vec<String> {
        let buffer = terminal.backend().buffer();
        let line = |y| {
            let cells = (0..buffer.area.width).map(|x| buffer[(x, y)].symbol().to_owned());
            cells.collect::<String>().trim_end().to_owned()
        };
        (0..buffer.area.height).map(line).collect()
    }

    fn is_bold(terminal: &Terminal<TestBackend>, line: u16) -> bool {
        let cell = &terminal.backend().buffer()[(0, line)];
        cell.modifier.contains(Modifier::BOLD)
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
    fn what_is_selected_stays_selected_though_others_come_and_go() {
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
    fn what_is_old_is_said_to_be_old() {
        let now = Instant::now();
        let mut screen = Screen::new(String::new());
        screen.show(seen(1, vec![election("a", &["x"])]), now);
        screen.error = Some("etcd is unavailable".to_owned());
        let shown = lines(&drawn(&screen, now + Duration::from_secs(75)));
        assert_eq!(
            shown[0],
            "NO ANSWER, this is 1m15s old: etcd is unavailable"
        );
        assert!(shown[2].contains("x leads"), "{shown:?}");
    }

    #[test]
    fn an_order_to_evacuate_stands_below_the_title_until_it_is_lifted() {
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

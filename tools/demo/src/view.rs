//! Shows the picture of the election: line by line, or in place on a terminal.

use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use crate::model::{Condition, Line, Model, Node, Term, brief};

/// The maximum number of events in a live view.
const LATEST: usize = 12;
/// The number of lines that a live view needs besides the events.
const OTHERS: usize = 22;

const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const GREEN: &str = "\x1b[32m";
const RED: &str = "\x1b[31m";
const RESET: &str = "\x1b[0m";

/// The output of the demo.
pub(crate) struct View {
    live: bool,
    title: String,
    /// The time from which all shown times count.
    origin: Duration,
    /// The running step: its short name, its title and its purpose.
    step: Option<[String; 3]>,
    /// The finished steps, and whether they succeeded.
    done: Vec<(String, bool)>,
    latest: VecDeque<Line>,
    /// The number of lines on the terminal that the next picture replaces.
    drawn: usize,
}

impl View {
    pub(crate) fn new(plain: bool, origin: Duration) -> Self {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let plain = plain || dumb || set("NO_COLOR") || set("CI");
        Self {
            live: !plain && std::io::stdout().is_terminal(),
            title: String::new(),
            origin,
            step: None,
            done: Vec::new(),
            latest: VecDeque::new(),
            drawn: 0,
        }
    }

    pub(crate) fn title(&mut self, title: String) {
        if !self.live {
            out(&format!("{title}\n"));
        }
        self.title = title;
        self.draw(&Model::default(), self.origin);
    }

    /// Shows the beginning of a step.
    pub(crate) fn step(&mut self, short: &str, title: &str, about: String) {
        if !self.live {
            out(&format!("\n== {title}\n   {about}\n"));
        }
        self.step = Some([short.to_owned(), title.to_owned(), about]);
    }

    /// Shows the end of the present step.
    pub(crate) fn step_done(&mut self, ok: bool, measured: &str) {
        let Some([short, ..]) = self.step.take() else {
            return;
        };
        let text = format!("{short:<9}  {measured}");
        if !self.live {
            out(&format!(
                "   {} {measured}\n",
                if ok { "ok:" } else { "FAILED:" }
            ));
        }
        self.done.push((text, ok));
    }

    pub(crate) fn line(&mut self, line: Line) {
        if !self.live {
            out(&format!("{}\n", self.event(&line)));
        }
        self.latest.push_back(line);
        if self.latest.len() > LATEST {
            self.latest.pop_front();
        }
    }

    /// Draws the picture as of `now`, in a live view only.
    pub(crate) fn draw(&mut self, model: &Model, now: Duration) {
        if !self.live {
            return;
        }
        let (width, height) = size();
        let lines = self.picture(model, now, height);
        // The cursor moves to the beginning of the last picture, which is drawn again.
        let mut text = match self.drawn {
            0 => "\r\x1b[J".to_owned(),
            drawn => format!("\x1b[{drawn}A\r\x1b[J"),
        };
        for line in &lines {
            text.push_str(&cut(line, width));
            text.push('\n');
        }
        self.drawn = lines.len();
        out(&text);
    }

    /// Leaves the last picture on the terminal.
    pub(crate) fn finish(&mut self, model: &Model, now: Duration) {
        self.draw(model, now);
        self.drawn = 0;
        self.live = false;
    }

    fn event(&self, line: &Line) -> String {
        let at = line.at.saturating_sub(self.origin).as_secs_f64();
        let who = if line.who.is_empty() {
            "demo"
        } else {
            &line.who
        };
        format!("{at:>8.3} s  {who:<5}  {}", line.text)
    }

    fn picture(&self, model: &Model, now: Duration, height: usize) -> Vec<String> {
        let mut lines = vec![format!("{BOLD}{}{RESET}", self.title), String::new()];
        lines.extend(self.done.iter().map(|(text, ok)| {
            if *ok {
                format!(" {GREEN}ok{RESET}      {text}")
            } else {
                format!(" {RED}FAILED{RESET}  {text}")
            }
        }));
        if let Some([_, title, about]) = &self.step {
            lines.push(format!(" {BOLD}now     {title}{RESET}"));
            lines.push(format!("         {DIM}{about}{RESET}"));
        }
        if !model.nodes.is_empty() {
            lines.push(String::new());
            lines.extend(roster(model, now));
            lines.push(String::new());
        }
        let room = height.saturating_sub(OTHERS).clamp(3, LATEST);
        let skip = self.latest.len().saturating_sub(room);
        for line in self.latest.iter().skip(skip) {
            let event = self.event(line);
            lines.push(if line.text.starts_with("LEADS") {
                format!("{GREEN}{event}{RESET}")
            } else if line.text.contains("REFUSED") || line.who.is_empty() {
                format!("{BOLD}{event}{RESET}")
            } else {
                event
            });
        }
        lines
    }
}

/// Returns the candidates in order, then the nodes that are no candidates.
fn roster(model: &Model, now: Duration) -> Vec<String> {
    let mut lines = vec![format!(
        "{DIM} rank  node   in line   process   state{RESET}"
    )];
    for (index, candidate) in model.candidates.iter().enumerate() {
        let node = model.nodes.get(&candidate.name);
        let pid = node.map_or(0, |node| node.pid);
        let since = now.saturating_sub(candidate.since).as_secs_f64();
        let state = node.map_or_else(|| "unknown".to_owned(), |node| state(node, index, now));
        lines.push(format!(
            " {:>4}  {:<5}  {since:>5.1} s  {pid:>8}   {state}",
            index + 1,
            candidate.name
        ));
    }
    let absent = model
        .nodes
        .iter()
        .filter(|(name, _)| !model.order().contains(&name.as_str()));
    for (name, node) in absent {
        let state = match node.condition {
            Condition::Running => "starts",
            Condition::Frozen => "frozen; its key is gone",
            Condition::Killed => "dead; its key is gone",
            Condition::Leaving => "left",
        };
        lines.push(format!(
            "    -  {name:<5}        -  {:>8}   {DIM}{state}{RESET}",
            node.pid
        ));
    }
    lines
}

fn state(node: &Node, index: usize, now: Duration) -> String {
    let left = |term: &Term| brief(term.until.saturating_sub(now));
    match (node.condition, &node.term) {
        (Condition::Killed, _) => {
            format!("{RED}dead{RESET}, its key stands until its lease runs out")
        }
        (Condition::Frozen, Some(term)) if term.until > now => format!(
            "{RED}frozen{RESET}, holds token {}, its own deadline is in {}",
            term.token,
            left(term)
        ),
        (Condition::Frozen, Some(term)) => format!(
            "{RED}frozen{RESET}, holds token {}, its own deadline has passed",
            term.token
        ),
        (Condition::Frozen, None) => format!("{RED}frozen{RESET}"),
        (_, Some(term)) => format!(
            "{GREEN}{BOLD}LEADS{RESET} with token {} for {:.1} s, valid for {} more",
            term.token,
            now.saturating_sub(term.since).as_secs_f64(),
            left(term)
        ),
        (_, None) if index == 0 => "is next".to_owned(),
        (_, None) => format!("waits, {index} ahead"),
    }
}

fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
            (usize::from(size.ws_col), usize::from(size.ws_row))
        }
        _ => (80, 24),
    }
}

/// Cuts a line to `width` visible characters, so that no line wraps and the count of lines stays right.
fn cut(line: &str, width: usize) -> String {
    let mut text = String::new();
    let mut visible = 0;
    let mut escape = false;
    for c in line.chars() {
        if escape {
            escape = c != 'm';
        } else if c == '\x1b' {
            escape = true;
        } else {
            visible += 1;
            if visible >= width {
                continue;
            }
        }
        text.push(c);
    }
    text
}

/// Prints text below everything else, in either mode; the view must be finished.
pub(crate) fn out(text: &str) {
    let mut out = std::io::stdout().lock();
    // Even if nobody reads the output, the demo still has to clean up.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_line_keeps_its_colours_and_loses_only_visible_text() {
        let line = format!("{BOLD}abcdef{RESET}");
        assert_eq!(cut(&line, 4), format!("{BOLD}abc{RESET}"));
        assert_eq!(cut(&line, 80), line);
    }

    #[test]
    fn picture_shows_the_leader_and_the_dead_nodes() {
        let mut model = Model::default();
        model.started("alice", 11);
        model.started("bob", 12);
        model.set("bob", Condition::Killed);
        let mut view = View::new(true, Duration::ZERO);
        view.step = Some(["1 join", "1. Join", "about"].map(str::to_owned));
        let text = view.picture(&model, Duration::from_secs(1), 24).join("\n");
        assert!(text.contains("1. Join"), "{text}");
        assert!(text.contains("dead; its key is gone"), "{text}");
        assert!(text.contains("starts"), "{text}");
    }
}

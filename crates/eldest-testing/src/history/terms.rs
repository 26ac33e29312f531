//! Turns recorded samples into terms: the spans of time in which a node took itself for the leader.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Event, Outcome, What};

/// The part of a history that concerns one election.
pub(super) struct View<'a> {
    /// The election.
    pub(super) election: &'a str,
    /// Events of the election and of whole processes, in order.
    pub(super) events: Vec<&'a Event>,
    /// Time of the history's first event.
    pub(super) origin: Duration,
    /// Time of the history's last event.
    pub(super) end: Duration,
}

impl View<'_> {
    /// Formats a time for people: seconds since the history began.
    pub(super) fn at(&self, time: Duration) -> String {
        seconds(time.saturating_sub(self.origin))
    }
}

/// Formats a duration for people.
pub(super) fn seconds(duration: Duration) -> String {
    format!("{:.3} s", duration.as_secs_f64())
}

/// A stretch of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: Duration,
    pub(super) to: Duration,
}

impl Span {
    pub(super) fn length(self) -> Duration {
        self.to.saturating_sub(self.from)
    }

    /// Returns the time that both spans share. Spans that only touch share none; an instant inside the other is shared.
    pub(super) fn overlap(self, other: Span) -> Option<Span> {
        (self.from < other.to && other.from < self.to).then(|| Span {
            from: self.from.max(other.from),
            to: self.to.min(other.to),
        })
    }
}

/// The time in which one node trusted one token.
pub(super) struct Term<'a> {
    pub(super) node: &'a str,
    pub(super) token: i64,
    /// The span from the first to the last valid sample, with the events at both ends.
    pub(super) valid: Option<(Span, [&'a Event; 2])>,
    /// For each stop that began while the node took itself for the leader: from the last valid sample before it to the
    /// first check after it.
    pub(super) stopped: Vec<Span>,
    /// The best estimate of when this node led: from its election or first valid sample to the first event after its
    /// last valid sample that says otherwise. It is never too short, so a vacancy beside it is a real one.
    pub(super) present: Span,
}

/// Returns the token of an event of a term, and whether the event says that the node leads.
pub(super) fn says(what: &What) -> Option<(i64, Says)> {
    Some(match what {
        What::Elected { token } => (*token, Says::Elected),
        What::Valid { token } | What::Guarded { token } => (*token, Says::Yes),
        What::Invalid { token } | What::LostToken { token, .. } | What::Released { token } => {
            (*token, Says::No)
        }
        _ => return None,
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Says {
    Elected,
    Yes,
    No,
}

/// Returns token and value of an admitted write.
pub(super) fn admitted(what: &What) -> Option<(i64, u64)> {
    match what {
        What::FencedWrite {
            token,
            outcome: Outcome::Admitted { value },
        } => Some((*token, *value)),
        _ => None,
    }
}

/// Returns true if the same event is recorded once more later. Then it took a moment, and only the later record is
/// certain.
pub(super) fn is_repeated(event: &Event, later: &[&Event]) -> bool {
    let about_it = |other: &&&Event| {
        let same_node = other.node == event.node;
        match (&event.what, &other.what) {
            (What::Fault { name }, What::Fault { name: again }) => same_node && name == again,
            (What::Fault { name }, What::Healed { name: over }) => {
                name == over && (same_node || other.node.is_empty())
            }
            (What::Resumed, What::Paused | What::Resumed | What::Killed) => same_node,
            _ => false,
        }
    };
    let next = later.iter().find(about_it);
    next.is_some_and(|next| next.what == event.what)
}

/// Returns all terms, ordered by their first valid sample (those without one by presence).
pub(super) fn terms<'a>(view: &View<'a>) -> Vec<Term<'a>> {
    let mut said: BTreeMap<(&str, i64), Vec<(Says, &Event)>> = BTreeMap::new();
    let mut process: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
    for event in view.events.iter().copied() {
        if let Some((token, says)) = says(&event.what) {
            said.entry((&event.node, token))
                .or_default()
                .push((says, event));
        } else if matches!(event.what, What::Paused | What::Resumed | What::Killed) {
            process.entry(&event.node).or_default().push(event);
        }
    }
    let mut terms: Vec<Term<'a>> = said
        .into_iter()
        .filter_map(|((node, token), said)| {
            let process = process.get(node).map_or(&[][..], Vec::as_slice);
            term(node, token, &said, process, view.end)
        })
        .collect();
    terms.sort_by_key(Term::begins);
    terms
}

impl Term<'_> {
    /// Returns the time of the first valid sample, or the beginning of presence where there is none.
    pub(super) fn begins(&self) -> Duration {
        self.valid.map_or(self.present.from, |(span, _)| span.from)
    }
}

fn term<'a>(
    node: &'a str,
    token: i64,
    said: &[(Says, &'a Event)],
    process: &[&'a Event],
    end: Duration,
) -> Option<Term<'a>> {
    let mut yes = said.iter().filter(|(says, _)| *says == Says::Yes);
    let first = yes.next().map(|(_, event)| *event);
    let last = yes.next_back().map(|(_, event)| *event).or(first);
    let valid = first.zip(last).map(|(first, last)| {
        let span = Span {
            from: first.at,
            to: last.at,
        };
        (span, [first, last])
    });

    let elected = said.iter().find(|(says, _)| *says == Says::Elected);
    let elected = elected.map(|(_, event)| event.at);
    let from = first
        .map(|event| event.at)
        .into_iter()
        .chain(elected)
        .min()?;
    let last_yes = last.map(|event| event.at).or(elected)?;
    let denials = said
        .iter()
        .filter(|(says, _)| *says == Says::No)
        .map(|(_, event)| *event);
    let stops = process
        .iter()
        .copied()
        .filter(|event| event.what != What::Resumed);
    let to = denials
        .chain(stops)
        .map(|event| event.at)
        .filter(|at| *at >= last_yes)
        .min()
        .unwrap_or(end);

    let pauses = process.iter().filter(|event| event.what == What::Paused);
    let stopped = pauses
        .filter_map(|pause| stopped(pause.at, said, process, end))
        .collect();
    Some(Term {
        node,
        token,
        valid,
        stopped,
        present: Span { from, to },
    })
}

/// Returns the time around a stop in which the node has not noticed the end of its term.
fn stopped(
    pause: Duration,
    said: &[(Says, &Event)],
    process: &[&Event],
    end: Duration,
) -> Option<Span> {
    let after = |what: &What| {
        process
            .iter()
            .find(|event| event.at >= pause && event.what == *what)
            .map(|event| event.at)
    };
    let resumed = after(&What::Resumed);
    let (says, last) = said
        .iter()
        .rfind(|(_, event)| resumed.is_none_or(|at| event.at < at))?;
    // A process of the same name that was started after a kill does not know this term.
    let died = process
        .iter()
        .any(|event| event.what == What::Killed && (last.at..pause).contains(&event.at));
    if *says == Says::No || died {
        return None;
    }
    let checked = resumed.and_then(|resumed| {
        said.iter()
            .find(|(_, event)| event.at >= resumed)
            .map(|(_, event)| event.at)
    });
    let to = [checked, after(&What::Killed)].into_iter().flatten().min();
    Some(Span {
        from: last.at,
        to: to.unwrap_or(end),
    })
}

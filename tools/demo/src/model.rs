//! Combines single events into a picture of the election, and decides which events are worth a line.

use std::collections::BTreeMap;
use std::time::Duration;

use eldest::Roster;
use eldest_testing::history::Outcome;

use crate::events::{Event, Said};

/// An input of the demo's model.
#[derive(Debug)]
pub(crate) enum News {
    /// A node reports an event.
    Event(Event),
    /// A node's process ended, and all its reports were read.
    Ended { node: String, pid: u32 },
    /// The candidates in etcd changed.
    Roster(Roster),
    /// The candidates can no longer be observed.
    Blind(String),
}

/// A line for people.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Line {
    pub(crate) at: Duration,
    /// The node; empty for the demo itself.
    pub(crate) who: String,
    pub(crate) text: String,
}

/// The state of a node's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Condition {
    Running,
    Frozen,
    Killed,
    /// The node was asked to end.
    Leaving,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) pid: u32,
    pub(crate) condition: Condition,
    /// The term in which the node considers itself the leader.
    pub(crate) term: Option<Term>,
    said_written: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Term {
    pub(crate) token: i64,
    pub(crate) since: Duration,
    /// The node's own deadline, as last reported.
    pub(crate) until: Duration,
}

/// A candidate in etcd.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) name: String,
    pub(crate) key: Vec<u8>,
    pub(crate) create_revision: i64,
    pub(crate) lease: i64,
    pub(crate) since: Duration,
}

/// All known facts at a time.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) nodes: BTreeMap<String, Node>,
    /// The candidates, eldest first.
    pub(crate) candidates: Vec<Candidate>,
    /// All reported events, in the order of their arrival.
    pub(crate) events: Vec<Event>,
    /// The time and the reason of the last leader's departure.
    pub(crate) cause: Option<(Duration, String)>,
    /// The processes whose reports are complete.
    pub(crate) ended: Vec<u32>,
    pub(crate) blind: Option<String>,
}

impl Model {
    pub(crate) fn started(&mut self, name: &str, pid: u32) {
        let node = Node {
            pid,
            condition: Condition::Running,
            term: None,
            said_written: false,
        };
        self.nodes.insert(name.to_owned(), node);
    }

    pub(crate) fn set(&mut self, name: &str, condition: Condition) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.condition = condition;
            if condition == Condition::Killed {
                node.term = None;
            }
        }
    }

    /// Returns the names in order of seniority.
    pub(crate) fn order(&self) -> Vec<&str> {
        self.candidates
            .iter()
            .map(|candidate| candidate.name.as_str())
            .collect()
    }

    /// Returns the first event of that node, at or after a point, that `wanted` accepts.
    pub(crate) fn find<T>(
        &self,
        from: usize,
        node: &str,
        wanted: impl Fn(&Event) -> Option<T>,
    ) -> Option<T> {
        let events = self.events.get(from..).unwrap_or_default();
        let mut own = events.iter().filter(|event| event.node == node);
        own.find_map(wanted)
    }

    /// Returns the first election since that point: time, node and token.
    pub(crate) fn elected(&self, from: usize) -> Option<(Duration, &str, i64)> {
        let events = self.events.get(from..).unwrap_or_default();
        events.iter().find_map(|event| match event.said {
            Said::Elected { token } => Some((event.at, event.node.as_str(), token)),
            _ => None,
        })
    }

    /// Applies news; `now` is the time of its arrival.
    pub(crate) fn apply(&mut self, news: News, now: Duration) -> Option<Line> {
        match news {
            News::Event(event) => self.event(event),
            News::Ended { node, pid } => {
                self.ended.push(pid);
                let known = self.nodes.get_mut(&node).filter(|known| known.pid == pid)?;
                if matches!(known.condition, Condition::Killed | Condition::Leaving) {
                    return None;
                }
                known.condition = Condition::Killed;
                let text = "its process ended, which nobody asked for".to_owned();
                Some(Line {
                    at: now,
                    who: node,
                    text,
                })
            }
            News::Roster(roster) => {
                self.candidates = candidates(&self.candidates, &roster, now);
                None
            }
            News::Blind(why) => {
                self.blind = Some(why);
                None
            }
        }
    }

    fn event(&mut self, event: Event) -> Option<Line> {
        let text = self.nodes.get_mut(&event.node).and_then(|node| {
            let text = text(node, &event, self.cause.as_ref());
            node.take(&event);
            text
        });
        let line = text.map(|text| Line {
            at: event.at,
            who: event.node.clone(),
            text,
        });
        if let Said::Resigns { .. } = event.said {
            let cause = format!("{} began to resign", event.node);
            self.cause = Some((event.at, cause));
        }
        self.events.push(event);
        line
    }
}

impl Node {
    fn take(&mut self, event: &Event) {
        match event.said {
            Said::Elected { token } => {
                self.term = Some(Term {
                    token,
                    since: event.at,
                    until: event.at,
                });
                self.said_written = false;
            }
            Said::Checked {
                valid: true, until, ..
            } => {
                if let Some(term) = &mut self.term {
                    term.until = until;
                }
            }
            Said::Checked { .. } | Said::Lost { .. } | Said::Resigns { .. } => self.term = None,
            Said::Wrote { outcome, .. } => self.said_written |= outcome != Outcome::Sent,
            Said::Queued { .. } | Said::NotSent { .. } | Said::Error { .. } => {}
        }
    }
}

/// Keeps the times at which candidates were first seen.
fn candidates(before: &[Candidate], roster: &Roster, now: Duration) -> Vec<Candidate> {
    let members = roster.members().iter();
    let candidates = members.map(|member| {
        let known = before
            .iter()
            .find(|candidate| candidate.create_revision == member.create_revision());
        Candidate {
            name: member.identity().to_owned(),
            key: member.key().to_vec(),
            create_revision: member.create_revision(),
            lease: member.lease_id(),
            since: known.map_or(now, |candidate| candidate.since),
        }
    });
    candidates.collect()
}

/// Describes an event for people, if it is worth a line.
fn text(node: &Node, event: &Event, cause: Option<&(Duration, String)>) -> Option<String> {
    Some(match &event.said {
        Said::Queued { ahead: 0 } => "is first in line".to_owned(),
        Said::Queued { ahead: 1 } => "waits in line, 1 node ahead of it".to_owned(),
        Said::Queued { ahead } => format!("waits in line, {ahead} nodes ahead of it"),
        Said::Elected { token } => {
            let after = cause.filter(|(at, _)| *at <= event.at).map(|(at, what)| {
                format!(", {} after {what}", brief(event.at.saturating_sub(*at)))
            });
            format!(
                "LEADS with fencing token {token}{}",
                after.unwrap_or_default()
            )
        }
        Said::Checked { valid: true, .. } => return None,
        Said::Checked { .. } => "asks is_valid(): no, it does not lead any more".to_owned(),
        Said::Lost { reason, .. } => format!("learns that its term is over ({reason})"),
        Said::Resigns { .. } => "resigns: gives its key back".to_owned(),
        Said::Wrote {
            token,
            outcome: Outcome::Refused,
            late,
        } => {
            let forced = if *late { "forced " } else { "" };
            format!("its {forced}write with token {token} is REFUSED by etcd")
        }
        Said::Wrote {
            token, late: true, ..
        } => format!("its forced write with token {token} was NOT refused"),
        Said::Wrote {
            token,
            outcome: Outcome::Admitted { .. },
            ..
        } if !node.said_written => format!("its first write with token {token} is accepted"),
        Said::Wrote {
            outcome: Outcome::Unknown,
            ..
        } => "got no answer to a write".to_owned(),
        Said::Wrote { .. } => return None,
        Said::NotSent { .. } => "tries to write all the same: the library sends nothing".to_owned(),
        Said::Error { text } => format!("error: {text}"),
    })
}

/// Formats a duration for people: `0.85 ms`, `12 ms`, `1.95 s`.
pub(crate) fn brief(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1e3;
    if ms < 10.0 {
        format!("{ms:.2} ms")
    } else if ms < 1000.0 {
        format!("{ms:.0} ms")
    } else {
        format!("{:.2} s", ms / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn event(ms: u64, said: Said) -> News {
        News::Event(Event {
            at: at(ms),
            node: "alice".into(),
            said,
        })
    }

    fn text_of(model: &mut Model, ms: u64, said: Said) -> Option<String> {
        model.apply(event(ms, said), at(ms)).map(|line| line.text)
    }

    #[test]
    fn an_election_is_reported_with_the_time_since_its_cause() {
        let mut model = Model::default();
        model.started("alice", 1);
        model.cause = Some((at(1_000), "bob was killed".into()));
        let text = text_of(&mut model, 1_012, Said::Elected { token: 9 }).unwrap();
        assert_eq!(
            text,
            "LEADS with fencing token 9, 12 ms after bob was killed"
        );
        let (when, who, token) = model.elected(0).unwrap();
        assert_eq!((when, who, token), (at(1_012), "alice", 9));
        assert!(model.elected(1).is_none());
    }

    #[test]
    fn invalid_check_ends_the_term_and_a_valid_one_is_worth_no_line() {
        let mut model = Model::default();
        model.started("alice", 1);
        text_of(&mut model, 1, Said::Elected { token: 9 });
        let checked = |valid| Said::Checked {
            token: 9,
            valid,
            until: at(500),
        };
        assert_eq!(text_of(&mut model, 2, checked(true)), None);
        assert_eq!(model.nodes["alice"].term.unwrap().until, at(500));
        assert!(text_of(&mut model, 600, checked(false)).is_some());
        assert!(model.nodes["alice"].term.is_none());
    }

    #[test]
    fn only_the_first_write_of_a_term_is_reported() {
        let mut model = Model::default();
        model.started("alice", 1);
        let wrote = |value| Said::Wrote {
            token: 9,
            outcome: Outcome::Admitted { value },
            late: false,
        };
        assert!(text_of(&mut model, 1, wrote(1)).is_some());
        assert!(text_of(&mut model, 2, wrote(2)).is_none());
        text_of(&mut model, 3, Said::Elected { token: 12 });
        assert!(text_of(&mut model, 4, wrote(3)).is_some());
    }

    #[test]
    fn end_of_a_nodes_earlier_process_does_not_concern_the_present_one() {
        let mut model = Model::default();
        model.started("alice", 2);
        let ended = |pid| News::Ended {
            node: "alice".into(),
            pid,
        };
        assert_eq!(model.apply(ended(1), at(1)), None);
        assert_eq!(model.nodes["alice"].condition, Condition::Running);
        assert!(model.apply(ended(2), at(1)).is_some());
        assert_eq!(model.nodes["alice"].condition, Condition::Killed);
    }

    #[test]
    fn durations_are_short() {
        assert_eq!(brief(Duration::from_micros(850)), "0.85 ms");
        assert_eq!(brief(at(12)), "12 ms");
        assert_eq!(brief(at(1_950)), "1.95 s");
    }
}

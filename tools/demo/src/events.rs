//! Defines the events that a node reports to the demo, each as one line of JSON.

use std::time::Duration;

use eldest_testing::history::{Outcome, What};
use serde::{Deserialize, Serialize};

/// An event of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Event {
    /// The time since boot, by the clock that all processes of this host share.
    pub(crate) at: Duration,
    pub(crate) node: String,
    pub(crate) said: Said,
}

/// An event that a node reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Said {
    /// The node's key exists in etcd, behind so many older candidates.
    Queued { ahead: usize },
    /// The node leads.
    Elected { token: i64 },
    /// The node checked whether its term is valid. A valid check is stamped with the time before it, an invalid one
    /// with the time after it.
    Checked {
        token: i64,
        valid: bool,
        /// The deadline of the term at that time, as time since boot.
        until: Duration,
    },
    /// The library reported that the node's term ends.
    Lost { token: i64, reason: String },
    /// The node is about to resign.
    Resigns { token: i64 },
    /// The node sent a write on condition that its term's key exists, or knows its outcome. `late` means that it sent
    /// the write although its term had ended.
    Wrote {
        token: i64,
        outcome: Outcome,
        late: bool,
    },
    /// The library did not send a write, because the term had ended.
    NotSent { token: i64 },
    /// An error occurred after which the node continues.
    Error { text: String },
}

impl Event {
    /// Formats the event as a line, with its line end.
    pub(crate) fn to_line(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string(self)? + "\n")
    }

    /// Parses a line; returns `None` for one that a killed node left unfinished.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }

    /// Converts to an event for the history checker.
    pub(crate) fn to_history(&self) -> Option<What> {
        Some(match &self.said {
            Said::Elected { token } => What::Elected { token: *token },
            Said::Checked {
                token, valid: true, ..
            } => What::Valid { token: *token },
            Said::Checked { token, .. } => What::Invalid { token: *token },
            Said::Lost { token, reason } => What::LostToken {
                token: *token,
                reason: reason.clone(),
            },
            Said::Resigns { token } => What::Released { token: *token },
            Said::Wrote { token, outcome, .. } => What::FencedWrite {
                token: *token,
                outcome: *outcome,
            },
            Said::Queued { .. } | Said::NotSent { .. } | Said::Error { .. } => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_line_is_read_as_it_was_written_and_an_unfinished_one_is_no_event() {
        let event = Event {
            at: Duration::from_nanos(1_234_567_890_123),
            node: "alice \"\n".into(),
            said: Said::Wrote {
                token: 42,
                outcome: Outcome::Admitted { value: 3 },
                late: false,
            },
        };
        let line = event.to_line().unwrap();
        assert_eq!(line.matches('\n').count(), 1, "{line}");
        assert_eq!(Event::parse(&line), Some(event));
        for end in 0..line.len() - 2 {
            assert_eq!(Event::parse(&line[..end]), None);
        }
    }

    #[test]
    fn only_a_valid_check_counts_as_leading() {
        let checked = |valid| {
            let event = Event {
                at: Duration::ZERO,
                node: String::new(),
                said: Said::Checked {
                    token: 5,
                    valid,
                    until: Duration::ZERO,
                },
            };
            event.to_history()
        };
        assert_eq!(checked(true), Some(What::Valid { token: 5 }));
        assert_eq!(checked(false), Some(What::Invalid { token: 5 }));
    }
}

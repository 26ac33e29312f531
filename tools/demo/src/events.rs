//! Defines the events that a node reports to the demo, and encodes each as one line of JSON.

use std::time::Duration;

use eldest_testing::history::{Outcome, What};
use serde_json::{Value, json};

/// An event of a node.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Event {
    /// The time since boot, by the clock that all processes of this host share.
    pub(crate) at: Duration,
    pub(crate) node: String,
    pub(crate) said: Said,
}

/// An event that a node reports.
#[derive(Debug, Clone, PartialEq)]
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
    pub(crate) fn to_line(&self) -> String {
        let mut object = match &self.said {
            Said::Queued { ahead } => json!({"said": "queued", "ahead": ahead}),
            Said::Elected { token } => json!({"said": "elected", "token": token}),
            Said::Checked {
                token,
                valid,
                until,
            } => {
                json!({"said": "checked", "token": token, "valid": valid, "until": nanos(*until)})
            }
            Said::Lost { token, reason } => {
                json!({"said": "lost", "token": token, "reason": reason})
            }
            Said::Resigns { token } => json!({"said": "resigns", "token": token}),
            Said::Wrote {
                token,
                outcome,
                late,
            } => {
                let (outcome, value) = match outcome {
                    Outcome::Admitted { value } => ("admitted", *value),
                    Outcome::Sent => ("sent", 0),
                    Outcome::Refused => ("refused", 0),
                    _ => ("unknown", 0),
                };
                json!({"said": "wrote", "token": token, "outcome": outcome, "value": value, "late": late})
            }
            Said::NotSent { token } => json!({"said": "not_sent", "token": token}),
            Said::Error { text } => json!({"said": "error", "text": text}),
        };
        object["at"] = nanos(self.at).into();
        object["node"] = self.node.as_str().into();
        format!("{object}\n")
    }

    /// Parses a line; returns `None` for one that a killed node left unfinished.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let object: Value = serde_json::from_str(line).ok()?;
        let text = |name: &str| object[name].as_str().map(str::to_owned);
        let time = |name: &str| object[name].as_u64().map(Duration::from_nanos);
        let token = object["token"].as_i64();
        let said = match object["said"].as_str()? {
            "queued" => Said::Queued {
                ahead: usize::try_from(object["ahead"].as_u64()?).ok()?,
            },
            "elected" => Said::Elected { token: token? },
            "checked" => Said::Checked {
                token: token?,
                valid: object["valid"].as_bool()?,
                until: time("until")?,
            },
            "lost" => Said::Lost {
                token: token?,
                reason: text("reason")?,
            },
            "resigns" => Said::Resigns { token: token? },
            "wrote" => Said::Wrote {
                token: token?,
                outcome: match object["outcome"].as_str()? {
                    "admitted" => Outcome::Admitted {
                        value: object["value"].as_u64()?,
                    },
                    "sent" => Outcome::Sent,
                    "refused" => Outcome::Refused,
                    "unknown" => Outcome::Unknown,
                    _ => return None,
                },
                late: object["late"].as_bool()?,
            },
            "not_sent" => Said::NotSent { token: token? },
            "error" => Said::Error {
                text: text("text")?,
            },
            _ => return None,
        };
        Some(Self {
            at: time("at")?,
            node: text("node")?,
            said,
        })
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

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(said: Said) -> Event {
        Event {
            at: Duration::from_nanos(1_234_567_890_123),
            node: "alice \"\n".into(),
            said,
        }
    }

    #[test]
    fn every_event_is_read_as_it_was_written() {
        let token = 42;
        let wrote = |outcome, late| Said::Wrote {
            token,
            outcome,
            late,
        };
        let all = [
            Said::Queued { ahead: 2 },
            Said::Elected { token },
            Said::Checked {
                token,
                valid: true,
                until: Duration::from_nanos(7),
            },
            Said::Lost {
                token,
                reason: "lease_lost".into(),
            },
            Said::Resigns { token },
            wrote(Outcome::Sent, false),
            wrote(Outcome::Admitted { value: 3 }, false),
            wrote(Outcome::Refused, true),
            wrote(Outcome::Unknown, false),
            Said::NotSent { token },
            Said::Error {
                text: "no route\n".into(),
            },
        ];
        for said in all {
            let event = event(said);
            let line = event.to_line();
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            assert_eq!(Event::parse(&line), Some(event));
        }
    }

    #[test]
    fn an_unfinished_line_is_no_event() {
        let line = event(Said::Elected { token: 1 }).to_line();
        for end in 0..line.len() - 2 {
            assert_eq!(Event::parse(&line[..end]), None);
        }
        assert_eq!(
            Event::parse(r#"{"said":"elected","at":1,"node":"a"}"#),
            None
        );
        assert_eq!(Event::parse(r#"{"said":"sang","at":1,"node":"a"}"#), None);
    }

    #[test]
    fn only_a_valid_check_counts_as_leading() {
        let checked = |valid| {
            event(Said::Checked {
                token: 5,
                valid,
                until: Duration::ZERO,
            })
        };
        assert_eq!(checked(true).to_history(), Some(What::Valid { token: 5 }));
        assert_eq!(
            checked(false).to_history(),
            Some(What::Invalid { token: 5 })
        );
    }
}

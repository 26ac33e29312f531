//! Keeps the last terms that the node observed, with their times by the node's own clock.

use std::collections::VecDeque;

use serde_json::{Value, json};

use crate::roster::Member;

/// So many are kept.
const KEPT: usize = 100;

/// The terms that an onlooker saw, the oldest first. One that began and ended while nobody could look is not among them.
#[derive(Debug, Clone, Default)]
pub(super) struct Past(VecDeque<Seen>);

#[derive(Debug, Clone)]
struct Seen {
    token: i64,
    identity: String,
    /// `None`: it had begun when we came.
    began: Option<u64>,
    ended: Option<u64>,
}

impl Past {
    /// `leader` has the first key of the queue, `now` in milliseconds since the epoch.
    pub(super) fn see(&mut self, leader: Option<&Member>, now: u64) {
        let first = self.0.is_empty();
        let token = leader.map(Member::create_revision);
        if let Some(last) = self.0.back_mut() {
            if Some(last.token) == token {
                return;
            }
            last.ended.get_or_insert(now);
        }
        let Some(leader) = leader else { return };
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(Seen {
            token: leader.create_revision(),
            identity: leader.identity().to_owned(),
            began: (!first).then_some(now),
            ended: None,
        });
    }

    pub(super) fn json(&self) -> Value {
        let terms = self.0.iter().map(|seen| {
            json!({
                "fencing_token": seen.token,
                "identity": seen.identity,
                "began_unix_ms": seen.began,
                "ended_unix_ms": seen.ended,
            })
        });
        terms.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roster::Roster;
    use eldest_core::facts::Entry;

    fn led_by(token: i64) -> Roster {
        let entry = Entry {
            key: (*b"e/1").into(),
            value: (*b"somebody").into(),
            create_revision: token,
            mod_revision: token,
            lease: 1,
        };
        Roster::new(token, [entry])
    }

    fn tokens(past: &Past) -> Vec<(i64, Option<u64>, Option<u64>)> {
        let each = past.0.iter();
        each.map(|seen| (seen.token, seen.began, seen.ended))
            .collect()
    }

    #[test]
    fn a_term_ends_when_another_leads_or_nobody_does() {
        let mut past = Past::default();
        for (token, now) in [(3, 10), (3, 11), (5, 20)] {
            past.see(led_by(token).leader(), now);
        }
        past.see(None, 30);
        past.see(None, 31);
        past.see(led_by(9).leader(), 40);
        let seen = [
            (3, None, Some(20)),
            (5, Some(20), Some(30)),
            (9, Some(40), None),
        ];
        assert_eq!(tokens(&past), seen);
    }

    #[test]
    fn only_the_last_terms_are_kept() {
        let mut past = Past::default();
        for token in 1..=250 {
            past.see(led_by(token).leader(), 0);
        }
        assert_eq!(past.0.len(), KEPT);
        assert_eq!(tokens(&past)[0].0, 250 - KEPT as i64 + 1);
    }
}

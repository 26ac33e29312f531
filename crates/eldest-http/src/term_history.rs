//! Keeps the last terms that the node observed, with their times by the node's own clock.

use std::collections::VecDeque;

use super::contract::Term;

/// The number of kept terms.
const KEPT: usize = 100;

/// The terms that an observer saw, the oldest first. A term that began and ended while nothing could be observed is
/// missing.
#[derive(Debug, Clone, Default)]
pub(super) struct TermHistory(VecDeque<Term>);

impl TermHistory {
    /// Records the leader: its fencing token and identity, with the time in milliseconds since 1970.
    pub(super) fn see(&mut self, leader: Option<(i64, &str)>, now: u64) {
        let first = self.0.is_empty();
        let token = leader.map(|(token, _)| token);
        if let Some(last) = self.0.back_mut() {
            if Some(last.fencing_token) == token {
                return;
            }
            last.ended_unix_ms.get_or_insert(now);
        }
        let Some((token, identity)) = leader else {
            return;
        };
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(Term {
            fencing_token: token,
            identity: identity.to_owned(),
            began_unix_ms: (!first).then_some(now),
            ended_unix_ms: None,
        });
    }

    pub(super) fn list(&self) -> Vec<Term> {
        self.0.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn led_by(token: i64) -> (i64, &'static str) {
        (token, "somebody")
    }

    fn tokens(term_history: &TermHistory) -> Vec<(i64, Option<u64>, Option<u64>)> {
        let each = term_history.0.iter();
        each.map(|seen| (seen.fencing_token, seen.began_unix_ms, seen.ended_unix_ms))
            .collect()
    }

    #[test]
    fn a_term_ends_when_another_leads_or_nobody_does() {
        let mut term_history = TermHistory::default();
        for (token, now) in [(3, 10), (3, 11), (5, 20)] {
            term_history.see(Some(led_by(token)), now);
        }
        term_history.see(None, 30);
        term_history.see(None, 31);
        term_history.see(Some(led_by(9)), 40);
        let seen = [
            (3, None, Some(20)),
            (5, Some(20), Some(30)),
            (9, Some(40), None),
        ];
        assert_eq!(tokens(&term_history), seen);
    }

    #[test]
    fn only_the_last_terms_are_kept() {
        let mut term_history = TermHistory::default();
        for token in 1..=250 {
            term_history.see(Some(led_by(token)), 0);
        }
        assert_eq!(term_history.0.len(), KEPT);
        assert_eq!(tokens(&term_history)[0].0, 250 - KEPT as i64 + 1);
    }
}

//! Keeps the last terms that the node observed, with their times by the node's own clock.

use std::collections::VecDeque;

use super::contract::Term;

/// The number of kept terms.
const KEPT: usize = 100;

/// The terms that an observer saw, the oldest first. A term that began and ended while etcd was silent is missing.
#[derive(Debug, Clone, Default)]
pub(super) struct TermHistory {
    terms: VecDeque<Term>,
    /// The time since which etcd has confirmed nothing, in milliseconds since 1970, if that is too long.
    silent_since: Option<u64>,
}

impl TermHistory {
    /// Records the leader: its fencing token and identity, with the time in milliseconds since 1970. If etcd was silent
    /// before, the leader of the last confirmation led until then, and the time after it is unknown.
    pub(super) fn see(&mut self, leader: Option<(i64, &str)>, now: u64) {
        let first = self.terms.is_empty();
        let token = leader.map(|(token, _)| token);
        let silent_since = self.silent_since.take();
        if let Some(last) = self.terms.back_mut() {
            if Some(last.fencing_token) == token {
                return;
            }
            let ended = *last
                .ended_unix_ms
                .get_or_insert(silent_since.unwrap_or(now));
            if let Some(since) = silent_since {
                last.unknown_since_unix_ms.get_or_insert(since.max(ended));
                last.unknown_until_unix_ms = Some(now);
            }
        }
        let Some((token, identity)) = leader else {
            return;
        };
        if self.terms.len() == KEPT {
            self.terms.pop_front();
        }
        self.terms.push_back(Term {
            fencing_token: token,
            identity: identity.to_owned(),
            began_unix_ms: (!first).then_some(now),
            ended_unix_ms: None,
            ended_by_own_clock: false,
            unknown_since_unix_ms: None,
            unknown_until_unix_ms: None,
        });
    }

    /// Sets the time since which etcd has confirmed nothing. `None` means that it confirmed the view recently.
    pub(super) fn silent_since(&mut self, since: Option<u64>) {
        self.silent_since = since;
    }

    /// Records that the node's own term has ended by its clock. Returns `false` if it had ended already.
    pub(super) fn end_own(&mut self, token: i64, now: u64) -> bool {
        let last = self.terms.back_mut();
        let Some(last) = last.filter(|it| it.fencing_token == token && it.ended_unix_ms.is_none())
        else {
            return false;
        };
        last.ended_unix_ms = Some(now);
        last.ended_by_own_clock = true;
        true
    }

    pub(super) fn list(&self) -> Vec<Term> {
        self.terms.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn led_by(token: i64) -> (i64, &'static str) {
        (token, "somebody")
    }

    fn tokens(term_history: &TermHistory) -> Vec<(i64, Option<u64>, Option<u64>)> {
        let each = term_history.terms.iter();
        each.map(|seen| (seen.fencing_token, seen.began_unix_ms, seen.ended_unix_ms))
            .collect()
    }

    /// Returns a history of term 3, which has not ended.
    fn led() -> TermHistory {
        let mut term_history = TermHistory::default();
        term_history.see(None, 5);
        term_history.see(Some(led_by(3)), 10);
        term_history
    }

    /// Returns when the first term ended, whether the node's own clock ended it, and the unknown time that follows.
    fn end(term_history: &TermHistory) -> (Option<u64>, bool, Option<u64>, Option<u64>) {
        let first = &term_history.terms[0];
        (
            first.ended_unix_ms,
            first.ended_by_own_clock,
            first.unknown_since_unix_ms,
            first.unknown_until_unix_ms,
        )
    }

    #[test]
    fn own_term_ends_by_the_own_clock_though_etcd_still_names_it() {
        let mut term_history = led();
        assert!(term_history.end_own(3, 45));
        assert!(!term_history.end_own(3, 46) && !term_history.end_own(2, 46));
        term_history.see(Some(led_by(3)), 47);
        assert_eq!(end(&term_history), (Some(45), true, None, None));
        term_history.see(None, 48);
        term_history.see(Some(led_by(9)), 50);
        assert_eq!(end(&term_history), (Some(45), true, None, None));
        assert_eq!(tokens(&term_history)[1], (9, Some(50), None));
    }

    #[test]
    fn time_after_the_last_confirmation_before_a_silence_is_unknown() {
        let mut term_history = led();
        term_history.silent_since(Some(40));
        assert!(term_history.end_own(3, 45));
        term_history.see(Some(led_by(9)), 65);
        assert_eq!(end(&term_history), (Some(45), true, Some(45), Some(65)));

        // Only etcd reports the end of another node's term.
        let mut term_history = led();
        term_history.silent_since(Some(40));
        term_history.see(None, 65);
        assert_eq!(end(&term_history), (Some(40), false, Some(40), Some(65)));
        term_history.see(Some(led_by(9)), 70);
        assert_eq!(end(&term_history), (Some(40), false, Some(40), Some(65)));

        // etcd was silent while there was no leader.
        let mut term_history = led();
        term_history.see(None, 20);
        term_history.silent_since(Some(40));
        term_history.see(Some(led_by(9)), 65);
        assert_eq!(end(&term_history), (Some(20), false, Some(40), Some(65)));
    }

    #[test]
    fn silence_with_the_same_leader_afterwards_leaves_nothing_unknown() {
        let mut term_history = led();
        term_history.silent_since(Some(40));
        term_history.see(Some(led_by(3)), 65);
        assert_eq!(end(&term_history), (None, false, None, None));
        term_history.silent_since(Some(70));
        term_history.silent_since(None);
        term_history.see(None, 80);
        assert_eq!(end(&term_history), (Some(80), false, None, None));
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
        assert_eq!(term_history.terms.len(), KEPT);
        assert_eq!(tokens(&term_history)[0].0, 250 - KEPT as i64 + 1);
    }
}

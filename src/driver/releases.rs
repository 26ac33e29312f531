//! Answers the callers that wait until the key of a term is gone. Visits only the callers of candidates that changed.

use std::collections::{BTreeSet, HashMap};

use tokio::sync::oneshot;

use eldest_core::action::{SlotId, TermId};

/// The callers that wait, by the candidate whose term it is.
#[derive(Default)]
pub(super) struct Releases {
    waiting: HashMap<SlotId, Vec<(TermId, oneshot::Sender<()>)>>,
    /// The candidates with waiting callers that changed in this turn.
    changed: BTreeSet<SlotId>,
}

impl Releases {
    /// Answers `reply` when the key of that term is gone.
    pub(super) fn wait(&mut self, slot: SlotId, term: TermId, reply: oneshot::Sender<()>) {
        let waiting = self.waiting.entry(slot).or_default();
        // Remove abandoned calls, or they would pile up. Only a full table is searched, because many calls may wait.
        if waiting.len() == waiting.capacity() {
            waiting.retain(|(_, reply)| !reply.is_closed());
        }
        waiting.push((term, reply));
    }

    /// Records that the candidate changed.
    pub(super) fn changed(&mut self, slot: SlotId) {
        if self.waiting.contains_key(&slot) {
            self.changed.insert(slot);
        }
    }

    /// Answers the callers whose term is released.
    pub(super) fn answer(&mut self, mut is_released: impl FnMut(SlotId, TermId) -> bool) {
        while let Some(slot) = self.changed.pop_first() {
            let Some(waiting) = self.waiting.get_mut(&slot) else {
                continue;
            };
            for (_, reply) in waiting.extract_if(.., |(term, _)| is_released(slot, *term)) {
                let _ = reply.send(());
            }
            if waiting.is_empty() {
                self.waiting.remove(&slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLERS: u64 = 20_000;

    #[test]
    fn a_turn_visits_only_the_callers_of_changed_candidates() {
        let mut releases = Releases::default();
        let mut looks = 0;
        let mut answers = Vec::new();
        for slot in 0..CALLERS {
            let (reply, answer) = oneshot::channel();
            releases.wait(slot, 1, reply);
            answers.push(answer);
        }
        for slot in 0..CALLERS {
            releases.changed(slot);
            // The other terms of the session continue, and events arrive.
            releases.changed(CALLERS + slot);
            releases.answer(|changed, _| {
                looks += 1;
                changed == slot
            });
        }
        assert!(answers.iter_mut().all(|answer| answer.try_recv().is_ok()));
        assert_eq!(looks, CALLERS);
        assert!(releases.waiting.is_empty());
    }

    #[test]
    fn callers_are_visited_once_in_a_turn_however_often_their_candidate_changed() {
        let mut releases = Releases::default();
        let mut visits = 0;
        releases.wait(1, 1, oneshot::channel().0);
        for _ in 0..3 {
            releases.changed(1);
        }
        releases.answer(|_, _| {
            visits += 1;
            false
        });
        assert_eq!(visits, 1);
    }

    #[test]
    fn abandoned_calls_do_not_pile_up() {
        let mut releases = Releases::default();
        for _ in 0..CALLERS {
            releases.wait(1, 1, oneshot::channel().0);
        }
        assert!(releases.waiting[&1].len() <= 4);
    }
}

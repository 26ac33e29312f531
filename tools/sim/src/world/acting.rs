//! Carries out a core's actions, and does to nodes what happens to processes.

use std::sync::Arc;
use std::time::Duration;

use super::node::{Link, Node, Term};
use super::store::Key;
use super::{Ev, Event, Watcher, World};
use eldest_core::action::{Action, CandidateAction, SlotId, TermId, WatchId};
use eldest_core::queue::is_shared;
use eldest_core::reason::LostReason;

impl World {
    pub(crate) fn relink(&mut self, node: usize, change: impl FnOnce(&mut Link)) {
        change(&mut self.nodes[node].link);
        let link = &self.nodes[node].link;
        if !link.watches_stalled && !link.answers_lost {
            let held = std::mem::take(&mut self.nodes[node].held);
            let held = held
                .into_iter()
                .map(|(generation, number, message)| Event::Watched {
                    generation,
                    number,
                    message,
                });
            // A paused node that continues finds its events in the order of the stream.
            let later = std::mem::take(&mut self.inboxes[node]);
            for event in held.chain(later).collect::<Vec<_>>() {
                self.deliver(node, event);
            }
        }
    }

    /// Kills the process; another takes its place.
    pub(crate) fn kill(&mut self, node: usize) {
        self.says(Some(node), || "is killed and starts again".to_owned());
        self.lives[node] += 1;
        self.watchers.retain(|w| w.node != node);
        self.inboxes[node].clear();
        // The seed of the next process does not depend on the earlier draws.
        let fresh = fastrand::Rng::with_seed(self.nodes[node].seed).u64(..);
        let seed = self.seed_of(node, fresh);
        let new = Node::new(self.nodes[node].settings, seed);
        let old = std::mem::replace(&mut self.nodes[node], new);
        for term in old.terms.iter().filter(|t| !t.joined && !t.over) {
            self.close_term(term.prize);
        }
        let new = &mut self.nodes[node];
        (new.offset, new.recording) = (old.offset, self.recording);
        (new.link, new.member, new.identity) = (old.link, old.member, old.identity);
        (new.draws, new.tally) = (old.draws, old.tally);
        self.note_wake(node);
    }

    pub(crate) fn act(&mut self, node: usize, action: Action) {
        match action {
            Action::Ask { request, ask } => self.send(node, request, ask),
            Action::Watch { watch, key, prefix } => self.open_watch(node, watch, key, prefix),
            Action::Unwatch { watch: id } => {
                self.on_stream(node, move |w, generation| {
                    w.cancel_watch(node, generation, id);
                });
            }
            Action::Progress => {
                self.on_stream(node, move |w, generation| w.progress(node, generation));
            }
            Action::HangUpWatches { elsewhere } => self.hang_up(node, elsewhere),
            report => self.report(node, report),
        }
    }

    /// Checks and records a report of the core.
    fn report(&mut self, node: usize, action: Action) {
        self.says_action(node, &action);
        match &action {
            Action::Candidate(CandidateAction::TermEnded { slot, term, .. }) => {
                if let Some(candidate) = self.nodes[node].candidates.get_mut(slot) {
                    candidate.former_term = Some(*term);
                }
                self.wind_up(node, *slot, *term);
            }
            Action::Candidate(CandidateAction::Elected { slot, .. }) => {
                self.begin_term(node, &action);
                // As in `Resource::elected`, the candidate is dropped when it has what it waited for.
                if self.nodes[node].candidates[slot].brief {
                    self.leave_slot(node, *slot);
                }
            }
            Action::Candidate(CandidateAction::Taken {
                member,
                partition,
                slot,
            }) => self.taken(node, *member, *partition, *slot),
            Action::Candidate(CandidateAction::Coming { slot, .. }) => self.prepare(node, *slot),
            Action::Observed { .. } => self.shown(node, &action),
            Action::ObserveFailed { slot, .. } => self.observer_failed(node, *slot),
            Action::Left { term, left } => self.left(node, *term, left),
            Action::Proclaimed { ticket, result } => self.proclaimed(node, *ticket, result),
            _ => self.check_lead(node, &action),
        }
        let confirms = matches!(action, Action::Synced { .. } | Action::Confirmed { .. });
        self.note_action(node, action);
        if confirms {
            self.check_ages(node);
        }
    }

    /// Ends the watch stream. The next one goes to the same member of etcd or to another one.
    fn hang_up(&mut self, node: usize, elsewhere: bool) {
        let n = &mut self.nodes[node];
        n.watch_generation += 1;
        n.watches_moved += u64::from(elsewhere);
        n.watching = false;
        self.watchers.retain(|w| w.node != node);
    }

    /// Sends a message on the open watch stream.
    fn on_stream(&mut self, node: usize, arrives: impl FnOnce(&mut World, u64) + 'static) {
        let generation = self.nodes[node].watch_generation;
        let hop = self.hop(node);
        self.in_life(node, hop, move |w| arrives(w, generation));
    }

    fn open_watch(&mut self, node: usize, id: WatchId, key: Key, prefix: bool) {
        let n = &mut self.nodes[node];
        let first = !std::mem::replace(&mut n.watching, true);
        n.watch_generation += u64::from(first);
        let generation = n.watch_generation;
        let opening = [Duration::ZERO, n.link.opening][usize::from(first)];
        let watcher = Watcher {
            node,
            generation,
            id,
            key,
            prefix,
            last: self.now,
        };
        let out = self.hop(node) + opening;
        self.in_life(node, out, move |w| w.request_watch(watcher, first));
    }

    fn note_action(&mut self, node: usize, action: Action) {
        let mutant = self.mutant;
        let now = self.nodes[node].local(self.now);
        self.nodes[node].note_action(action, now, mutant);
    }

    /// Cancels the term's token; its work ends later.
    fn wind_up(&mut self, node: usize, slot: SlotId, term: TermId) {
        if let Some(wait) = self.nodes[node].member.work {
            let at = self.now.after(wait);
            self.schedule(at, node, Ev::Deliver(Event::Joined { slot, term }));
        }
        self.report_work_early(node, slot, term);
    }

    fn begin_term(&mut self, node: usize, action: &Action) {
        let Action::Candidate(CandidateAction::Elected { slot, .. }) = action else {
            return;
        };
        self.speak_late(node, *slot);
        let prefix = Arc::clone(&self.nodes[node].candidates[slot].prefix);
        let prize = self.prize_of(&prefix);
        let Some(token) = self.nodes[node].elected(action, prize) else {
            return;
        };
        let p = &mut self.prizes[prize];
        p.open += 1;
        self.tally.add("terms", 1);
        self.crowded += usize::from(p.open == p.capacity + 1);
        // A delayed driver may report a term whose time has passed: no node ever acts in it.
        let local = self.nodes[node].local(self.now);
        let over = |term: &Term| term.limit() <= local;
        if self.nodes[node].terms.last().is_some_and(over) {
            return;
        }
        let key = self.nodes[node].terms.last().map(|term| &term.key);
        let shared = key.is_some_and(|key| is_shared(key));
        self.tally.add("locks shared", shared.into());
        self.check_election(node, prize, token);
        self.check_version(node, prize, token);
        self.check_clean(node);
        self.begin_work(node, prize, token);
    }

    /// Lets a handle of the candidate's term before this one end that term again. The core ignores it. No story changes,
    /// because the driver's turn takes no time: otherwise the core would look at a later clock.
    fn speak_late(&mut self, node: usize, slot: SlotId) {
        if !self.plan.cost.is_zero() {
            return;
        }
        let n = &mut self.nodes[node];
        let now = n.local(self.now);
        if let Some(former) = n.candidates[&slot].former_term {
            n.core
                .end_by_leader(now, slot, former, LostReason::Resigned);
            n.core.work_joined(now, slot, former, None);
        }
    }

    pub(crate) fn close_term(&mut self, prize: usize) {
        let p = &mut self.prizes[prize];
        p.open -= 1;
        self.crowded -= usize::from(p.open == p.capacity);
    }
}

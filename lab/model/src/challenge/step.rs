//! Applies one step to a state: how etcd serves each request, and what each side concludes from the answer.

use super::rules::Rule;
use super::state::{Anchor, Ask, Condemnation, MOST, Request, Shown, State, Withdrawal};
use super::{Action, Challenges};

impl Challenges {
    /// Returns every step that may be taken.
    pub(crate) fn steps(&self, state: &State, steps: &mut Vec<Action>) {
        steps.push(Action::Tick);
        self.steps_of_the_suspect(state, steps);
        for challenger in 0..self.challengers {
            self.steps_of_a_challenger(state, challenger, steps);
        }
        if state.behind {
            steps.push(Action::NoLongerBehind);
        }
        if state.late_answer {
            steps.push(Action::AnswerAppliedLate);
        }
        if state.late_anchor {
            steps.push(Action::AnchorPutAgain);
        }
    }

    fn steps_of_the_suspect(&self, state: &State, steps: &mut Vec<Action>) {
        for (n, request) in state.requests.iter().enumerate().take(self.requests) {
            match request {
                Request::None if !state.over && state.withdrawal == Withdrawal::None => {
                    steps.push(Action::Read(n));
                    if state.challenges.iter().any(Option::is_some) {
                        steps.push(Action::Answer(n));
                    }
                }
                Request::None => {}
                Request::Read { shown: None, .. } | Request::Answer { shown: None, .. } => {
                    steps.extend([Action::Serve(n), Action::Lose(n)]);
                    let may_be_old =
                        matches!(request, Request::Read { .. }) && !self.obeys(Rule::Linearizable);
                    steps.extend(may_be_old.then_some(Action::ServeStale(n)));
                }
                Request::Read { .. } | Request::Answer { .. } => {
                    steps.extend([Action::Arrive(n), Action::Lose(n)]);
                }
            }
        }
        if !state.over && !state.behind && !state.leads[1] {
            steps.push(Action::Promote);
        }
        steps.extend(match state.withdrawal {
            Withdrawal::None if !state.over && !self.obeys(Rule::AnchorStays) => {
                Some(Action::Withdraw)
            }
            Withdrawal::Sent => Some(Action::ServeWithdrawal),
            Withdrawal::Applied => Some(Action::Withdrawn),
            _ => None,
        });
    }

    fn steps_of_a_challenger(&self, state: &State, c: usize, steps: &mut Vec<Action>) {
        let challenger = &state.challengers[c];
        let mut may = |possible: bool, action: Action| steps.extend(possible.then_some(action));
        let (lives, idle) = (
            challenger.lives,
            challenger.condemnation == Condemnation::None,
        );
        may(lives, Action::Die(c));
        match challenger.ask {
            Ask::None => may(
                lives && idle && challenger.counts.is_none(),
                Action::Challenge(c),
            ),
            Ask::Sent => {
                may(true, Action::ServeChallenge(c));
                may(lives && !challenger.late_ask, Action::GiveUpChallenge(c));
            }
            Ask::Shown(_) => {
                may(lives, Action::Count(c));
                may(true, Action::GiveUpChallenge(c));
            }
        }
        may(challenger.late_ask, Action::ChallengeAppliedLate(c));
        may(lives && challenger.counts.is_some(), Action::Forget(c));
        let due = challenger.counts.is_some_and(|(_, left)| left == 0);
        may(lives && idle && due, Action::Condemn(c));
        match challenger.condemnation {
            Condemnation::Sent(_) => may(true, Action::ServeCondemnation(c)),
            Condemnation::Done => {
                may(lives, Action::Condemned(c));
                may(true, Action::CondemnedUnheard(c));
            }
            Condemnation::None => {}
        }
        may(challenger.revokes, Action::Revoke(c));
        let absent = self.is_gone(state) && state.keys[c];
        may(
            lives && absent && self.obeys(Rule::AbsenceDeletes),
            Action::DeleteByAbsence(c),
        );
    }

    /// Returns the state after that step.
    pub(crate) fn after(&self, state: &State, action: Action) -> State {
        let mut next = state.clone();
        self.apply(&mut next, action);
        next.renumber();
        next
    }

    fn apply(&self, next: &mut State, action: Action) {
        match action {
            Action::Tick => tick(next),
            Action::Read(n) => {
                let (gives, shown) = (self.d, None);
                next.requests[n] = Request::Read { gives, shown };
            }
            Action::Answer(n) => {
                let (gives, shown) = (self.d, None);
                next.requests[n] = Request::Answer { gives, shown };
            }
            Action::Serve(n) => self.serve(next, n),
            Action::ServeStale(n) => show(&mut next.requests[n], Shown::Clean),
            Action::Arrive(n) => self.arrive(next, n),
            Action::Lose(n) => {
                next.late_answer |= matches!(next.requests[n], Request::Answer { shown: None, .. });
                next.requests[n] = Request::None;
            }
            Action::AnswerAppliedLate => {
                next.late_answer = false;
                self.answer(next);
            }
            Action::AnchorPutAgain => {
                next.late_anchor = false;
                if next.anchor == Anchor::None {
                    next.anchor = Anchor::PutAgain;
                }
            }
            Action::NoLongerBehind => next.behind = false,
            Action::Promote => next.leads[1] = true,
            Action::Withdraw => next.withdrawal = Withdrawal::Sent,
            Action::ServeWithdrawal => {
                next.withdrawal = if next.anchor == Anchor::Announced {
                    next.anchor = Anchor::None;
                    Withdrawal::Applied
                } else {
                    give_up(next);
                    Withdrawal::None
                };
            }
            Action::Withdrawn => next.withdrawal = Withdrawal::Done,
            _ => self.challenge(next, action),
        }
    }

    fn serve(&self, next: &mut State, n: usize) {
        let shown = match next.requests[n] {
            Request::Answer { .. } => self.answer(next),
            _ if !self.is_anchored(next) => Shown::Condemned,
            _ if next.challenges.iter().any(Option::is_some) => Shown::Challenged,
            _ => Shown::Clean,
        };
        show(&mut next.requests[n], shown);
    }

    /// Returns true if a read accepts the key in etcd as the suspect's anchor.
    fn is_anchored(&self, state: &State) -> bool {
        match state.anchor {
            Anchor::Announced => true,
            Anchor::PutAgain => !self.obeys(Rule::AnchorRevision),
            Anchor::None => false,
        }
    }

    /// Applies the transaction that deletes all challenges, and returns what it shows.
    fn answer(&self, next: &mut State) -> Shown {
        if next.anchor == Anchor::Announced || !self.obeys(Rule::AnswerCompares) {
            next.challenges = [None; MOST];
            Shown::Clean
        } else {
            Shown::Condemned
        }
    }

    fn arrive(&self, next: &mut State, n: usize) {
        let request = std::mem::replace(&mut next.requests[n], Request::None);
        let (Request::Read { gives, shown } | Request::Answer { gives, shown }) = request else {
            return;
        };
        let gives = if self.obeys(Rule::ReadFromSending) {
            gives
        } else {
            self.d
        };
        match shown {
            Some(Shown::Condemned) => give_up(next),
            Some(Shown::Challenged) if self.obeys(Rule::CleanOnly) => {}
            Some(_) if !next.over => next.belief = next.belief.max(gives),
            _ => {}
        }
    }

    fn challenge(&self, next: &mut State, action: Action) {
        match action {
            Action::Challenge(c) => {
                next.challengers[c].ask = Ask::Sent;
                next.challengers[c].since_sending = self.wait();
            }
            Action::ServeChallenge(c) => {
                let shown = put(next, c);
                next.challengers[c].ask = shown.map_or(Ask::None, Ask::Shown);
            }
            Action::GiveUpChallenge(c) => {
                next.challengers[c].late_ask |= next.challengers[c].ask == Ask::Sent;
                next.challengers[c].ask = Ask::None;
            }
            Action::ChallengeAppliedLate(c) => {
                next.challengers[c].late_ask = false;
                let _ = put(next, c);
            }
            Action::Count(c) => {
                let challenger = &mut next.challengers[c];
                if let Ask::Shown(revision) = challenger.ask {
                    let arrived = self.obeys(Rule::CountFromArrival);
                    let left = if arrived {
                        self.wait()
                    } else {
                        challenger.since_sending
                    };
                    challenger.counts = Some((revision, left));
                }
                challenger.ask = Ask::None;
            }
            Action::Forget(c) => next.challengers[c].counts = None,
            Action::Condemn(c) => {
                let challenger = &mut next.challengers[c];
                if let Some((revision, _)) = challenger.counts.take() {
                    challenger.condemnation = Condemnation::Sent(revision);
                }
                challenger.revokes |= !self.obeys(Rule::RevokeLast);
            }
            Action::ServeCondemnation(c) => self.condemn(next, c),
            Action::Condemned(c) => {
                next.challengers[c].condemnation = Condemnation::None;
                next.challengers[c].revokes = true;
            }
            Action::CondemnedUnheard(c) => next.challengers[c].condemnation = Condemnation::None,
            Action::Revoke(c) => {
                next.challengers[c].revokes = false;
                next.revoke();
            }
            Action::DeleteByAbsence(c) => next.keys[c] = false,
            Action::Die(c) => {
                next.challengers[c].lives = false;
                next.challengers[c].counts = None;
                next.challenges[c] = None;
            }
            _ => {}
        }
    }

    fn condemn(&self, next: &mut State, c: usize) {
        let Condemnation::Sent(revision) = next.challengers[c].condemnation else {
            return;
        };
        let stands = if self.obeys(Rule::CondemnCompares) {
            next.challenges[c] == Some(revision)
        } else {
            next.challenges[c].is_some()
        };
        next.challengers[c].condemnation = if stands && next.anchor == Anchor::Announced {
            next.anchor = Anchor::None;
            next.keys[c] = false;
            next.challenges[c] = None;
            Condemnation::Done
        } else {
            Condemnation::None
        };
    }

    /// Returns true if a challenger considers the announced anchor gone.
    pub(crate) fn is_gone(&self, state: &State) -> bool {
        match state.anchor {
            Anchor::Announced => false,
            Anchor::PutAgain => self.obeys(Rule::AbsenceCompares),
            Anchor::None => true,
        }
    }

    /// Returns how long a challenger waits.
    pub(crate) fn wait(&self) -> u8 {
        self.d - u8::from(!self.obeys(Rule::FullWait))
    }
}

/// Applies a challenge in etcd, and returns the challenge that then exists.
fn put(next: &mut State, c: usize) -> Option<u8> {
    if next.challenges[c].is_some() {
        return next.challenges[c];
    }
    // A challenge is deleted with the lease of a challenger that died.
    let stands = next.anchor == Anchor::Announced && next.keys[c] && next.challengers[c].lives;
    stands.then(|| next.put_challenge(c))
}

fn show(request: &mut Request, what: Shown) {
    if let Request::Read { shown, .. } | Request::Answer { shown, .. } = request {
        *shown = Some(what);
    }
}

fn give_up(next: &mut State) {
    next.over = true;
    next.belief = 0;
    next.leads = [false; 2];
}

fn tick(next: &mut State) {
    next.belief = next.belief.saturating_sub(1);
    for request in &mut next.requests {
        if let Request::Read { gives, .. } | Request::Answer { gives, .. } = request {
            *gives = gives.saturating_sub(1);
        }
    }
    for challenger in &mut next.challengers {
        challenger.since_sending = challenger.since_sending.saturating_sub(1);
        if let Some((_, left)) = &mut challenger.counts {
            *left = left.saturating_sub(1);
        }
    }
}

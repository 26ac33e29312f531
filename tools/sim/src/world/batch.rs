//! Carries the transactions that the core's [`Batcher`](eldest_core::batcher::Batcher) makes of a turn's requests. A
//! transaction is applied at one revision or not at all, and lost as a whole.

use std::time::Duration;

use super::store::failed;
use super::{Ev, Event, Fate, World};
use eldest_core::action::{Answer, Ask, Class};
use eldest_core::batcher::{Asked, Batch};
use eldest_core::time::Time;

/// A transaction of a batch in flight.
#[derive(Debug)]
pub(crate) struct Sending {
    batch: Batch,
    /// The requests of the transaction.
    part: Vec<Asked>,
    /// The time at which the batch was sent.
    begun: Time,
}

/// The duration of the answer to a transaction, and the transaction.
pub(crate) type WayBack = (Duration, Box<Sending>);

impl World {
    /// Sends the collected requests at the end of the turn.
    pub(super) fn flush(&mut self, node: usize) {
        while let Some(batch) = self.nodes[node].batcher.next_batch() {
            self.transmit_next(node, batch, self.now);
        }
    }

    /// Sends the next transaction of a batch, if there is one.
    fn transmit_next(&mut self, node: usize, mut batch: Batch, begun: Time) {
        let Some(mut part) = batch.next_part() else {
            return;
        };
        if part.len() > 1 {
            self.transmit_together(node, Sending { batch, part, begun });
        } else if let Some((request, ask)) = part.pop() {
            let part = vec![(request, ask.clone())];
            let alone = Box::new(Sending { batch, part, begun });
            self.nodes[node].alone.insert(request, alone);
            self.transmit(node, request, ask);
        }
    }

    /// Handles the answer to a transaction of one request that could have shared one.
    pub(super) fn answered_alone(&mut self, node: usize, event: Event) -> Event {
        match event {
            Event::Answer {
                request,
                answer,
                timeout,
                ..
            } if self.nodes[node].alone.contains_key(&request) => Event::Sent {
                sending: self.nodes[node].alone.remove(&request).expect("just found"),
                answers: vec![answer],
                timeout,
            },
            event => event,
        }
    }

    /// Handles the answer to a transaction of a batch. Gives it to the core, unless the batch is sent again in halves.
    pub(super) fn sent(
        &mut self,
        node: usize,
        sending: Sending,
        answers: Vec<Answer>,
    ) -> Option<Event> {
        let Sending {
            mut batch,
            part,
            begun,
        } = sending;
        let failure = match &answers[..] {
            [Answer::Failed(failure), ..] => Some(failure),
            _ => None,
        };
        let answered = batch.answered(part, failure).map(|part| {
            let requests = part.into_iter().map(|(request, _)| request);
            Event::Answers {
                answers: requests.zip(answers).collect(),
                kind: batch.kind(),
                last: batch.outcome(self.now.since(begun)),
            }
        });
        self.transmit_next(node, batch, begun);
        answered
    }

    fn transmit_together(&mut self, node: usize, sending: Sending) {
        let asked = &sending.part;
        let joins = matches!(asked[0].1, Ask::Join { .. });
        self.tally.add("joins in one transaction", joins.into());
        let (now, out, back) = (self.now, self.hop(node), self.hop(node));
        let fate = self.fate_together(node, asked);
        let fate = fate.or_else(|| self.fate_by_link(node, out));
        if let Some(Fate::Refused(class)) = fate {
            let answers = asked.iter().map(|_| failed(class, false)).collect();
            self.answer_together(node, sending, answers, (now, out + back));
            return;
        }
        let refusal = Fate::refusal(fate);
        let (out, back) = Fate::ways(fate, out, back);
        let in_time = out.is_some_and(|out| out <= self.settings.timeout);
        let asked = sending.part.clone();
        let mut way_back = None;
        match back {
            Some(back) if in_time => way_back = Some((back, Box::new(sending))),
            _ => self.time_out_together(node, sending, now),
        }
        if let Some(out) = out {
            let way = (now, way_back, refusal);
            self.arrive_after(node, out, move |w, alive| {
                w.arrive_together(node, alive, &asked, way);
            });
        }
    }

    /// Returns the fate that a rule, or the node's permissions, give to requests that share a transaction. etcd refuses
    /// all of them because of one, which is refused again in every later transaction.
    fn fate_together(&mut self, node: usize, asked: &[Asked]) -> Option<Fate> {
        let blamed = &self.nodes[node].blamed;
        if let Some(class) = asked.iter().find_map(|(request, _)| blamed.get(request)) {
            return Some(Fate::Refused(*class));
        }
        let rule = self.rules.iter_mut().find_map(|rule| {
            let meant = rule.node == node && rule.times > 0;
            let to_blame = asked.iter().find(|(_, ask)| meant && (rule.what)(ask))?;
            rule.times -= 1;
            Some((rule.fate, to_blame.0))
        });
        if let Some((Fate::Refused(class @ (Class::Denied | Class::Invalid)), to_blame)) = rule {
            self.nodes[node].blamed.insert(to_blame, class);
        }
        let forbidden = asked.iter().any(|(_, ask)| self.is_forbidden(node, ask));
        let denied = forbidden.then_some(Fate::Refused(Class::Denied));
        rule.map(|(fate, _)| fate).or(denied)
    }

    /// Applies the requests when they reach etcd.
    pub(super) fn arrive_together(
        &mut self,
        node: usize,
        alive: bool,
        asked: &[Asked],
        (sent, back, refusal): (Time, Option<WayBack>, Option<Class>),
    ) {
        let back = back.filter(|_| alive);
        if self.store.headless.is_some() {
            if let Some((_, sending)) = back {
                self.time_out_together(node, *sending, sent);
            }
            return;
        }
        if asked.iter().any(|(_, ask)| self.is_held(node, alive, ask)) {
            return;
        }
        for (_, ask) in asked {
            self.deleted_blindly(ask);
        }
        let answers = self.store.perform_together(self.now, asked).into_iter();
        let answers = answers.map(|answer| refusal.map_or(answer, |class| failed(class, true)));
        let answers = answers.collect();
        let Some((back, sending)) = back else {
            return;
        };
        let late = self.now.after(back) > sent.after(self.settings.timeout);
        if self.nodes[node].link.answers_lost || late {
            self.time_out_together(node, *sending, sent);
        } else {
            self.answer_together(node, *sending, answers, (self.now, back));
        }
    }

    fn answer_together(
        &mut self,
        node: usize,
        sending: Sending,
        answers: Vec<Answer>,
        (from, back): (Time, Duration),
    ) {
        let event = Event::Sent {
            sending: Box::new(sending),
            answers,
            timeout: false,
        };
        self.schedule(from.after(back), node, Ev::Deliver(event));
    }

    fn time_out_together(&mut self, node: usize, sending: Sending, sent: Time) {
        let joins = matches!(sending.part[0].1, Ask::Join { .. });
        self.tally.add("joins lost together", joins.into());
        let lost = |_: &Asked| failed(Class::Retry, true);
        let answers = sending.part.iter().map(lost).collect();
        let event = Event::Sent {
            sending: Box::new(sending),
            answers,
            timeout: true,
        };
        let at = sent.after(self.settings.timeout).max(self.now);
        self.schedule(at, node, Ev::Deliver(event));
    }
}

impl Fate {
    pub(super) fn refusal(fate: Option<Fate>) -> Option<Class> {
        match fate {
            Some(Fate::RefusedLater(class)) => Some(class),
            _ => None,
        }
    }

    /// Returns how long the request and its answer take, if they arrive at all.
    pub(super) fn ways(
        fate: Option<Fate>,
        out: Duration,
        back: Duration,
    ) -> (Option<Duration>, Option<Duration>) {
        match fate {
            None | Some(Fate::RefusedLater(_) | Fate::Refused(_) | Fate::Twice(_)) => {
                (Some(out), Some(back))
            }
            Some(Fate::RequestLost) => (None, None),
            Some(Fate::AnswerLost) => (Some(out), None),
            Some(Fate::Late(by)) => (Some(by), None),
            Some(Fate::Delayed(by)) => (Some(by), Some(back)),
            Some(Fate::Slow(by)) => (Some(out), Some(by)),
        }
    }
}

//! The network of the world, and etcd at its other end: requests, answers and watch messages, late or lost.

use std::sync::Arc;
use std::time::Duration;

use super::node::{Message, TIMEOUT};
use super::store::failed;
use super::world::{Ev, Event, Fate, Watcher, World};
use crate::core::action::{Answer, Ask, Class, RequestId};
use crate::core::time::Time;

impl World {
    // ---- etcd's side

    pub(super) fn happen(&mut self, node: usize, life: u64, ev: Ev) {
        let alive = self.lives.get(node) == Some(&life);
        match ev {
            Ev::Do(act) => act(self),
            Ev::Arrive {
                request,
                ask,
                stream,
                sent,
                back,
            } => self.arrive(node, alive, request, &ask, stream, (sent, back)),
            Ev::Deliver(event) if alive => self.deliver(node, event),
            Ev::Register {
                generation,
                id,
                ref key,
                prefix,
                first,
            } if alive && generation == self.nodes[node].watch_generation => {
                if self.nodes[node].link.requests_lost {
                    if first {
                        let at = self.now.after(TIMEOUT);
                        let message = Message::Broken;
                        self.schedule(
                            at,
                            node,
                            Ev::Deliver(Event::Watched {
                                generation,
                                message,
                            }),
                        );
                    } else {
                        let at = self.now.after(Duration::from_millis(200));
                        self.schedule(at, node, ev);
                    }
                    return;
                }
                self.watchers.push(Watcher {
                    node,
                    generation,
                    id,
                    key: Arc::clone(key),
                    prefix,
                    last: self.now,
                });
                let revision = self.store.revision;
                self.message(self.watchers.len() - 1, Message::Created { id, revision });
            }
            Ev::Cancel { generation, id } if alive => {
                let one = |w: &Watcher| w.node == node && w.generation == generation && w.id == id;
                if let Some(at) = self.watchers.iter().position(one) {
                    self.message(at, Message::Canceled { id });
                    self.watchers.remove(at);
                }
            }
            Ev::Progress { generation } if alive && !self.nodes[node].link.requests_lost => {
                let of_stream = |w: &Watcher| w.node == node && w.generation == generation;
                let mine = (0..self.watchers.len()).filter(|w| of_stream(&self.watchers[*w]));
                if let Some(slowest) = mine.max_by_key(|w| self.watchers[*w].last) {
                    let revision = self.store.revision;
                    self.message(slowest, Message::Progress { revision });
                }
            }
            _ => {}
        }
    }

    fn arrive(
        &mut self,
        node: usize,
        alive: bool,
        request: RequestId,
        ask: &Ask,
        stream: Option<(u64, Option<i64>)>,
        (sent, back): (Time, Option<Duration>),
    ) {
        let lease = stream.and_then(|(_, lease)| lease);
        let stale = self.nodes[node].link.stale.filter(|_| alive);
        let answer = match (ask, stale) {
            (Ask::Open { .. }, Some(_)) => Answer::Opened,
            (Ask::Renew, Some(term)) => {
                let mut header = self.store.header();
                header.term = term;
                Answer::Renewed {
                    ttl: super::node::TTL,
                    header,
                }
            }
            _ => self.store.perform(self.now, ask, lease),
        };
        if let Some(back) = back.filter(|_| alive) {
            self.answer(node, request, answer, stream, sent, back);
        }
    }

    fn answer(
        &mut self,
        node: usize,
        request: RequestId,
        answer: Answer,
        stream: Option<(u64, Option<i64>)>,
        sent: Time,
        back: Duration,
    ) {
        let lost = self.nodes[node].link.answers_lost || self.now.after(back) > sent.after(TIMEOUT);
        let (at, answer) = if lost {
            (sent.after(TIMEOUT), failed(Class::Retry, true))
        } else {
            (self.now.after(back), answer)
        };
        // A stream that failed is of no use any more.
        let stream = stream.map(|(g, l)| (g, l.filter(|_| !matches!(answer, Answer::Failed(_)))));
        let event = Event::Answer {
            request,
            answer,
            stream,
        };
        self.schedule(at, node, Ev::Deliver(event));
    }

    /// Sends a message of one watch: in order with the others of that watch, in no order with those of others.
    fn message(&mut self, watcher: usize, message: Message) {
        let hop = self.hop();
        let watcher = &mut self.watchers[watcher];
        watcher.last = watcher.last.max(self.now.after(hop));
        let (at, node, generation) = (watcher.last, watcher.node, watcher.generation);
        self.schedule(
            at,
            node,
            Ev::Deliver(Event::Watched {
                generation,
                message,
            }),
        );
    }

    pub(super) fn publish(&mut self) {
        let news = std::mem::take(&mut self.store.news);
        if news.is_empty() {
            return;
        }
        for at in 0..self.watchers.len() {
            let w = &self.watchers[at];
            let matches = |key: &[u8]| {
                if w.prefix {
                    key.starts_with(&w.key)
                } else {
                    *key == *w.key
                }
            };
            let changes: Vec<_> = news.iter().filter(|c| matches(c.key())).cloned().collect();
            if !changes.is_empty() {
                let id = w.id;
                self.message(at, Message::Events { id, changes });
            }
        }
    }

    /// etcd cancels every watch of a node, or the node's stream breaks.
    pub(super) fn disturb_watches(&mut self, node: usize, broken: bool) {
        let mine = (0..self.watchers.len()).filter(|w| self.watchers[*w].node == node);
        if let Some(at) = mine.max() {
            let id = self.watchers[at].id;
            let message = if broken {
                Message::Broken
            } else {
                Message::Canceled { id }
            };
            self.message(at, message);
        }
    }

    pub(super) fn send(&mut self, node: usize, request: RequestId, ask: Ask) {
        self.check_release(node, &ask);
        self.asked.push((self.now, node, ask.clone()));
        let (now, n) = (self.now, &mut self.nodes[node]);
        let stream = match ask {
            Ask::Open { lease } => {
                n.generation += 1;
                n.stream = None;
                Some((n.generation, Some(lease)))
            }
            Ask::Renew => match n.stream.take() {
                None => {
                    let answer = failed(Class::Retry, false);
                    let stream = None;
                    let event = Event::Answer {
                        request,
                        answer,
                        stream,
                    };
                    self.schedule(now, node, Ev::Deliver(event));
                    return;
                }
                lease => Some((n.generation, lease)),
            },
            _ => None,
        };
        let (out, back) = (self.hop(), self.hop());
        let link = self.nodes[node].link.clone();
        let rule = self
            .rules
            .iter_mut()
            .find(|r| r.node == node && r.times > 0 && (r.what)(&ask));
        let fate = match rule {
            Some(rule) => {
                rule.times -= 1;
                Some(rule.fate)
            }
            None if link.requests_lost => Some(Fate::RequestLost),
            None => link.late.map(|most| {
                Fate::Late(Duration::from_micros(
                    self.rng.below(most.as_micros() as u64),
                ))
            }),
        };
        let (out, back) = match fate {
            None => (Some(out), Some(back)),
            Some(Fate::RequestLost) => (None, None),
            Some(Fate::AnswerLost) => (Some(out), None),
            Some(Fate::Late(by)) => (Some(by), None),
            Some(Fate::Slow(by)) => (Some(out), Some(by)),
            Some(Fate::Refused(class)) => {
                self.answer(node, request, failed(class, false), stream, now, out + back);
                return;
            }
        };
        let in_time = out.is_some_and(|out| out <= TIMEOUT);
        if back.is_none() || !in_time {
            self.answer(
                node,
                request,
                failed(Class::Retry, true),
                stream,
                now,
                TIMEOUT,
            );
        }
        if let Some(out) = out {
            let back = back.filter(|_| in_time);
            let arrive = Ev::Arrive {
                request,
                ask,
                stream,
                sent: now,
                back,
            };
            self.schedule(now.after(out), node, arrive);
        }
    }
}

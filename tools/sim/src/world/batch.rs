//! Sends what a driver asks for in one turn in one transaction, as `driver/batch.rs` does: the joins of one session in
//! several elections, or deletes. All of a transaction is done at one revision or not at all, and lost together.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::store::{Store, Write, failed};
use super::{Ev, Event, Fate, World};
use eldest_core::action::{Answer, Ask, Class, Join, Joined, RequestId};
use eldest_core::time::Time;

/// A request, and its number.
pub(crate) type Asked = (RequestId, Ask);

/// What one node's driver keeps until the end of its turn.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    joins: Vec<Asked>,
    deletes: Vec<Asked>,
}

impl Kept {
    /// Keeps what may share a transaction; hands back what may not.
    pub(super) fn keep(&mut self, request: RequestId, ask: Ask) -> Option<Ask> {
        let line = match &ask {
            // Conditions are looked at before anything is put: two of these could each miss the other's key.
            Ask::Join(Join { admission, .. }) if admission.nothing_else_in.is_none() => {
                &mut self.joins
            }
            Ask::Delete { .. } => &mut self.deletes,
            _ => return Some(ask),
        };
        line.push((request, ask));
        None
    }

    /// The next that go together: joins of different elections under one lease, or deletes.
    fn next(&mut self) -> Option<Vec<Asked>> {
        if self.joins.is_empty() {
            let deletes = std::mem::take(&mut self.deletes);
            return (!deletes.is_empty()).then_some(deletes);
        }
        let mut prefixes = BTreeSet::new();
        let mut first = None;
        let mut alike = 0;
        for (_, ask) in &self.joins {
            let Ask::Join(Join { lease, prefix, .. }) = ask else {
                break;
            };
            if *first.get_or_insert(*lease) != *lease || !prefixes.insert(Arc::clone(prefix)) {
                break;
            }
            alike += 1;
        }
        Some(self.joins.drain(..alike).collect())
    }
}

impl Store {
    /// Does all of it at one revision. The conditions are looked at before anything is put; without the lease nothing is.
    fn perform_together(&mut self, asks: &[Asked]) -> Vec<Answer> {
        let mut writes = Vec::new();
        let mut created = Vec::new();
        for (_, ask) in asks {
            let put = match ask {
                Ask::Join(Join {
                    key,
                    value,
                    lease,
                    prefix,
                    admission,
                }) if self.admits(key, prefix, admission) => {
                    if !self.leases.contains_key(lease) {
                        let gone = |_| failed(Class::LeaseGone, false);
                        return asks.iter().map(gone).collect();
                    }
                    let (key, value, lease) = (Arc::clone(key), Arc::clone(value), *lease);
                    writes.push(Write::Put { key, value, lease });
                    true
                }
                Ask::Delete {
                    key,
                    create_revision,
                } if self.holds(key, *create_revision) => {
                    let key = Arc::clone(key);
                    writes.push(Write::Delete { key });
                    false
                }
                _ => false,
            };
            created.push(put);
        }
        self.write(writes);
        let answers = asks.iter().zip(created);
        let answers = answers.map(|((_, ask), created)| match ask {
            Ask::Join(Join { prefix, .. }) => Answer::Joined(Joined {
                header: self.header(),
                created,
                entries: self.children(prefix),
                other: None,
            }),
            _ => Answer::Deleted {
                header: self.header(),
            },
        });
        answers.collect()
    }
}

impl World {
    /// The turn is over: what was kept is sent.
    pub(super) fn flush(&mut self, node: usize) {
        while let Some(asked) = self.nodes[node].kept.next() {
            self.transmit_together(node, asked);
        }
    }

    fn transmit_together(&mut self, node: usize, mut asked: Vec<Asked>) {
        if asked.len() < 2 {
            for (request, ask) in asked {
                self.transmit(node, request, ask);
            }
            return;
        }
        let joins = matches!(asked[0].1, Ask::Join { .. });
        self.happened.together += u64::from(joins);
        let (now, out, back) = (self.now, self.hop(node), self.hop(node));
        let asks = asked.iter().map(|(_, ask)| ask);
        let rule = self.rules.iter_mut().find_map(|rule| {
            let meant = rule.node == node && rule.times > 0;
            let to_blame = asks.clone().position(|ask| meant && (rule.what)(ask))?;
            rule.times -= 1;
            Some((rule.fate, to_blame))
        });
        let forbidden = self.is_forbidden(node, &asked[0].1);
        let rule = rule.or(forbidden.then_some((Fate::Refused(Class::Denied), 0)));
        let fate = rule.map(|(fate, _)| fate);
        let fate = fate.or_else(|| self.fate_by_link(node, out));
        if let (Some(Fate::Refused(class)), Some((_, to_blame))) = (fate, rule) {
            let all = matches!(class, Class::Denied | Class::Invalid);
            let refused = if all {
                // etcd did none of it, and the others are asked for again without the one to blame.
                let life = self.lives[node];
                let refused = asked.remove(to_blame);
                self.after(out + back, move |w| {
                    if w.lives[node] == life {
                        w.transmit_together(node, asked);
                    }
                });
                vec![refused]
            } else {
                asked
            };
            let answers = refused.iter().map(|(r, _)| (*r, failed(class, false)));
            self.answer_together(node, answers.collect(), (now, out + back));
            return;
        }
        let refusal = Fate::refusal(fate);
        let (out, back) = Fate::ways(fate, out, back);
        let in_time = out.is_some_and(|out| out <= self.settings.timeout);
        if back.is_none() || !in_time {
            self.time_out_together(node, &asked, now);
        }
        if let Some(out) = out {
            let back = back.filter(|_| in_time);
            let arrive = Ev::ArriveTogether {
                asked,
                sent: now,
                back,
                refusal,
            };
            self.schedule(now.after(out), node, arrive);
        }
    }

    /// They reach etcd.
    pub(super) fn arrive_together(
        &mut self,
        node: usize,
        alive: bool,
        asked: &[Asked],
        (sent, back, refusal): (Time, Option<Duration>, Option<Class>),
    ) {
        if self.store.headless.is_some() {
            if back.is_some() && alive {
                self.time_out_together(node, asked, sent);
            }
            return;
        }
        if asked.iter().any(|(_, ask)| self.is_held(node, alive, ask)) {
            return;
        }
        for (_, ask) in asked {
            self.deleted_blindly(ask);
        }
        let answers = self.store.perform_together(asked);
        let answers = asked.iter().zip(answers).map(|((request, _), answer)| {
            let answer = refusal.map_or(answer, |class| failed(class, true));
            (*request, answer)
        });
        let answers = answers.collect();
        let Some(back) = back.filter(|_| alive) else {
            return;
        };
        let late = self.now.after(back) > sent.after(self.settings.timeout);
        if self.nodes[node].link.answers_lost || late {
            self.time_out_together(node, asked, sent);
        } else {
            self.answer_together(node, answers, (self.now, back));
        }
    }

    fn answer_together(
        &mut self,
        node: usize,
        answers: Vec<(RequestId, Answer)>,
        (from, back): (Time, Duration),
    ) {
        let event = Event::Answers {
            answers,
            timeout: false,
        };
        self.schedule(from.after(back), node, Ev::Deliver(event));
    }

    fn time_out_together(&mut self, node: usize, asked: &[Asked], sent: Time) {
        let joins = matches!(asked[0].1, Ask::Join { .. });
        self.happened.lost_together += u64::from(joins);
        let answers = asked.iter().map(|(r, _)| (*r, failed(Class::Retry, true)));
        let event = Event::Answers {
            answers: answers.collect(),
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

    /// How long the request and its answer are under way, where they arrive at all.
    pub(super) fn ways(
        fate: Option<Fate>,
        out: Duration,
        back: Duration,
    ) -> (Option<Duration>, Option<Duration>) {
        match fate {
            None | Some(Fate::RefusedLater(_) | Fate::Refused(_)) => (Some(out), Some(back)),
            Some(Fate::RequestLost) => (None, None),
            Some(Fate::AnswerLost) => (Some(out), None),
            Some(Fate::Late(by)) => (Some(by), None),
            Some(Fate::Delayed(by)) => (Some(by), Some(back)),
            Some(Fate::Slow(by)) => (Some(out), Some(by)),
        }
    }
}

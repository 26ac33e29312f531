//! Simulates the network and etcd at its other end: requests, answers and watch messages arrive late, twice, in any
//! order or never.

use std::time::Duration;

use super::cluster::ELECTIONS;
use super::message::Message;
use super::store::{ELECTION, Key, denied, failed};
use super::versions::{CLAIMS, is_claim};
use super::{Ev, Event, Fate, Forbidden, NOBODY, Rule, Watcher, World};
use eldest_core::action::{Answer, Ask, Class, RequestId, WatchId};
use eldest_core::time::Time;

impl World {
    // ---- etcd's side

    pub(crate) fn happen(&mut self, node: usize, life: u64, ev: Ev) {
        let alive = self.lives.get(node) == Some(&life);
        let busy_until = self.store.limits.busy_until();
        match ev {
            // A request waits until etcd has ended a lease.
            Ev::Arrive(_) if self.now < busy_until => {
                let what = "requests that waited for the end of a lease";
                self.tally.add(what, 1);
                self.plan_at(busy_until, (node, life, ev));
            }
            Ev::Arrive(act) => act(self, alive),
            Ev::Deliver(event) if alive => self.deliver(node, event),
            Ev::Do(act) if alive || node == NOBODY => act(self),
            _ => {}
        }
    }

    /// Lets etcd report the progress of the node's stream, which is that of its slowest watch.
    pub(super) fn progress(&mut self, node: usize, generation: u64) {
        if self.nodes[node].link.requests_lost {
            return;
        }
        let of_stream = |w: &Watcher| w.node == node && w.generation == generation;
        let mine = (0..self.watchers.len()).filter(|w| of_stream(&self.watchers[*w]));
        if let Some(slowest) = mine.max_by_key(|w| self.watchers[*w].last) {
            let header = self.store.header();
            self.message(slowest, Message::Progress { header });
        }
    }

    /// Lets etcd cancel one watch of the node's stream.
    pub(super) fn cancel_watch(&mut self, node: usize, generation: u64, id: WatchId) {
        let one = |w: &Watcher| w.node == node && w.generation == generation && w.id == id;
        if let Some(at) = self.watchers.iter().position(one) {
            self.message(at, Message::Canceled { id });
            self.watchers.remove(at);
        }
    }

    /// Lets the request of a watch arrive at etcd. If it is lost, the stream breaks with its first watch, and a later watch is
    /// requested again.
    pub(super) fn request_watch(&mut self, watcher: Watcher, first: bool) {
        let (node, generation) = (watcher.node, watcher.generation);
        let n = &self.nodes[node];
        if generation != n.watch_generation {
            return;
        }
        if !n.link.requests_lost {
            self.register(watcher);
        } else if first {
            let at = self.now.after(self.settings.timeout);
            self.message_at(at, node, generation, Message::Broken);
        } else {
            let pause = Duration::from_millis(200);
            self.in_life(node, pause, move |w| w.request_watch(watcher, first));
        }
    }

    /// Lets etcd open a watch, or refuse it.
    fn register(&mut self, mut watcher: Watcher) {
        watcher.last = self.now;
        let (node, id) = (watcher.node, watcher.id);
        let covers = |f: &Forbidden| f.node == node && watcher.key.starts_with(&f.prefix);
        let forbidden = self.forbidden.iter().any(covers);
        self.watchers.push(watcher);
        if forbidden {
            self.message(self.watchers.len() - 1, Message::Refused { id });
            self.watchers.pop();
        } else {
            self.begin_watch(self.watchers.len() - 1, id);
        }
    }

    fn arrive(
        &mut self,
        node: usize,
        alive: bool,
        request: RequestId,
        ask: &Ask,
        stream: Option<(u64, Option<i64>)>,
        (sent, back, refusal): (Time, Option<Duration>, Option<Class>),
    ) {
        let lease = match ask {
            Ask::Grant { .. } => Some(self.draw_lease(node)),
            _ => stream.and_then(|(_, lease)| lease),
        };
        let stale = self.nodes[node].link.stale.filter(|_| alive);
        let earlier = self.answered_by_proxy(node, ask, lease);
        let earlier = earlier.or_else(|| self.read_late(node, ask));
        // A leader that has lost its followers acknowledges until it notices.
        let acknowledges = |since: Time| *ask == Ask::Renew && self.now.since(since) < ELECTION;
        let answer = match (ask, stale) {
            _ if earlier.is_some() => earlier.unwrap_or(Answer::Opened),
            (Ask::Open { .. }, Some(_)) => Answer::Opened,
            (Ask::Renew, Some(term)) => {
                let mut header = self.store.header();
                header.term = term;
                Answer::Renewed {
                    ttl: self.settings.ttl,
                    header,
                }
            }
            _ if self
                .store
                .headless
                .is_some_and(|since| !acknowledges(since)) =>
            {
                if back.is_some() && alive {
                    self.time_out(node, request, stream, sent, true);
                }
                return;
            }
            _ if self.is_held(node, alive, ask) => return,
            (Ask::Sweep { lease }, _) if self.plan.pages && refusal.is_none() => {
                self.sweep_in_pages(node, request, *lease, (sent, back.filter(|_| alive)));
                return;
            }
            (Ask::Probe { key } | Ask::List { prefix: key, .. }, _)
                if self.unreadable(node, key) =>
            {
                Answer::Failed(denied())
            }
            _ if self.deleted_blindly(ask) => Answer::Deleted {
                header: self.store.header(),
            },
            _ => self.perform(node, ask, lease),
        };
        if alive {
            self.note_clean(node, ask, sent);
        }
        let answer = refusal.map_or(answer, |class| failed(class, true));
        let answer = match answer {
            Answer::Renewed { ttl, mut header } if self.nodes[node].link.odd_term => {
                // The term belongs to no election of etcd, now or later.
                header.term += 1 << 32;
                Answer::Renewed { ttl, header }
            }
            answer => answer,
        };
        if let Some(back) = back.filter(|_| alive) {
            self.answer(node, request, answer, stream, sent, back);
        }
    }

    /// Returns true if the request is about keys, and the node has no permission for them.
    pub(super) fn is_forbidden(&self, node: usize, ask: &Ask) -> bool {
        let link = &self.nodes[node].link;
        match ask {
            Ask::Grant { .. } => false,
            Ask::Open { .. } | Ask::Renew => link.renewals_denied,
            _ if self.may_not_save(node, ask) => true,
            _ if is_claim(ask) && self.unreadable(node, CLAIMS) => true,
            _ => link.not_permitted || (link.sessions_denied && self.is_about_sessions(ask)),
        }
    }

    fn unreadable(&self, node: usize, key: &[u8]) -> bool {
        let unreadable = |f: &Forbidden| f.node == node && !f.readable && *f.prefix == *key;
        self.forbidden.iter().any(unreadable)
    }

    /// Returns the id of a lease that a node requests. An own one is drawn in any case, so that other stories do not
    /// change.
    fn draw_lease(&mut self, node: usize) -> i64 {
        self.nodes[node].draw_lease();
        if self.nodes[node].link.same_ids
            && let Some(taken) = self.store.leases().keys().next()
        {
            self.nodes[node].drawn.1 = *taken;
        }
        self.nodes[node].drawn.1
    }

    /// Reads the keys of a lease in pages without a common revision: the second is read when the first has arrived.
    fn sweep_in_pages(
        &mut self,
        node: usize,
        request: RequestId,
        lease: i64,
        (sent, back): (Time, Option<Duration>),
    ) {
        let Some(back) = back else {
            return;
        };
        let on_first = |key: &Key| key.as_ref() < ELECTIONS[1];
        let mut keys = self.store.keys_of(lease);
        keys.retain(on_first);
        let between = back + self.hop(node);
        self.in_life(node, between, move |w| {
            if w.store.headless.is_some() || w.nodes[node].link.requests_lost {
                w.time_out(node, request, None, sent, true);
                return;
            }
            let rest = w.store.keys_of(lease).into_iter();
            keys.extend(rest.filter(|key| !on_first(key)));
            w.tally.add("reads in pages", 1);
            w.answer(node, request, Answer::Swept { keys }, None, sent, back);
        });
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
        // The end of a lease is answered when it is over.
        let back = back + self.store.limits.busy_until().since(self.now);
        let timeout = self.settings.timeout;
        let late = self.now.after(back) > sent.after(timeout);
        if self.nodes[node].link.answers_lost || late {
            self.time_out(node, request, stream, sent, true);
            return;
        }
        let at = self.now.after(back);
        // A stream that failed is not used any more.
        let stream = stream.map(|(g, l)| (g, l.filter(|_| !matches!(answer, Answer::Failed(_)))));
        if self.nodes[node].link.twice {
            let later = at.after(self.hop(node));
            self.answer_at(later, node, request, answer.clone(), None);
        }
        self.answer_at(at, node, request, answer, stream);
    }

    fn answer_at(
        &mut self,
        at: Time,
        node: usize,
        request: RequestId,
        answer: Answer,
        stream: Option<(u64, Option<i64>)>,
    ) {
        let event = Event::Answer {
            request,
            answer,
            stream,
            timeout: false,
        };
        self.schedule(at, node, Ev::Deliver(event));
    }

    /// Ends a request that was sent then, without an answer.
    fn time_out(
        &mut self,
        node: usize,
        request: RequestId,
        stream: Option<(u64, Option<i64>)>,
        sent: Time,
        ambiguous: bool,
    ) {
        let event = Event::Answer {
            request,
            answer: failed(Class::Retry, ambiguous),
            stream: stream.map(|(generation, _)| (generation, None)),
            timeout: true,
        };
        let at = sent.after(self.settings.timeout).max(self.now);
        self.schedule(at, node, Ev::Deliver(event));
    }

    /// Begins a watch at its member's revision; it reports all later changes.
    fn begin_watch(&mut self, watcher: usize, id: WatchId) {
        let node = self.watchers[watcher].node;
        let past = self.store.past(self.plan.lag);
        let behind = if self.plan.drawn {
            self.nodes[node].draws.usize(..=past.len())
        } else {
            past.len()
        };
        let mut header = self.store.header();
        let mut missed = Vec::new();
        if let Some(first) = behind.checked_sub(1) {
            header.revision = past[first] - 1;
            let watcher = &self.watchers[watcher];
            let later = self.store.published_after(header.revision);
            missed.extend(later.filter(|change| watcher.sees(change.key())));
        }
        self.message(watcher, Message::Created { id, header });
        if !missed.is_empty() {
            let (term, changes) = (header.term, missed);
            self.message(watcher, Message::Events { id, term, changes });
        }
    }

    /// Sends a message of one watch: in order with the others of that watch, in no order with those of others.
    fn message(&mut self, watcher: usize, message: Message) {
        let hop = self.hop(self.watchers[watcher].node);
        let watcher = &mut self.watchers[watcher];
        watcher.last = watcher.last.max(self.now.after(hop));
        let (at, node, generation) = (watcher.last, watcher.node, watcher.generation);
        self.message_at(at, node, generation, message);
    }

    fn message_at(&mut self, at: Time, node: usize, generation: u64, message: Message) {
        let n = &mut self.nodes[node];
        n.messages.sent += 1;
        let number = n.messages.sent;
        self.schedule(
            at,
            node,
            Ev::Deliver(Event::Watched {
                generation,
                number,
                message,
            }),
        );
    }

    pub(crate) fn publish(&mut self) {
        let news = self.store.publish();
        if news.is_empty() {
            return;
        }
        for change in &news {
            self.says_change(change);
        }
        self.record_past(&news);
        for at in 0..self.watchers.len() {
            let w = &self.watchers[at];
            let changes: Vec<_> = news.iter().filter(|c| w.sees(c.key())).cloned().collect();
            if !changes.is_empty() {
                let (id, term) = (w.id, self.store.term);
                self.message(at, Message::Events { id, term, changes });
            }
        }
    }

    /// Makes etcd cancel every watch of a node, or breaks the node's stream.
    pub(crate) fn disturb_watches(&mut self, node: usize, broken: bool) {
        for at in 0..self.watchers.len() {
            if self.watchers[at].node == node {
                let id = self.watchers[at].id;
                let message = if broken {
                    Message::Broken
                } else {
                    Message::Canceled { id }
                };
                self.message(at, message);
            }
        }
        self.watchers.retain(|w| w.node != node);
    }

    /// Makes a node's watches fall so far behind that their events are compacted: none of them arrives, then etcd
    /// cancels the watches.
    pub(crate) fn compact(&mut self, node: usize) {
        let n = &mut self.nodes[node];
        n.messages.lost_below = n.messages.sent + 1;
        self.disturb_watches(node, false);
    }

    pub(crate) fn send(&mut self, node: usize, request: RequestId, ask: Ask) {
        self.check_release(node, &ask);
        self.check_announcement(node, &ask);
        self.check_revocation(node, &ask);
        self.check_pace(node, &ask);
        self.says_ask(node, request, &ask);
        if self.recording {
            self.asked.push((self.now, node, ask.clone()));
        }
        if matches!(ask, Ask::List { .. } | Ask::Older { .. }) {
            self.tally.add("lists", 1);
        }
        self.remember(node, request, &ask);
        if self.plan.together {
            if let Some((request, ask)) = self.nodes[node].batcher.keep((request, ask)) {
                self.transmit(node, request, ask);
            }
        } else {
            self.transmit(node, request, ask);
        }
    }

    /// Sends one request.
    pub(super) fn transmit(&mut self, node: usize, request: RequestId, ask: Ask) {
        let (now, n) = (self.now, &mut self.nodes[node]);
        if !self.plan.cost.is_zero() {
            n.inbox.asked(request, &ask);
        }
        let stream = match ask {
            Ask::Open { lease } => {
                n.generation += 1;
                n.stream = None;
                Some((n.generation, Some(lease)))
            }
            Ask::Renew => match n.stream.take() {
                None => {
                    self.answer_at(now, node, request, failed(Class::Retry, false), None);
                    return;
                }
                lease => Some((n.generation, lease)),
            },
            _ => None,
        };
        let (out, back) = (self.hop(node), self.hop(node));
        let blamed = self.nodes[node].blamed.remove(&request);
        let fate = blamed.map(Fate::Refused);
        let fate = fate.or_else(|| self.fate(node, &ask, out));
        if let Some(Fate::Refused(class)) = fate {
            self.answer(node, request, failed(class, false), stream, now, out + back);
            return;
        }
        let refusal = Fate::refusal(fate);
        let (out, back) = Fate::ways(fate, out, back);
        let in_time = out.is_some_and(|out| out <= self.settings.timeout);
        if back.is_none() || !in_time {
            self.time_out(node, request, stream, now, true);
        }
        self.stop_at(node, &ask);
        self.arrive_again(node, request, &ask, fate);
        if let Some(out) = out {
            let way = (now, back.filter(|_| in_time), refusal);
            self.arrive_after(node, out, move |w, alive| {
                w.arrive(node, alive, request, &ask, stream, way);
            });
        }
    }

    /// Lets a request that is sent now arrive later, too, if that is its fate. Nobody awaits a second answer.
    fn arrive_again(&mut self, node: usize, request: RequestId, ask: &Ask, fate: Option<Fate>) {
        if let Some(Fate::Twice(by)) = fate {
            let (ask, way) = (ask.clone(), (self.now, None, None));
            self.arrive_after(node, by, move |w, alive| {
                w.arrive(node, alive, request, &ask, None, way);
            });
        }
    }

    /// Lets a request of the node arrive at etcd later; `act` learns whether its process lives then.
    pub(super) fn arrive_after(
        &mut self,
        node: usize,
        out: Duration,
        act: impl FnOnce(&mut World, bool) + 'static,
    ) {
        self.schedule(self.now.after(out), node, Ev::Arrive(Box::new(act)));
    }

    /// Returns the fate of a request by the rules, by the node's permissions and by its way to etcd.
    fn fate(&mut self, node: usize, ask: &Ask, out: Duration) -> Option<Fate> {
        let meets = |r: &&mut Rule| r.node == node && r.times > 0 && (r.what)(ask);
        if let Some(rule) = self.rules.iter_mut().find(meets) {
            rule.times -= 1;
            return Some(rule.fate);
        }
        if self.is_forbidden(node, ask) {
            return Some(Fate::Refused(Class::Denied));
        }
        self.fate_by_link(node, out)
    }

    /// Returns the fate that the link to etcd gives to a request that takes so long to arrive.
    pub(super) fn fate_by_link(&mut self, node: usize, out: Duration) -> Option<Fate> {
        let link = &self.nodes[node].link;
        let (requests_lost, late, slow) = (link.requests_lost, link.late, link.slow);
        if requests_lost {
            return Some(Fate::RequestLost);
        }
        if slow {
            let most = self.settings.timeout.saturating_sub(out).as_micros() as u64;
            return Some(Fate::Slow(self.lasts(node, most / 2..most.max(1))));
        }
        late.map(|most| {
            let micros = (most.as_micros() as u64).max(1);
            Fate::Delayed(self.lasts(node, 0..micros))
        })
    }
}

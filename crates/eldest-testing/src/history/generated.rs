//! Tests that random valid histories are never reported, and that one corruption of such a history always is.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

const TTL: u64 = 2000;
const LAG: u64 = 500;

/// The ways in which a term ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Released,
    Killed,
    StoppedBeyondTtl,
    CutOff,
    RevokedEarly,
    DeletedByOperator,
}

/// The events of a term's first second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Early {
    None,
    ShortStop,
    EtcdDown,
}

#[derive(Debug, Clone)]
struct Plan {
    end: End,
    early: Early,
    /// The length of the term in milliseconds.
    length: u64,
    every: u64,
    /// For each write: whether the answer is lost, and if so, whether the write was admitted.
    writes: Vec<(bool, bool)>,
    /// The watcher's delay, in milliseconds.
    late: u64,
}

fn plan() -> impl Strategy<Value = Plan> {
    let end = prop_oneof![
        Just(End::Released),
        Just(End::Killed),
        Just(End::StoppedBeyondTtl),
        Just(End::CutOff),
        Just(End::RevokedEarly),
        Just(End::DeletedByOperator),
    ];
    let early = prop_oneof![
        Just(Early::None),
        Just(Early::ShortStop),
        Just(Early::EtcdDown)
    ];
    let writes = prop::collection::vec(any::<(bool, bool)>(), 0..5);
    (
        end,
        early,
        12_000..25_000_u64,
        50..700_u64,
        writes,
        0..50_u64,
    )
        .prop_map(|(end, early, length, every, writes, late)| Plan {
            end,
            early,
            length,
            every,
            writes,
            late,
        })
}

fn plans() -> impl Strategy<Value = Vec<Plan>> {
    prop::collection::vec(plan(), 2..8)
}

/// The parts of a term that a corruption changes.
#[derive(Debug, Clone, Copy)]
struct Term {
    node: usize,
    token: i64,
    from: u64,
    /// The last instant at which an overlap with this term has no excuse.
    blame_until: u64,
}

#[derive(Debug, Clone)]
struct Valid {
    events: Vec<Event>,
    terms: Vec<Term>,
    early: usize,
    stopped: usize,
}

/// A small model of an election with three nodes, which writes the events.
struct Model {
    events: Vec<Event>,
    queue: VecDeque<(usize, i64)>,
    revision: i64,
    counter: u64,
    late: u64,
}

impl Model {
    fn on(&mut self, at: u64, node: &str, what: What) {
        self.events.push(Event {
            at: Duration::from_millis(at),
            node: node.to_owned(),
            election: "jobs".to_owned(),
            what,
        });
    }

    fn node(&mut self, at: u64, node: usize, what: What) {
        self.on(at, &format!("n{node}"), what);
    }

    fn truth(&mut self, at: u64, change: Change) {
        let revision = self.revision;
        self.on(at + self.late, "etcd", What::Truth { revision, change });
    }

    fn join(&mut self, at: u64, node: usize) {
        self.revision += 1;
        let create_revision = self.revision;
        let key = format!("eldest/jobs/{create_revision}");
        self.truth(
            at,
            Change::Created {
                key: key.clone(),
                create_revision,
                lease: create_revision,
            },
        );
        self.node(
            at + 1,
            node,
            What::Joined {
                key,
                create_revision,
            },
        );
        self.queue.push_back((node, create_revision));
    }

    fn delete(&mut self, at: u64) {
        self.revision += 1;
        if let Some((_, create_revision)) = self.queue.pop_front() {
            self.truth(
                at,
                Change::Deleted {
                    key: format!("eldest/jobs/{create_revision}"),
                    create_revision,
                },
            );
        }
    }

    /// Plays one term from `from` on and returns when the next may begin.
    fn term(&mut self, from: u64, plan: &Plan, last: bool) -> (Term, u64) {
        let (node, token) = self.queue[0];
        let to = from + plan.length;
        self.late = plan.late;
        self.leads(from..to, plan, (node, token));
        let end = if last { End::Released } else { plan.end };
        let (next, blame_until) = match end {
            End::RevokedEarly => {
                let left = Some(Duration::from_secs(1));
                self.truth(to - 100 - self.late, Change::Lease { lease: token, left });
                self.delete(to);
                let gone = Change::Lease {
                    lease: token,
                    left: None,
                };
                self.truth(to + 5, gone);
                self.stays_valid(to + 400, node, token, last);
                (to, to.saturating_sub(LAG))
            }
            End::DeletedByOperator => {
                let create_revision = token;
                self.on(to, "operator", What::DeletedByOther { create_revision });
                self.delete(to);
                self.stays_valid(to + 300, node, token, last);
                (to, to.saturating_sub(LAG))
            }
            by_itself => (self.ends(to, by_itself, (node, token), last), to - 1),
        };
        if !last {
            // The old leader tries once more to write.
            let outcome = Outcome::Refused;
            self.node(to + 5000, node, What::FencedWrite { token, outcome });
        }
        let term = Term {
            node,
            token,
            from,
            blame_until,
        };
        (term, next + 1)
    }

    /// Plays a term until its end: the early events, its samples and its writes.
    fn leads(&mut self, term: Range<u64>, plan: &Plan, (node, token): (usize, i64)) {
        let from = term.start;
        self.node(from, node, What::Elected { token });
        self.node(from, node, What::Guarded { token });
        let stop = match plan.early {
            Early::None => from..from,
            Early::ShortStop => {
                self.node(from + 100, node, What::Paused);
                self.node(from + 900, node, What::Resumed);
                from + 100..from + 900
            }
            Early::EtcdDown => {
                let name = "etcd down".to_owned();
                self.on(from + 100, "", What::Fault { name: name.clone() });
                self.on(from + 800, "", What::Healed { name });
                from..from
            }
        };
        let last = term.end - 1;
        let samples = term.step_by(plan.every as usize).chain([last]);
        for at in samples.filter(|at| !stop.contains(at)) {
            self.node(at, node, What::Valid { token });
        }
        self.write(from + 1000, node, token, (false, false));
        for (index, write) in plan.writes.iter().enumerate() {
            self.write(from + 1001 + index as u64, node, token, *write);
        }
    }

    /// Ends a term: the node releases it, or no longer renews its lease. Returns when its key is deleted.
    fn ends(&mut self, to: u64, end: End, (node, token): (usize, i64), last: bool) -> u64 {
        let (gone, back) = match end {
            End::Released => {
                let create_revision = token;
                self.node(to, node, What::AskedToDelete { create_revision });
                self.node(to, node, What::Released { token });
                (to + 3, to + 10)
            }
            End::Killed => {
                self.node(to, node, What::Killed);
                (to + TTL, to + 3000)
            }
            End::StoppedBeyondTtl => {
                self.node(to, node, What::Paused);
                self.node(to + 4000, node, What::Resumed);
                self.node(to + 4001, node, What::Invalid { token });
                (to + TTL - 100, to + 4010)
            }
            _ => {
                let reason = "LeaseExpiring".to_owned();
                self.node(to, node, What::LostToken { token, reason });
                self.node(to, node, What::Invalid { token });
                (to + 1000, to + 2000)
            }
        };
        self.delete(gone);
        self.join_unless(last, back, node);
        gone
    }

    fn stays_valid(&mut self, until: u64, node: usize, token: i64, last: bool) {
        self.node(until, node, What::Valid { token });
        let reason = "KeyDeleted".to_owned();
        self.node(until + 1, node, What::LostToken { token, reason });
        self.node(until + 1, node, What::Invalid { token });
        self.join_unless(last, until + 10, node);
    }

    fn join_unless(&mut self, last: bool, at: u64, node: usize) {
        if !last {
            self.join(at, node);
        }
    }

    fn write(&mut self, at: u64, node: usize, token: i64, (lost, admitted): (bool, bool)) {
        if !lost || admitted {
            self.counter += 1;
        }
        let value = self.counter;
        let outcome = if lost {
            Outcome::Unknown
        } else {
            Outcome::Admitted { value }
        };
        self.node(at, node, What::FencedWrite { token, outcome });
    }
}

fn play(plans: &[Plan]) -> Valid {
    let mut model = Model {
        events: Vec::new(),
        queue: VecDeque::new(),
        revision: 1,
        counter: 0,
        late: 0,
    };
    model.truth(1000, Change::Gap { since: 0 });
    for node in 0..3 {
        model.node(1000, node, What::Baseline(Resources::default()));
        model.join(1001 + node as u64, node);
    }
    let mut terms = Vec::new();
    let mut next = 1010;
    for (index, plan) in plans.iter().enumerate() {
        let (term, after) = model.term(next, plan, index + 1 == plans.len());
        terms.push(term);
        next = after;
    }
    let value = model.counter;
    for node in 0..3 {
        model.node(next - 4, node, What::Left);
        model.node(next + 100, node, What::Final(Resources::default()));
    }
    model.on(next + 100, "", What::FinalCounter { value });
    let ends = |wanted: &[End]| {
        plans[..plans.len() - 1]
            .iter()
            .filter(|plan| wanted.contains(&plan.end))
            .count()
    };
    Valid {
        events: model.events,
        terms,
        early: ends(&[End::RevokedEarly, End::DeletedByOperator]),
        stopped: ends(&[End::StoppedBeyondTtl]),
    }
}

fn judge(events: Vec<Event>) -> Report {
    check(
        &History::new(events),
        &Rules::new(Duration::from_millis(TTL)),
    )
}

fn reported(events: Vec<Event>, invariant: Invariant) -> Result<(), TestCaseError> {
    let report = judge(events);
    let found = report.violations.iter().any(|v| v.invariant == invariant);
    prop_assert!(found, "{invariant} was not reported\n{report}");
    Ok(())
}

/// Returns two different terms, the older first.
fn two(terms: &[Term], a: Index, b: Index) -> (Term, Term) {
    let first = a.index(terms.len() - 1);
    let second = first + 1 + b.index(terms.len() - 1 - first);
    (terms[first], terms[second])
}

impl Term {
    /// Returns the token of an event that shows this node as the leader.
    fn led<'e>(&self, event: &'e mut Event) -> Option<&'e mut i64> {
        let own = event.node == format!("n{}", self.node);
        match &mut event.what {
            What::Elected { token }
            | What::Valid { token }
            | What::Guarded { token }
            | What::FencedWrite { token, .. }
                if own && *token == self.token =>
            {
                Some(token)
            }
            _ => None,
        }
    }
}

proptest! {
    #[test]
    fn a_valid_history_is_never_reported(plans in plans()) {
        let valid = play(&plans);
        let report = judge(valid.events);
        prop_assert!(report.is_ok(), "{report}");
        let counts = report.counts;
        prop_assert_eq!(counts.elections, plans.len());
        prop_assert_eq!(counts.terms, plans.len());
        prop_assert_eq!(counts.elections_checked_for_seniority, plans.len());
        prop_assert_eq!(counts.deleted_early, valid.early);
        prop_assert_eq!(counts.overlaps_after_early_delete, valid.early);
        prop_assert_eq!(counts.overlaps_while_stopped, valid.stopped);
        prop_assert_eq!(counts.open_faults, 0);
    }

    #[test]
    fn a_term_moved_into_the_one_before_is_reported(
        plans in plans(), which: Index, depth in 1..5000_u64,
    ) {
        let mut valid = play(&plans);
        let index = 1 + which.index(plans.len() - 1);
        let (before, term) = (valid.terms[index - 1], valid.terms[index]);
        let by = Duration::from_millis(term.from - before.blame_until + depth);
        for event in &mut valid.events {
            if term.led(event).is_some() {
                event.at -= by;
            }
        }
        reported(valid.events, Invariant::Overlap)?;
    }

    #[test]
    fn swapped_tokens_are_reported(plans in plans(), a: Index, b: Index, watched: bool) {
        let mut valid = play(&plans);
        let (older, newer) = two(&valid.terms, a, b);
        for event in &mut valid.events {
            if let Some(token) = older.led(event) {
                *token = newer.token;
            } else if let Some(token) = newer.led(event) {
                *token = older.token;
            }
        }
        if watched {
            reported(valid.events.clone(), Invariant::Seniority)?;
        } else {
            valid.events.retain(|event| !matches!(event.what, What::Truth { .. } | What::Joined { .. }));
        }
        reported(valid.events, Invariant::Order)?;
    }

    #[test]
    fn a_takeover_that_never_came_is_reported(plans in plans(), which: Index) {
        let mut valid = play(&plans);
        let term = valid.terms[which.index(plans.len())];
        valid.events.retain_mut(|event| term.led(event).is_none());
        reported(valid.events, Invariant::Liveness)?;
    }

    #[test]
    fn a_stale_write_that_is_admitted_is_reported(plans in plans(), a: Index, b: Index) {
        let mut valid = play(&plans);
        let (older, newer) = two(&valid.terms, a, b);
        for event in &mut valid.events {
            if let What::FinalCounter { value } = &mut event.what {
                *value += 1;
            }
        }
        let value = valid.events.iter().find_map(|event| match event.what {
            What::FinalCounter { value } => Some(value),
            _ => None,
        });
        let outcome = Outcome::Admitted { value: value.unwrap_or_default() };
        valid.events.push(Event {
            at: Duration::from_millis(newer.from + 6000),
            node: format!("n{}", older.node),
            election: "jobs".to_owned(),
            what: What::FencedWrite { token: older.token, outcome },
        });
        reported(valid.events, Invariant::Fencing)?;
    }

    #[test]
    fn a_lost_update_is_reported(plans in plans(), which: Index) {
        let mut valid = play(&plans);
        let writes: Vec<usize> = (0..valid.events.len())
            .filter(|at| terms::admitted(&valid.events[*at].what).is_some())
            .collect();
        let write = valid.events[writes[which.index(writes.len())]].clone();
        valid.events.push(write);
        reported(valid.events, Invariant::Fencing)?;
    }

    #[test]
    fn an_elder_that_was_passed_over_is_reported(plans in plans(), a: Index, b: Index) {
        let mut valid = play(&plans);
        let (older, _) = two(&valid.terms, a, b);
        valid.events.retain(|event| !matches!(
            event.what,
            What::Truth { change: Change::Deleted { create_revision, .. }, .. } if create_revision == older.token
        ));
        reported(valid.events, Invariant::Seniority)?;
    }

    #[test]
    fn a_leak_is_reported(plans in plans(), node in 0..3, kind in 0..6) {
        let mut valid = play(&plans);
        for event in &mut valid.events {
            if let What::Final(held) = &mut event.what && event.node == format!("n{node}") {
                let kinds = [
                    &mut held.leases, &mut held.keys, &mut held.watchers,
                    &mut held.tasks, &mut held.threads, &mut held.fds,
                ];
                for (index, count) in kinds.into_iter().enumerate() {
                    *count += u64::from(index as i32 == kind);
                }
            }
        }
        reported(valid.events, Invariant::Leak)?;
    }
}

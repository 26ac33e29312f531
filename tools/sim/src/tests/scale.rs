//! Measures how the cost of decisions grows with the number of a session's elections.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::tests::asks::joins;
use crate::tests::{SLOW, TTL};
use crate::world::store::Store;
use eldest_core::Core;
use eldest_core::action::{
    Action, Answer, Ask, CandidateAction, Class, RequestError, RequestId, SlotId, TermId,
};
use eldest_core::candidate::CandidateConfig;
use eldest_core::time::Time;

/// A session and its etcd, without a network between.
struct Pair {
    core: Core,
    store: Store,
    now: Time,
    stream: Option<i64>,
    terms: BTreeMap<SlotId, TermId>,
}

impl Pair {
    /// Makes a session that has requested to join, and has no answer yet.
    fn standing(elections: u64) -> Self {
        let core = Core::new(SLOW.config());
        let mut pair = Self {
            core,
            store: Store::new(),
            now: Time::ZERO.after(Duration::from_secs(1000)),
            stream: None,
            terms: BTreeMap::new(),
        };
        for slot in 1..=elections {
            let prefix = format!("e{slot}/").into_bytes().into();
            let config = CandidateConfig::default();
            pair.core
                .campaign(pair.now, slot, prefix, (*b"v").into(), config);
        }
        pair
    }

    fn leading(elections: u64) -> Self {
        let mut pair = Self::standing(elections);
        pair.serve();
        assert_eq!(pair.terms.len() as u64, elections);
        pair
    }

    /// Answers the session's requests until there are none left.
    fn serve(&mut self) {
        while let Some(action) = self.core.action() {
            match action {
                Action::Ask { request, ask } => self.answer(request, &ask),
                Action::Watch { watch, .. } => {
                    let header = self.store.header();
                    self.core.watch_created(self.now, watch, header);
                }
                Action::Candidate(CandidateAction::Elected { slot, term, .. }) => {
                    self.terms.insert(slot, term);
                }
                _ => {}
            }
        }
    }

    fn answer(&mut self, request: RequestId, ask: &Ask) {
        match ask {
            Ask::Grant { .. } => self.stream = Some(request as i64),
            Ask::Open { lease } => self.stream = Some(*lease),
            _ => {}
        }
        let answer = self.store.perform(self.now, ask, self.stream);
        self.store.publish();
        self.core.answer(self.now, request, answer);
    }

    /// Makes the session stop trusting its lease, release every key and rejoin everywhere. Returns how long that takes.
    fn doubt_and_rejoin(&mut self) -> Duration {
        let before = self.terms.clone();
        // The renewal that is due fails, and the trust ends before the next one.
        self.now = self.now.after(TTL).before(Duration::from_secs(1));
        self.core.tick(self.now);
        let mut asked = Vec::new();
        while let Some(action) = self.core.action() {
            if let Action::Ask { request, .. } = action {
                asked.push(request);
            }
        }
        for request in asked {
            let error = RequestError::new(Class::Retry, "", "").unsent();
            let answer = Answer::Failed(error);
            self.core.answer(self.now, request, answer);
        }
        self.serve();
        let begun = Instant::now();
        for (slot, term) in &before {
            self.core.work_joined(self.now, *slot, *term, None);
        }
        self.serve();
        let took = begun.elapsed();
        let new = self
            .terms
            .iter()
            .filter(|(slot, term)| before[slot] != **term);
        assert_eq!(new.count(), before.len(), "every election has a new term");
        took
    }
}

/// Each watch begins after the next election was joined, so that every view but one has a gap that a read must close.
#[test]
fn reads_of_leaders_wait_until_all_joins_have_ended() {
    const N: u64 = 400;
    let mut pair = Pair::standing(N);
    let (mut asked, mut watches) = (VecDeque::new(), VecDeque::new());
    let (mut joined, mut listed) = (0, 0);
    loop {
        while let Some(action) = pair.core.action() {
            match action {
                Action::Ask { request, ask } if joins(&ask) => asked.push_back((request, ask)),
                Action::Ask { request, ask } => {
                    if matches!(ask, Ask::List { .. }) {
                        assert_eq!(joined, N, "a read was sent before the last join");
                        listed += 1;
                    }
                    pair.answer(request, &ask);
                }
                Action::Watch { watch, .. } => watches.push_back(watch),
                Action::Candidate(CandidateAction::Elected { slot, term, .. }) => {
                    pair.terms.insert(slot, term);
                }
                _ => {}
            }
        }
        let Some((request, ask)) = asked.pop_front() else {
            break;
        };
        joined += 1;
        pair.answer(request, &ask);
        if joined > 1 {
            let (now, header) = (pair.now, pair.store.header());
            let watch = watches.pop_front().expect("one for each election");
            pair.core.watch_created(now, watch, header);
        }
    }
    assert_eq!((pair.terms.len() as u64, listed), (N, N - 1));
}

/// Returns how long sessions of so many elections take to rejoin, one session after the other.
fn cost(sessions: u32, elections: u64) -> Duration {
    let session = |_| Pair::leading(elections).doubt_and_rejoin();
    (0..sessions).map(session).sum()
}

#[test]
fn rejoining_all_elections_costs_in_proportion_to_their_number() {
    // Both cases have as many elections and take about as long, so that a busy machine affects them alike.
    let ratio = || cost(1, 16_000).as_secs_f64() / cost(8, 2_000).as_secs_f64();
    let ratio = (0..5).map(|_| ratio()).fold(f64::MAX, f64::min);
    assert!(
        ratio < 4.0,
        "16,000 elections of one session cost {ratio:.1} times those of eight"
    );
}

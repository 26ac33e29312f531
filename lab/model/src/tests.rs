//! Tests the model's states. `--show-output` prints the figures and the counterexamples.

use std::collections::{HashMap, HashSet};

use stateright::Model as _;

use crate::explore::{ONE_LEADER, RECOVERS, TOKENS_RISE};
use crate::model::{MOST_NODES, Model};
use crate::rules::Rule;
use crate::search::{Explored, Report};
use crate::state::{Link, Node, Phase, Removal, Rev, State};

const THREADS: usize = 2;

fn holds(model: Model) -> Report {
    let report = model.check(THREADS);
    println!("{report}");
    assert!(report.is_good(), "{report}");
    report
}

#[test]
fn three_nodes_never_have_two_leaders() {
    let report = holds(Model::new().coarse());
    assert!(report.happened().contains(&"renewal refused"), "{report}");
    assert!(report.happened().contains(&"expiry"), "{report}");
}

#[test]
fn three_nodes_recover_from_every_state() {
    holds(Model::new().coarse().ttl(3).with_recovery());
}

#[test]
fn two_nodes_keep_all_promises_with_every_step_alone() {
    let report = holds(Model::new().nodes(2).with_recovery());
    // The other kinds occur only in worlds in which a rule is broken or etcd deletes keys early.
    let others = [
        "early revocation",
        "acknowledgement arrived",
        "key deleted late",
        "key found gone",
    ];
    let missing: Vec<_> = crate::seen::NAMES
        .into_iter()
        .filter(|name| !report.happened().contains(name) && !others.contains(name))
        .collect();
    assert!(missing.is_empty(), "{missing:?} never happened");
}

#[test]
fn two_nodes_need_no_gift_from_a_new_leader_of_etcd() {
    holds(Model::new().nodes(2).without_extension());
}

#[test]
fn early_revocation_makes_two_leaders_only_of_a_robbed_one() {
    holds(Model::new().nodes(2).with_early_revocation());
}

fn breaks(rule: Rule, property: &str) {
    let counterexample = Model::without(rule).counterexample();
    let counterexample = counterexample.unwrap_or_else(|| panic!("nothing needs {rule}"));
    println!("without {rule}, {counterexample}");
    assert_eq!(counterexample.property(), property, "{counterexample}");
}

#[test]
fn without_the_margin_there_are_two_leaders() {
    breaks(Rule::Margin, ONE_LEADER);
}

#[test]
fn with_a_deadline_that_counts_from_the_answer_there_are_two_leaders() {
    breaks(Rule::SendInstant, ONE_LEADER);
}

#[test]
fn without_the_verification_there_are_two_leaders() {
    breaks(Rule::Verification, ONE_LEADER);
}

#[test]
fn with_a_read_begun_before_the_answer_there_are_two_leaders() {
    breaks(Rule::ReadAfterAck, ONE_LEADER);
}

#[test]
fn extended_leases_make_good_a_read_begun_too_early() {
    let extends = true;
    let model = Model {
        extends,
        named: false,
        ..Model::without(Rule::ReadAfterAck)
    };
    assert!(model.counterexample().is_none());
}

#[test]
fn with_a_key_released_before_its_work_ends_there_are_two_leaders() {
    breaks(Rule::WorkFirst, ONE_LEADER);
}

#[test]
fn with_a_deadline_that_moves_after_the_end_there_are_two_leaders() {
    breaks(Rule::Frozen, ONE_LEADER);
}

#[test]
fn adopting_a_key_after_its_requested_deletion_uses_a_token_twice() {
    breaks(Rule::NoAdoption, TOKENS_RISE);
}

#[test]
fn with_an_unguarded_delete_there_are_two_leaders() {
    breaks(Rule::GuardedDelete, ONE_LEADER);
}

#[test]
fn with_a_term_that_does_not_wait_for_its_turn_there_are_two_leaders() {
    breaks(Rule::EldestLeads, ONE_LEADER);
}

#[test]
fn without_the_sweep_an_orphaned_key_keeps_all_nodes_waiting() {
    breaks(Rule::Sweep, RECOVERS);
}

#[test]
fn with_a_guard_that_revokes_a_live_lease_there_are_two_leaders() {
    breaks(Rule::DeadOnly, ONE_LEADER);
}

#[test]
fn with_a_guard_that_does_not_await_the_work_there_are_two_leaders() {
    breaks(Rule::WorkDead, ONE_LEADER);
}

#[test]
fn with_a_guard_that_revokes_a_foreign_lease_there_are_two_leaders() {
    breaks(Rule::OwnLease, ONE_LEADER);
}

#[test]
fn with_a_clock_beyond_its_bound_there_are_two_leaders() {
    breaks(Rule::BoundedDrift, ONE_LEADER);
}

#[test]
fn a_bound_on_ticks_bounds_the_states() {
    let states = |model: Model| reachable(&model).len();
    let two = || Model::new().coarse().nodes(2).ttl(3);
    let all: HashSet<State> = reachable(&two());
    for steps in [0, 2] {
        let some = reachable(&two().steps(steps));
        assert_eq!(some.iter().map(|state| state.ticks).max(), Some(steps));
        let timeless = |state: &State| State { ticks: 0, ..*state };
        assert!(some.iter().map(timeless).all(|state| all.contains(&state)));
    }
    assert!(states(two().steps(0)) < states(two().steps(2)));
}

fn reachable(model: &Model) -> HashSet<State> {
    let mut known: HashSet<State> = model.init_states().into_iter().collect();
    let mut new: Vec<State> = known.iter().copied().collect();
    while let Some(state) = new.pop() {
        let next = model.next_states(&state);
        new.extend(next.into_iter().filter(|next| known.insert(*next)));
    }
    known
}

/// Returns the visible part of a state, without the messages in flight, and the remaining time of each lease
/// separately.
fn visible(state: &State) -> (State, [Option<u8>; MOST_NODES]) {
    let node = |node: &Node| {
        let released = node.phase == Phase::Joining && node.removal == Removal::Asked;
        Node {
            phase: match node.key {
                Some(_) if released => Phase::Ending {
                    rev: node.key,
                    cutoff: 0,
                },
                _ => node.phase,
            },
            link: Link::Idle,
            removal: Removal::None,
            lease: None,
            ..*node
        }
    };
    let mut nodes = state.nodes.map(|n| (node(&n), n.lease));
    nodes.sort_unstable();
    let visible = State {
        nodes: nodes.map(|(node, _)| node),
        ..*state
    };
    (visible, nodes.map(|(_, lease)| lease))
}

/// A shorter lease allows every action that a longer one does, so the minimum counts.
#[test]
fn steps_taken_together_lose_nothing_that_can_be_seen() {
    let mut coarse: HashMap<State, HashSet<_>> = HashMap::new();
    for state in reachable(&Model::new().nodes(2).coarse()) {
        let (visible, leases) = visible(&state);
        coarse.entry(visible).or_default().insert(leases);
    }
    let no_more = |ours: &[Option<u8>; MOST_NODES], theirs: &[Option<u8>; MOST_NODES]| {
        ours.iter()
            .zip(theirs)
            .all(|(ours, theirs)| ours.is_some() == theirs.is_some() && ours <= theirs)
    };
    let fine: HashSet<_> = reachable(&Model::new().nodes(2))
        .iter()
        .map(visible)
        .collect();
    for (state, leases) in &fine {
        let found = coarse
            .get(state)
            .is_some_and(|coarse| coarse.iter().any(|ours| no_more(ours, leases)));
        assert!(found, "lost: {state:?} {leases:?}");
    }
    println!("{} visible states are all there", fine.len());
}

#[test]
fn revisions_are_kept_as_an_order() {
    let rev = |rev: Rev| Node {
        phase: Phase::Waiting { rev },
        lease: Some(1),
        key: Some(rev),
        belief: 2,
        ..Node::OUT
    };
    let mut state = State {
        nodes: [rev(7), rev(3), Node::OUT],
        last_token: Some(5),
        ..State::EMPTY
    };
    state.settle(&Model::new());
    assert_eq!(state.nodes.map(|node| node.key), [Some(2), Some(0), None]);
    assert_eq!(state.last_token, Some(1));
    assert_eq!(state.next_rev(), 3);
    assert!(state.nodes[1].first && !state.nodes[0].first);
    // No key, present or future, can be older.
    state.last_token = Some(0);
    state.nodes[1] = Node::OUT;
    state.settle(&Model::new());
    assert_eq!(state.last_token, None);
}

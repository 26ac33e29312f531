//! Tests of I1.

use super::*;

#[test]
fn two_nodes_that_are_valid_at_once_overlap() {
    let report = breaks(
        Invariant::Overlap,
        [
            on(0, "a", valid(5)),
            on(100, "b", valid(7)),
            on(101, "a", valid(5)),
            on(200, "b", valid(7)),
        ],
    );
    assert_eq!(report.violations.len(), 1);
    assert_eq!(
        report.violations[0].explanation,
        "a with token 5 and b with token 7 both led for 0.001 s, from 0.100 s to 0.101 s"
    );
}

#[test]
fn terms_that_only_touch_do_not_overlap() {
    holds([
        on(0, "a", valid(5)),
        on(100, "a", valid(5)),
        on(100, "b", valid(7)),
        on(200, "b", valid(7)),
    ]);
}

#[test]
fn a_single_sample_within_another_term_overlaps() {
    breaks(
        Invariant::Overlap,
        [
            on(0, "a", valid(5)),
            on(50, "b", valid(7)),
            on(100, "a", valid(5)),
        ],
    );
}

#[test]
fn guarded_work_counts_as_leading() {
    let guarded = |at, token| on(at, "a", What::Guarded { token });
    breaks(
        Invariant::Overlap,
        [
            guarded(0, 5),
            on(100, "b", valid(7)),
            guarded(150, 5),
            on(200, "b", valid(7)),
        ],
    );
    holds([
        guarded(0, 5),
        guarded(90, 5),
        on(100, "b", valid(7)),
        on(200, "b", valid(7)),
    ]);
}

#[test]
fn one_node_with_two_tokens_at_once_overlaps() {
    breaks(
        Invariant::Overlap,
        [
            on(0, "a", valid(5)),
            on(10, "a", valid(7)),
            on(20, "a", valid(5)),
            on(30, "a", valid(7)),
        ],
    );
}

#[test]
fn only_a_valid_sample_after_a_stop_is_an_overlap() {
    let stop = |check| {
        [
            on(0, "a", valid(5)),
            on(10, "a", What::Paused),
            on(3000, "b", valid(7)),
            on(3100, "b", valid(7)),
            on(3200, "a", What::Resumed),
            on(3201, "a", check),
        ]
    };
    breaks(Invariant::Overlap, stop(valid(5)));
    let report = holds(stop(invalid(5)));
    assert_eq!(report.counts.overlaps_while_stopped, 1);
    let strict = rules().stopped_counts_as_leading(true);
    breaks_under(&strict, Invariant::Overlap, stop(invalid(5)));
    let events = stop(invalid(5));
    // No other node led meanwhile.
    judge(
        &strict,
        events.into_iter().filter(|event| event.node == "a"),
    )
    .assert_ok();
}

#[test]
fn a_killed_node_leads_no_longer() {
    let strict = rules().stopped_counts_as_leading(true);
    let stopped = [
        on(0, "a", valid(5)),
        on(10, "a", What::Paused),
        on(3000, "b", valid(7)),
        on(3100, "b", valid(7)),
    ];
    breaks_under(&strict, Invariant::Overlap, stopped.clone());
    let killed = stopped.into_iter().chain([on(2900, "a", What::Killed)]);
    let report = judge(&strict, killed);
    report.assert_ok();
    assert_eq!(report.counts.overlaps_while_stopped, 0);
}

#[test]
fn stop_after_a_restart_does_not_revive_the_killed_term() {
    let report = holds([
        on(0, "a", valid(5)),
        on(10, "a", What::Killed),
        on(3000, "b", valid(7)),
        on(3100, "b", valid(7)),
        on(3050, "a", What::Paused),
        on(3060, "a", What::Resumed),
    ]);
    assert_eq!(report.counts.overlaps_while_stopped, 0);
}

/// Returns a history in which the key 5 is deleted at 1000, its node takes itself for the leader until 1400, and the
/// other node takes over at once.
fn early() -> Vec<Event> {
    vec![
        created(0, 5),
        created(1, 7),
        on(2, "a", elected(5)),
        on(3, "a", valid(5)),
        lease(800, 105, Some(1000)),
        lease(950, 105, Some(0)),
        deleted(1000, 8, 5),
        lease(1010, 105, None),
        on(1001, "b", elected(7)),
        on(1001, "b", valid(7)),
        on(1400, "a", valid(5)),
        on(1500, "b", valid(7)),
    ]
}

#[test]
fn an_overlap_after_an_early_revocation_is_counted_apart() {
    let report = holds(early());
    assert_eq!(report.counts.deleted_early, 1);
    assert_eq!(report.counts.overlaps_after_early_delete, 1);
}

#[test]
fn own_deletion_excuses_nothing() {
    for what in [
        What::AskedToDelete { create_revision: 5 },
        What::Released { token: 5 },
        What::Left,
    ] {
        let asked = early().into_iter().chain([on(990, "a", what)]);
        breaks(Invariant::Overlap, asked);
    }
}

#[test]
fn guard_or_challenger_that_deletes_the_key_of_a_leader_excuses_nothing() {
    let removals: [fn(i64) -> What; 2] = [
        |lease| What::ReleasedByGuard { lease },
        |lease| What::Condemned { lease },
    ];
    for removal in removals {
        let removed = |at, lease| {
            let removed = on(at, "b", removal(lease));
            early().into_iter().chain([removed])
        };
        breaks(Invariant::Overlap, removed(1020, 105));
        // One event names another lease; the other comes when the lease was already gone.
        for (at, lease) in [(1020, 107), (5000, 105)] {
            let report = holds(removed(at, lease));
            assert_eq!(report.counts.overlaps_after_early_delete, 1);
        }
        let operator = on(999, "operator", What::DeletedByOther { create_revision: 5 });
        holds(removed(1020, 105).chain([operator]));
    }
}

#[test]
fn a_lease_that_ran_out_excuses_nothing() {
    let events = early().into_iter().map(|mut event| {
        if event.at == ms(800) {
            event.at = ms(0);
        }
        event
    });
    // etcd had promised the lease until 1000, and it is gone at 1000.
    breaks(Invariant::Overlap, events);
}

#[test]
fn deleted_key_with_a_live_lease_excuses_only_a_foreign_deletion() {
    let mut events = early();
    events.retain(|event| event.at != ms(1010));
    breaks(Invariant::Overlap, events.clone());
    let by_other = What::DeletedByOther { create_revision: 5 };
    events.push(on(999, "operator", by_other));
    let report = holds(events);
    assert_eq!(report.counts.overlaps_after_early_delete, 1);
}

#[test]
fn an_early_deletion_excuses_neither_an_earlier_nor_a_long_overlap() {
    breaks(
        Invariant::Overlap,
        early().into_iter().chain([
            on(400, "b", valid(7)),
            // The gap excludes the check of seniority.
            truth(0, 7, Change::Gap { since: 0 }),
        ]),
    );
    breaks(
        Invariant::Overlap,
        early()
            .into_iter()
            .chain([on(3100, "a", valid(5)), on(3200, "b", valid(7))]),
    );
}

//! Tests of I2 and I4.

use super::*;

#[test]
fn a_token_used_by_two_nodes_breaks_the_order() {
    breaks(
        Invariant::Order,
        [on(0, "a", elected(5)), on(900, "b", elected(5))],
    );
    breaks(
        Invariant::Order,
        [on(0, "a", joined(5)), on(900, "b", elected(5))],
    );
    holds([
        on(0, "a", elected(5)),
        on(5, "a", invalid(5)),
        on(900, "b", elected(6)),
    ]);
}

#[test]
fn a_token_that_falls_breaks_the_order() {
    let guarded = |at, node: &str, token| on(at, node, What::Guarded { token });
    breaks(Invariant::Order, [guarded(0, "a", 7), guarded(100, "b", 5)]);
    breaks(
        Invariant::Order,
        [on(0, "a", wrote(7, 1)), guarded(100, "b", 5)],
    );
    breaks(
        Invariant::Order,
        [
            on(0, "a", elected(7)),
            on(1, "a", invalid(7)),
            on(100, "a", elected(5)),
        ],
    );
    holds([
        on(0, "a", elected(5)),
        guarded(0, "a", 5),
        on(1, "a", invalid(5)),
        guarded(100, "b", 7),
        on(200, "a", elected(9)),
    ]);
    // A node that was stopped between its election and the report of it is not to blame.
    holds([
        on(0, "b", elected(7)),
        on(1, "b", invalid(7)),
        on(2, "a", elected(5)),
    ]);
}

#[test]
fn election_over_an_older_key_breaks_seniority() {
    let second = |at| {
        [
            created(0, 5),
            created(1, 7),
            current(1500, 7),
            current(2000, 8),
            deleted(2900, 8, 5),
            on(at, "b", elected(7)),
        ]
    };
    let report = breaks(Invariant::Seniority, second(1499));
    let why = "became the oldest at revision 8, later than 1.500 s";
    let said = &report.violations[0].explanation;
    assert!(said.contains(why), "{report}");
    // The watch delivered the deletion late.
    let report = holds(second(1500));
    assert_eq!(report.counts.elections_checked_for_seniority, 1);
}

#[test]
fn a_key_that_was_never_the_oldest_or_never_was_breaks_seniority() {
    breaks(
        Invariant::Seniority,
        [created(0, 5), created(1, 7), on(9, "b", elected(7))],
    );
    breaks(
        Invariant::Seniority,
        [created(0, 5), on(9, "b", elected(7))],
    );
    holds([created(0, 5), on(9, "b", elected(5))]);
}

#[test]
fn keys_that_change_in_one_transaction_are_judged_together() {
    let mut swapped = vec![created(0, 5), deleted(100, 7, 5), created(100, 7)];
    swapped.push(on(100, "b", elected(7)));
    holds(swapped);
}

#[test]
fn a_gap_in_the_watchers_record_hides_only_what_it_covers() {
    let gap = |since, to| truth(500, to, Change::Gap { since });
    let report = holds([created(0, 5), gap(5, 9), on(400, "b", elected(7))]);
    assert_eq!(report.counts.elections_hidden_by_gaps, 1);
    breaks(
        Invariant::Seniority,
        [
            created(0, 5),
            gap(5, 9),
            created(600, 10),
            on(700, "c", elected(10)),
        ],
    );
    // The key is known to be deleted before the gap began.
    breaks(
        Invariant::Seniority,
        [
            created(0, 5),
            created(0, 6),
            deleted(1, 7, 6),
            gap(7, 9),
            on(400, "b", elected(6)),
        ],
    );
}

#[test]
fn two_watchers_of_one_election_do_no_harm() {
    let mut events = vec![
        created(0, 5),
        created(1, 7),
        deleted(2, 8, 5),
        created(3, 5),
        created(4, 7),
        deleted(5, 8, 5),
    ];
    events.push(on(6, "b", elected(7)));
    holds(events);
}

/// The process was stopped in the middle of its first write. When it continued, another node had led and written.
#[test]
fn late_record_of_a_first_write_is_judged_by_the_counter() {
    let events = |value| [on(100, "b", wrote(7, 2)), on(200, "a", wrote(5, value))];
    holds(events(1));
    let stale = judge(&rules(), events(3)).violations;
    let order = |found: &Violation| found.invariant == Invariant::Order;
    assert!(stale.iter().any(order), "{stale:?}");
}

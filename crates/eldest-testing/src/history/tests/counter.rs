//! Tests of I3.

use super::*;

#[test]
fn a_lost_update_breaks_fencing() {
    breaks(
        Invariant::Fencing,
        [on(0, "a", wrote(5, 1)), on(1, "a", wrote(5, 1))],
    );
    holds([on(0, "a", wrote(5, 1)), on(1, "a", wrote(5, 2))]);
}

#[test]
fn a_stale_write_that_is_admitted_breaks_fencing() {
    let writes = |outcome| {
        [
            on(0, "a", wrote(5, 1)),
            on(100, "b", wrote(7, 2)),
            on(200, "a", What::FencedWrite { token: 5, outcome }),
        ]
    };
    breaks(Invariant::Fencing, writes(Outcome::Admitted { value: 3 }));
    let report = holds(writes(Outcome::Refused));
    assert_eq!(report.counts.writes_admitted, 2);
    assert_eq!(report.counts.writes_refused, 1);
}

#[test]
fn a_write_that_is_only_reported_late_is_not_stale() {
    holds([
        on(0, "a", What::Guarded { token: 5 }),
        on(100, "b", wrote(7, 2)),
        on(200, "a", wrote(5, 1)),
    ]);
}

#[test]
fn the_final_counter_lies_between_the_sure_and_the_possible() {
    let ends = |value| {
        [
            on(0, "a", wrote(5, 1)),
            on(
                1,
                "a",
                What::FencedWrite {
                    token: 5,
                    outcome: Outcome::Unknown,
                },
            ),
            on(2, "resource", What::FinalCounter { value }),
        ]
    };
    breaks(Invariant::Fencing, ends(0));
    holds(ends(1));
    holds(ends(2));
    breaks(Invariant::Fencing, ends(3));
}

#[test]
fn a_counter_that_skips_breaks_fencing() {
    breaks(Invariant::Fencing, [on(0, "a", wrote(5, 2))]);
}

#[test]
fn write_without_a_recorded_result_may_have_been_admitted() {
    let sent = |at, outcome| on(at, "a", What::FencedWrite { token: 5, outcome });
    let killed = |value| {
        [
            sent(0, Outcome::Sent),
            sent(1, Outcome::Admitted { value: 1 }),
            sent(2, Outcome::Sent),
            on(3, "resource", What::FinalCounter { value }),
        ]
    };
    assert_eq!(holds(killed(1)).counts.writes_unknown, 1);
    holds(killed(2));
    breaks(Invariant::Fencing, killed(3));
}

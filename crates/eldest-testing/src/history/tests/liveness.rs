//! Tests of I5, whose bound here is 2 s + 1 s + 3.5 s, and of I6.

use super::*;

#[test]
fn a_vacancy_longer_than_the_bound_breaks_liveness() {
    let takeover = |at| {
        [
            on(0, "a", elected(5)),
            on(0, "b", joined(7)),
            on(1000, "a", What::Killed),
            on(at, "b", elected(7)),
        ]
    };
    breaks(Invariant::Liveness, takeover(7501));
    let report = holds(takeover(7500));
    assert_eq!(report.counts.vacancies, 1);
    assert_eq!(report.counts.faults_on_leader, 1);
}

#[test]
fn a_vacancy_at_the_end_of_the_history_breaks_liveness() {
    let end = |at| {
        [
            on(0, "a", joined(5)),
            on(at, "etcd", What::FinalCounter { value: 0 }),
        ]
    };
    breaks(Invariant::Liveness, end(6501));
    holds(end(6500));
}

#[test]
fn a_vacancy_without_a_live_candidate_is_innocent() {
    let idle = |what| {
        [
            on(0, "a", joined(5)),
            on(1000, "a", what),
            on(20_000, "etcd", What::FinalCounter { value: 0 }),
        ]
    };
    holds(idle(What::Left));
    holds(idle(What::Killed));
    holds(idle(What::Paused));
    let expected = rules().live(["b"]);
    breaks_under(&expected, Invariant::Liveness, idle(What::Left));
}

#[test]
fn the_time_for_a_takeover_begins_when_the_last_fault_is_healed() {
    let outage = |heal: u64, takeover: u64| {
        [
            on(0, "a", joined(5)),
            on(0, "", fault("quorum")),
            on(10, "n2", fault("cut")),
            on(20_000, "", healed("quorum")),
            on(heal, "n2", healed("cut")),
            on(takeover, "a", elected(5)),
        ]
    };
    holds(outage(25_000, 31_500));
    breaks(Invariant::Liveness, outage(25_000, 31_501));
    let mut open: Vec<Event> = outage(25_000, 90_000).into();
    open.retain(|event| event.what != healed("cut"));
    assert_eq!(holds(open).counts.open_faults, 1);
}

#[test]
fn a_lost_term_leaves_no_candidate_until_the_node_rejoins() {
    let lost = What::LostToken {
        token: 5,
        reason: "LeaseLost".into(),
    };
    let mut events = vec![
        on(0, "a", elected(5)),
        on(10, "a", lost),
        on(20_000, "a", What::FinalCounter { value: 0 }),
    ];
    holds(events.clone());
    events.push(on(20, "a", joined(8)));
    breaks(Invariant::Liveness, events);
}

#[test]
fn growing_resources_are_leaks() {
    let held = |threads| Resources {
        threads,
        leases: 1,
        ..Resources::default()
    };
    let grows = |to| {
        [
            on(0, "a", What::Baseline(held(3))),
            on(1, "b", What::Baseline(held(9))),
            on(2, "a", What::Final(held(to))),
        ]
    };
    let report = breaks(Invariant::Leak, grows(4));
    assert_eq!(
        report.violations[0].explanation,
        "a held 3 threads before the test and holds 4 after it"
    );
    holds(grows(3));
    holds(grows(2));
    let growth = Resources {
        threads: 1,
        ..Resources::default()
    };
    judge(&rules().allowed_growth(growth), grows(4)).assert_ok();
}

#[test]
fn another_fault_during_a_vacancy_restarts_the_time() {
    let takeover = |at| {
        [
            on(0, "a", elected(5)),
            on(0, "b", joined(7)),
            on(0, "c", joined(8)),
            on(1000, "a", What::Killed),
            on(5000, "b", What::Killed),
            on(at, "c", elected(8)),
        ]
    };
    holds(takeover(11_500));
    breaks(Invariant::Liveness, takeover(11_501));
}

#[test]
fn time_for_a_takeover_begins_when_a_process_certainly_runs() {
    let thaw = |sure, takeover| {
        [
            on(0, "a", elected(5)),
            on(10, "a", What::Paused),
            on(30_000, "a", What::Resumed),
            on(sure, "a", What::Resumed),
            on(sure + 1, "a", invalid(5)),
            on(sure + 1, "a", joined(7)),
            on(takeover, "a", elected(7)),
        ]
    };
    // The duration of the engine's request does not matter.
    holds(thaw(30_000, 36_501));
    holds(thaw(40_000, 46_501));
    breaks(Invariant::Liveness, thaw(40_000, 46_502));
}

#[test]
fn a_second_stop_is_not_taken_for_the_end_of_the_first() {
    breaks(
        Invariant::Liveness,
        [
            on(0, "a", elected(5)),
            on(10, "a", What::Paused),
            on(20, "a", What::Resumed),
            on(21, "a", invalid(5)),
            on(22, "a", joined(7)),
            on(10_000, "a", What::Paused),
            on(10_010, "a", What::Resumed),
        ],
    );
}

#[test]
fn fault_hits_the_leader_at_the_time_of_its_last_record() {
    let cut = |lost| {
        let lost = [on(lost, "a", invalid(5)), on(lost + 1, "a", What::Left)];
        let cut = [
            on(0, "a", elected(5)),
            on(10, "a", fault("cut")),
            on(20, "a", fault("cut")),
            on(30, "a", healed("cut")),
        ];
        holds(cut.into_iter().chain(lost)).counts
    };
    let (led, gone) = (cut(25), cut(15));
    assert_eq!((led.faults, led.faults_on_leader), (1, 1));
    assert_eq!((gone.faults, gone.faults_on_leader), (1, 0));
    assert_eq!(gone.open_faults, 0);
    // A fault that begins again after it was over is another fault.
    let twice = [
        on(0, "a", elected(5)),
        on(10, "a", fault("cut")),
        on(20, "", healed("cut")),
        on(30, "a", fault("cut")),
        on(40, "", healed("cut")),
    ];
    assert_eq!(holds(twice).counts.faults_on_leader, 2);
}

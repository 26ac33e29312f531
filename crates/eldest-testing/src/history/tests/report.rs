//! Tests the counts and the text of a report.

use super::*;

#[test]
fn elections_do_not_mix() {
    let mut events = vec![on(0, "a", valid(5)), on(20, "a", valid(5))];
    events.extend(
        [on(10, "b", valid(7)), on(30, "b", valid(7))].map(|event| Event {
            election: "other".into(),
            ..event
        }),
    );
    assert_eq!(holds(events).counts.terms, 2);
}

#[test]
fn fault_counts_as_a_hit_only_if_it_hits_the_leader() {
    let hit = |node: &str, at| {
        let events = [
            on(5, "a", elected(5)),
            on(6, "a", valid(5)),
            on(10, "a", invalid(5)),
            on(at, node, fault("cut")),
            on(at, node, healed("cut")),
        ];
        holds(events).counts.faults_on_leader
    };
    assert_eq!(hit("a", 7), 1);
    assert_eq!(hit("", 7), 1);
    assert_eq!(hit("b", 7), 0);
    assert_eq!(hit("a", 11), 0);
    assert_eq!(hit("", 4), 0);
}

#[test]
#[should_panic(expected = "2 elections and 1 faults on a leader are wanted")]
fn an_empty_history_proves_nothing() {
    let report = holds([on(0, "a", elected(5)), on(1, "a", What::Killed)]);
    report.require(1, 1);
    holds([]).require(2, 1);
}

#[test]
fn a_report_shows_violations_and_a_short_timeline() {
    let mut events: Vec<Event> = (0..100).map(|i| on(500 + i, "a", valid(5))).collect();
    events.push(on(600, "a", What::Killed));
    events.push(on(598, "b", wrote(7, 1)));
    events.push(on(598, "b", valid(7)));
    events.push(on(599, "b", valid(7)));
    let text = judge(&rules(), events).to_string();
    assert!(
        text.starts_with("VIOLATION I1 overlap in jobs: a with token 5 and b with token 7"),
        "{text}"
    );
    assert!(
        text.contains("0.000 s  leads 5 until 0.099 s, 100 times\n"),
        "{text}"
    );
    assert!(text.contains("0.100 s  KILLED\n"), "{text}");
    assert!(text.lines().count() < 20, "{text}");
}

//! Tests the plan of a schedule, also with leaders that die at any step and whose clocks jump.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1000;

fn plan(delivery: Delivery, catch_up: CatchUp) -> Plan {
    let schedule = Schedule::interval(Duration::from_secs(1)).unwrap();
    Plan {
        schedule,
        delivery,
        catch_up,
    }
}

fn finished(seconds: u64) -> Record {
    Record {
        due: Moment(seconds * SECOND),
        progress: Progress::Finished,
    }
}

fn begun(seconds: u64) -> Record {
    let progress = Progress::Begun;
    Record {
        progress,
        ..finished(seconds)
    }
}

fn at(seconds: u64) -> Moment {
    Moment(seconds * SECOND)
}

fn run(seconds: u64) -> Step {
    let (due, again) = (at(seconds), false);
    Step::Run { due, again }
}

#[test]
fn a_new_schedule_begins_now() {
    let plan = plan(Delivery::AtMostOnce, CatchUp::All(5));
    let now = Moment(7300);
    assert_eq!(plan.next(None, None, now), Step::Begin(now));
    let begun = Record {
        due: now,
        progress: Progress::Finished,
    };
    assert_eq!(plan.next(Some(&begun), None, now), Step::Wait(Some(at(8))));
}

#[test]
fn the_catch_up_rule_chooses_among_the_due_times_that_passed() {
    let missed = finished(10);
    let next = |catch_up, awaited, now| {
        plan(Delivery::AtMostOnce, catch_up).next(Some(&missed), awaited, now)
    };
    for awaited in [None, Some(at(10))] {
        assert_eq!(
            next(CatchUp::Skip, awaited, at(20)),
            Step::Wait(Some(at(21)))
        );
    }
    assert_eq!(next(CatchUp::Skip, Some(at(20)), at(20)), run(20));
    assert_eq!(
        next(CatchUp::Skip, Some(at(20)), Moment(19_999)),
        Step::Wait(Some(at(20)))
    );
    assert_eq!(next(CatchUp::Latest, None, at(20)), run(20));
    assert_eq!(next(CatchUp::All(3), None, at(20)), run(18));
    assert_eq!(next(CatchUp::All(1000), None, at(20)), run(11));
    for catch_up in [CatchUp::Skip, CatchUp::Latest, CatchUp::All(3)] {
        assert_eq!(
            next(catch_up, None, Moment(10_999)),
            Step::Wait(Some(at(11)))
        );
    }
}

#[test]
fn interrupted_run_is_repeated_first_under_at_least_once() {
    let interrupted = begun(10);
    for catch_up in [CatchUp::Skip, CatchUp::Latest, CatchUp::All(3)] {
        let next =
            |delivery, now: Moment| plan(delivery, catch_up).next(Some(&interrupted), None, now);
        let again = Step::Run {
            due: at(10),
            again: true,
        };
        for now in [at(3), at(10), at(20)] {
            assert_eq!(next(Delivery::AtLeastOnce, now), again);
        }
        assert_eq!(next(Delivery::AtMostOnce, at(10)), Step::Wait(Some(at(11))));
    }
}

#[test]
fn a_late_clock_waits_until_it_has_passed_the_last_due_time() {
    for catch_up in [CatchUp::Skip, CatchUp::Latest, CatchUp::All(3)] {
        let plan = plan(Delivery::AtMostOnce, catch_up);
        let next = plan.next(Some(&finished(100)), None, at(3));
        assert_eq!(next, Step::Wait(Some(at(101))));
    }
}

#[test]
fn a_vacancy_of_years_is_caught_up_without_visiting_each_due_time() {
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = std::sync::Arc::clone(&asked);
    let schedule = Schedule::from_fn(move |time| {
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let every_second = Schedule::interval(Duration::from_secs(1)).ok()?;
        every_second.next_after(time)
    });
    let plan = Plan {
        schedule,
        ..plan(Delivery::AtMostOnce, CatchUp::All(10))
    };
    let years = 1_000_000_000;
    assert_eq!(
        plan.next(Some(&finished(0)), None, at(years)),
        run(years - 9)
    );
    let asked = asked.load(std::sync::atomic::Ordering::Relaxed);
    assert!(asked < 100, "{asked} due times were looked at");
}

/// An event before a leader's next step.
#[derive(Debug, Clone, Copy)]
enum Event {
    Nothing,
    /// The leader dies; the next one's clock is off by this many milliseconds.
    Dies {
        skew: i64,
    },
    /// The leader's clock jumps.
    Jumps {
        by: i64,
    },
    /// Time passes.
    Passes {
        ms: u64,
    },
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => Just(Event::Nothing),
        2 => (-5000_i64..5000).prop_map(|skew| Event::Dies { skew }),
        1 => (-5000_i64..5000).prop_map(|by| Event::Jumps { by }),
        4 => (0_u64..4000).prop_map(|ms| Event::Passes { ms }),
    ]
}

fn rules() -> impl Strategy<Value = (Delivery, CatchUp)> {
    let delivery = prop_oneof![Just(Delivery::AtMostOnce), Just(Delivery::AtLeastOnce)];
    let catch_up = prop_oneof![
        Just(CatchUp::Skip),
        Just(CatchUp::Latest),
        (1_usize..8).prop_map(CatchUp::All),
        Just(CatchUp::All(1000)),
    ];
    (delivery, catch_up)
}

/// The leaders of an election, one after the other, with the steps of `Executor::term`.
struct Leaders {
    plan: Plan,
    record: Option<Record>,
    now: u64,
    offset: i64,
    awaited: Option<Moment>,
    /// The due time whose work runs.
    running: Option<Moment>,
    /// How often each due time was begun and finished, in this order of beginning.
    begun: Vec<Moment>,
    finished: BTreeMap<Moment, u32>,
}

impl Leaders {
    fn clock(&self) -> Moment {
        Moment(self.now.saturating_add_signed(self.offset))
    }

    fn suffer(&mut self, event: Event) {
        match event {
            Event::Nothing => {}
            Event::Dies { skew } => {
                self.offset = skew;
                (self.awaited, self.running) = (None, None);
            }
            Event::Jumps { by } => self.offset += by,
            Event::Passes { ms } => self.now += ms,
        }
    }

    fn step(&mut self) {
        if let Some(due) = self.running.take() {
            *self.finished.entry(due).or_default() += 1;
            let progress = Progress::Finished;
            self.record = Some(Record { due, progress });
            return;
        }
        let step = self
            .plan
            .next(self.record.as_ref(), self.awaited, self.clock());
        match step {
            Step::Begin(due) => {
                let progress = Progress::Finished;
                self.record = Some(Record { due, progress });
            }
            Step::Wait(due) => self.awaited = due,
            Step::Run { due, .. } => {
                let progress = Progress::Begun;
                self.record = Some(Record { due, progress });
                self.awaited = None;
                self.running = Some(due);
                self.begun.push(due);
            }
        }
    }
}

proptest! {
    #[test]
    fn at_most_once_begins_none_twice_and_at_least_once_omits_none(
        (delivery, catch_up) in rules(),
        events in proptest::collection::vec(event(), 1..200),
    ) {
        let mut leaders = Leaders {
            plan: plan(delivery, catch_up),
            record: None,
            now: 1_000_000,
            offset: 0,
            awaited: None,
            running: None,
            begun: Vec::new(),
            finished: BTreeMap::new(),
        };
        for event in events {
            leaders.suffer(event);
            leaders.step();
        }
        // The last leader survives, and runs every due time that is left.
        leaders.awaited = None;
        for _ in 0..5000 {
            leaders.step();
        }
        let begun = &leaders.begun;
        let ordered = begun.windows(2).all(|two| two[0] < two[1] || (two[0] == two[1] && delivery == Delivery::AtLeastOnce));
        prop_assert!(ordered, "each is later than the one before, or its repetition: {begun:?}");
        if delivery == Delivery::AtLeastOnce {
            for due in begun {
                prop_assert!(leaders.finished.contains_key(due), "{due:?} was begun, and never finished");
            }
        }
        if let (CatchUp::All(1000), Some(first), Some(last)) = (catch_up, begun.first(), begun.last()) {
            let mut all: Vec<_> = begun.clone();
            all.dedup();
            let count = (last.0 - first.0) / SECOND + 1;
            prop_assert_eq!(all.len() as u64, count, "none between the first and the last is left out");
        }
    }
}

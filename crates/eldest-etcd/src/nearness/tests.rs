//! Tests the choice of the endpoint in made-up time.

use super::*;

const NEAR: Duration = Duration::from_millis(1);
const FAR: Duration = Duration::from_millis(40);
/// A random number that stretches no pause.
const EVEN: u64 = 1 << 63;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn at(seconds: f64) -> Time {
    Time::ZERO.after(Duration::from_secs_f64(seconds))
}

/// Three endpoints without names of data centres.
fn unnamed() -> Nearness {
    Nearness::new([false; 3], at(0.0), || EVEN)
}

/// Probes every endpoint twice, with the given round trips.
fn measured(own: [bool; 3], round_trips: [Duration; 3]) -> Nearness {
    let mut nearness = Nearness::new(own, at(0.0), || EVEN);
    for second in [1.0, 3.0] {
        for (endpoint, round_trip) in round_trips.into_iter().enumerate() {
            nearness.probed(endpoint, at(second), Some(round_trip), EVEN);
        }
    }
    nearness
}

#[test]
fn a_lane_begins_at_the_first_endpoint_of_its_data_center() {
    assert_eq!(unnamed().first(), 0);
    let named = Nearness::new([false, true, true], at(0.0), || EVEN);
    assert_eq!(named.first(), 1);
}

#[test]
fn the_nearest_endpoint_is_chosen_after_two_probes() {
    let mut nearness = unnamed();
    for (second, better) in [(1.0, None), (3.0, Some(2))] {
        for (endpoint, round_trip) in [FAR, FAR * 2, NEAR].into_iter().enumerate() {
            nearness.probed(endpoint, at(second), Some(round_trip), EVEN);
        }
        assert_eq!(nearness.better_than(0, at(second)), better);
    }
    assert_eq!(nearness.better_than(1, at(3.0)), Some(2));
    assert_eq!(nearness.better_than(2, at(3.0)), None);
    assert_eq!(nearness.why(0, at(3.0)), EndpointReason::Moving);
    assert_eq!(nearness.why(2, at(3.0)), EndpointReason::Nearest);
}

#[test]
fn first_move_is_to_the_nearest_in_any_order_of_probes() {
    let mut chance = fastrand::Rng::with_seed(5);
    for _ in 0..1000 {
        let mut nearness = Nearness::new([false; 3], at(0.0), || chance.u64(..));
        let to = loop {
            let now = nearness.next(&[0]).unwrap();
            for endpoint in nearness.due(&[0], now) {
                let round_trip = [FAR, FAR / 2, NEAR][endpoint];
                nearness.probed(endpoint, now, Some(round_trip), chance.u64(..));
            }
            if let Some(to) = nearness.better_than(0, now) {
                break to;
            }
        };
        assert_eq!(to, 2);
    }
}

#[test]
fn endpoints_that_are_about_equally_near_are_not_exchanged() {
    for (one, other) in [
        (ms(40), ms(40)),
        (ms(40), ms(31)),
        (ms(6), Duration::from_micros(1100)),
    ] {
        let nearness = measured([false; 3], [one, other, one]);
        for from in 0..3 {
            assert_eq!(
                nearness.better_than(from, at(3.0)),
                None,
                "{one:?} {other:?}"
            );
        }
    }
    let nearness = measured([false; 3], [ms(40), ms(30), ms(40)]);
    assert_eq!(nearness.better_than(0, at(3.0)), Some(1));
}

#[test]
fn no_two_endpoints_are_preferred_to_each_other() {
    let mut rng = fastrand::Rng::with_seed(7);
    for _ in 0..20_000 {
        let mut nearness = Nearness::new([rng.bool(), rng.bool()], at(0.0), || EVEN);
        for endpoint in [0, 1] {
            for _ in 0..rng.u32(0..4) {
                let round_trip = rng.bool().then(|| ms(rng.u64(0..50)));
                nearness.probed(endpoint, at(1.0), round_trip, EVEN);
            }
        }
        let (there, back) = (
            nearness.better_than(0, at(9.0)),
            nearness.better_than(1, at(9.0)),
        );
        assert!(there.is_none() || back.is_none(), "{nearness:?}");
    }
}

#[test]
fn single_slow_or_fast_probe_moves_no_lane() {
    let mut nearness = measured([false; 3], [ms(20), ms(20), ms(20)]);
    nearness.probed(0, at(5.0), Some(ms(90)), EVEN);
    nearness.probed(1, at(5.0), Some(ms(1)), EVEN);
    assert_eq!(nearness.better_than(0, at(5.0)), None);
    nearness.probed(0, at(7.0), Some(ms(90)), EVEN);
    nearness.probed(1, at(7.0), Some(ms(1)), EVEN);
    assert_eq!(nearness.better_than(0, at(7.0)), Some(1));
}

#[test]
fn the_own_data_center_is_preferred_however_near_the_others_are() {
    let nearness = measured([false, true, false], [NEAR, FAR, NEAR]);
    assert_eq!(nearness.better_than(0, at(3.0)), Some(1));
    assert_eq!(nearness.better_than(1, at(3.0)), None);
    assert_eq!(nearness.why(1, at(3.0)), EndpointReason::OwnDataCenter);
    let two = measured([true, true, false], [FAR, NEAR, NEAR]);
    assert_eq!(
        two.better_than(0, at(3.0)),
        Some(1),
        "the nearer of the own"
    );
}

#[test]
fn failed_endpoint_is_used_again_after_a_while_and_two_answers() {
    let mut nearness = measured([false; 3], [NEAR, FAR, FAR * 2]);
    let next = nearness.failed(Lane::Data, 0, at(10.0), EVEN);
    assert_eq!(next, 1, "the next nearest");
    assert_eq!(nearness.why(1, at(10.0)), EndpointReason::PreferredFailed);
    assert!(nearness.is_failing(0));
    for (second, answer) in [
        (12.0, None),
        (16.0, Some(NEAR)),
        (18.0, None),
        (22.0, Some(NEAR)),
    ] {
        nearness.probed(0, at(second), answer, EVEN);
        assert_eq!(nearness.better_than(1, at(second)), None, "at {second} s");
    }
    nearness.probed(0, at(24.0), Some(NEAR), EVEN);
    assert_eq!(nearness.better_than(1, at(24.0)), Some(0));
    assert!(!nearness.is_failing(0));

    // Two answers at once are not enough: the endpoint is avoided for a while, and for longer because it has failed
    // again.
    nearness.failed(Lane::Data, 0, at(30.0), EVEN);
    for second in [31.0, 32.0] {
        nearness.probed(0, at(second), Some(NEAR), EVEN);
    }
    assert_eq!(nearness.better_than(1, at(39.9)), None);
    assert_eq!(nearness.better_than(1, at(40.0)), Some(0));
}

#[test]
fn repeatedly_failing_endpoint_is_avoided_for_longer_each_time() {
    let mut nearness = measured([false; 3], [NEAR, FAR, FAR]);
    let mut now = 10.0;
    let mut away = Vec::new();
    nearness.failed(Lane::Data, 0, at(now), EVEN);
    for _ in 0..9 {
        let failed = now;
        while nearness.better_than(1, at(now)).is_none() {
            now += 1.0;
            nearness.probed(0, at(now), Some(NEAR), EVEN);
        }
        away.push((now - failed) as u64);
        // All three lanes see it, which counts as one failure.
        for lane in Lane::ALL {
            nearness.failed(lane, 0, at(now), EVEN);
        }
    }
    assert_eq!(away, [5, 10, 20, 40, 80, 160, 320, 600, 600]);
    // Once the endpoint has answered for long enough, its failures are forgotten.
    let well = now + 600.0;
    nearness.probed(0, at(well), Some(NEAR), EVEN);
    nearness.failed(Lane::Data, 0, at(well + 600.0), EVEN);
    for _ in 0..2 {
        nearness.probed(0, at(well + 601.0), Some(NEAR), EVEN);
    }
    assert_eq!(nearness.better_than(1, at(well + 605.0)), Some(0));
}

#[test]
fn a_lane_that_could_not_be_moved_tries_less_and_less_often() {
    let mut nearness = measured([false; 3], [NEAR, FAR, FAR]);
    let mut now = 10.0;
    let mut refusals = Vec::new();
    while refusals.len() < 4 {
        if nearness.better_than(1, at(now)) == Some(0) {
            refusals.push(now as u64);
            nearness.refused(0, at(now), EVEN);
        }
        now += 1.0;
        nearness.probed(0, at(now), Some(NEAR), EVEN);
    }
    assert_eq!(refusals, [10, 15, 25, 45]);
}

#[test]
fn an_outage_of_all_endpoints_tries_each_in_turn() {
    for own in [[false; 3], [true, false, false], [true, true, false]] {
        // The time that each failure takes makes no difference.
        for pause in [0.1, 1.0, 10.0, 1000.0] {
            let mut nearness = measured(own, [NEAR, FAR, FAR * 2]);
            let (mut lane, mut tried) = (0, Vec::new());
            for step in 0..12 {
                let now = at(10.0 + f64::from(step) * pause);
                lane = nearness.failed(Lane::Data, lane, now, EVEN);
                tried.push(lane);
            }
            for three in tried.windows(3) {
                let mut three = three.to_vec();
                three.sort_unstable();
                assert_eq!(three, [0, 1, 2], "{tried:?}");
            }
        }
    }
}

/// Another lane and probes fail at the endpoint all the time.
#[test]
fn no_failure_of_others_keeps_a_lane_from_an_endpoint() {
    let mut nearness = measured([false; 3], [NEAR, FAR, FAR * 2]);
    let (mut lane, mut tried) = (0, Vec::new());
    for step in 0..12 {
        let now = at(10.0 + f64::from(step));
        for busy in 0..2 {
            nearness.failed(Lane::Data, busy, now, EVEN);
        }
        nearness.probed(2, now, None, EVEN);
        lane = nearness.failed(Lane::Lease, lane, now, EVEN);
        tried.push(lane);
    }
    for three in tried[3..].windows(3) {
        let mut three = three.to_vec();
        three.sort_unstable();
        assert_eq!(three, [0, 1, 2], "{tried:?}");
    }
}

#[test]
fn measurements_that_noise_has_spoilt_are_corrected_within_minutes() {
    let mut nearness = measured([false; 3], [FAR, FAR, FAR * 2]);
    let mut chance = fastrand::Rng::with_seed(4);
    while nearness.better_than(0, at(3.0)).is_none() {
        let now = nearness.next(&[0]).unwrap();
        assert!(now < at(600.0), "{nearness:?}");
        for endpoint in nearness.due(&[0], now) {
            let round_trip = [FAR, NEAR, FAR * 2][endpoint];
            nearness.probed(endpoint, now, Some(round_trip), chance.u64(..));
        }
    }
    assert_eq!(nearness.better_than(0, at(3.0)), Some(1));
}

/// The endpoint answers probes and no requests.
#[test]
fn seemingly_healthy_endpoint_does_not_keep_a_lane_from_others() {
    let mut nearness = measured([false; 3], [NEAR, FAR, FAR * 2]);
    let (mut lane, mut now, mut visits) = (0, 10.0, [0; 3]);
    // Each failure takes so long that the first endpoint may be used again meanwhile.
    for _ in 0..12 {
        lane = nearness.failed(Lane::Data, lane, at(now), EVEN);
        visits[lane] += 1;
        for _ in 0..2 {
            now += 5.0;
            nearness.probed(0, at(now), Some(NEAR), EVEN);
        }
    }
    assert!(visits.iter().all(|count| *count >= 2), "{visits:?}");
}

#[test]
fn without_measurements_a_failure_leads_to_the_next_of_the_list() {
    let mut nearness = unnamed();
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        assert_eq!(nearness.failed(Lane::Data, from, at(1.0), EVEN), to);
    }
    let mut alone = Nearness::new([false], at(0.0), || EVEN);
    assert_eq!(alone.failed(Lane::Data, 0, at(1.0), EVEN), 0);
    assert_eq!(alone.why(0, at(1.0)), EndpointReason::Only);
}

/// Returns how often each endpoint is probed from `begin` to `end`, while all lanes stay where they are.
fn probes(
    nearness: &mut Nearness,
    used: &[usize],
    (begin, end): (f64, f64),
    answers: impl Fn(usize) -> Option<Duration>,
) -> Vec<usize> {
    let mut counts = vec![0; nearness.known.len()];
    let mut chance = fastrand::Rng::with_seed(3);
    while let Some(next) = nearness.next(used).filter(|next| *next < at(end)) {
        let now = next.max(at(begin));
        for endpoint in nearness.due(used, now) {
            counts[endpoint] += 1;
            nearness.probed(endpoint, now, answers(endpoint), chance.u64(..));
        }
    }
    counts
}

#[test]
fn healthy_session_probes_each_endpoint_twice_then_every_two_minutes() {
    let round_trips = |endpoint| Some([NEAR, FAR, FAR][endpoint]);
    let mut nearness = unnamed();
    let first = probes(&mut nearness, &[0], (0.0, 60.0), round_trips);
    assert!(
        first.iter().all(|count| (2..=4).contains(count)),
        "{first:?}"
    );
    let hour = probes(&mut nearness, &[0], (60.0, 3660.0), round_trips);
    assert!(hour[1..].iter().all(|count| *count <= 60), "{hour:?}");
    assert!(hour[0] <= 120, "compared to both: {hour:?}");
}

#[test]
fn sessions_in_their_data_center_or_with_one_endpoint_probe_nothing() {
    let mut named = Nearness::new([true, false, false], at(0.0), || EVEN);
    assert_eq!(named.next(&[0]), None);
    let mut alone = Nearness::new([false], at(0.0), || EVEN);
    assert_eq!(alone.next(&[0]), None);
    alone.failed(Lane::Data, 0, at(1.0), EVEN);
    assert_eq!(alone.next(&[0]), None);
    // A failed endpoint is probed until it answers, or it would count as failing for good.
    named.failed(Lane::Data, 0, at(1.0), EVEN);
    assert_eq!(named.next(&[0]), Some(at(3.0)));
    named.probed(0, at(3.0), Some(NEAR), EVEN);
    assert!(!named.is_failing(0));
    assert_eq!(named.next(&[0]), None);
}

#[test]
fn preferred_endpoint_that_is_down_is_probed_about_once_a_minute() {
    let mut nearness = measured([false; 3], [NEAR, FAR, FAR]);
    nearness.failed(Lane::Data, 0, at(10.0), EVEN);
    let minute = probes(&mut nearness, &[1], (10.0, 70.0), |_| None);
    assert!((3..=8).contains(&minute[0]), "{minute:?}");
    let hour = probes(&mut nearness, &[1], (70.0, 3670.0), |endpoint| {
        (endpoint > 0).then_some(FAR)
    });
    assert!((40..=120).contains(&hour[0]), "{hour:?}");
}

#[test]
fn endpoint_on_probation_is_not_probed_all_the_time() {
    let mut nearness = measured([false; 3], [NEAR, FAR, FAR]);
    let mut now = 10.0;
    for _ in 0..8 {
        nearness.probed(0, at(now), Some(NEAR), EVEN);
        nearness.refused(0, at(now), EVEN);
        now += 1.0;
    }
    let minutes = probes(&mut nearness, &[1], (now, now + 540.0), |endpoint| {
        Some([NEAR, FAR, FAR][endpoint])
    });
    assert!(minutes[0] <= 4, "{minutes:?}");
}

#[test]
fn probes_of_many_sessions_are_spread() {
    let nearness = |chance| {
        let mut nearness = Nearness::new([false; 3], at(0.0), || chance);
        nearness.failed(Lane::Data, 0, at(10.0), chance);
        nearness.next(&[1]).unwrap()
    };
    let (first, last) = (nearness(0), nearness(u64::MAX));
    assert!(last.since(first) >= ms(400), "{first:?} {last:?}");
}

#[test]
fn a_replaced_list_keeps_the_measurements_of_endpoints_that_stay() {
    let mut nearness = measured([false; 3], [FAR, FAR * 2, NEAR]);
    nearness.failed(Lane::Lease, 0, at(4.0), EVEN);
    nearness.replace([(2, false), (3, false), (0, true)], at(5.0), || EVEN);
    assert_eq!(
        [2, 3, 0].map(|it| nearness.round_trip(it)),
        [Some(NEAR), None, Some(FAR)]
    );
    assert_eq!(
        [2, 3, 0].map(|it| nearness.is_failing(it)),
        [false, false, true]
    );
    assert_eq!(
        nearness.first(),
        0,
        "it is in the session's data centre now"
    );
    // Answers and failures of a removed endpoint change nothing.
    assert_eq!(
        (nearness.round_trip(1), nearness.is_failing(1)),
        (None, false)
    );
    nearness.probed(1, at(5.0), Some(NEAR), EVEN);
    nearness.refused(1, at(5.0), EVEN);
    assert_eq!(nearness.better_than(1, at(5.0)), None);
    assert_eq!(
        (nearness.round_trip(1), nearness.is_failing(1)),
        (None, false)
    );
    // Its lanes go to the nearest endpoint that answers.
    assert_eq!(nearness.instead_of(Lane::Data, 1, at(5.0)), Some(2));
    assert_eq!(nearness.failed(Lane::Data, 1, at(5.0), EVEN), 2);
    assert!(nearness.due(&[1, 2, 2], at(9.0)).iter().all(|it| *it != 1));
}

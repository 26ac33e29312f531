use super::*;

const LEAD: Duration = Duration::from_secs(3);
const LIMIT: Duration = Duration::from_millis(500);
const MS: Duration = Duration::from_millis(1);
const ALIVE: Input = Input::Replied(Reply::Alive);

fn at(millis: u64) -> Time {
    Time::ZERO.after(Duration::from_millis(millis))
}

/// A session without jitter, watched since the clock's origin.
fn new() -> Peer {
    with_jitter(0)
}

fn with_jitter(random: u64) -> Peer {
    let mut peer = Peer::new(Time::ZERO, LEAD, Box::new(move || random));
    assert_eq!(peer.due(), Time::ZERO);
    assert_eq!(peer.timeout(Time::ZERO), [Output::Connect]);
    peer
}

/// A session whose first sign of life came at the clock's origin.
fn heard() -> Peer {
    let mut peer = new();
    assert_eq!(peer.handle(Time::ZERO, Input::Connected), []);
    assert_eq!(peer.handle(Time::ZERO, ALIVE), []);
    peer
}

/// Makes a closed connection again, on which the session speaks at once.
fn speak_again(peer: &mut Peer, now: Time) -> Vec<Output> {
    assert_eq!(peer.timeout(now), [Output::Connect]);
    assert_eq!(peer.handle(now, Input::Connected), []);
    peer.handle(now, ALIVE)
}

/// Lets time pass, with no event of the connection, until something but a connection is decided.
fn wait(peer: &mut Peer) -> (Time, Output) {
    for _ in 0..100_000 {
        let now = peer.due();
        let of_link = |output: &Output| matches!(output, Output::Connect | Output::Close);
        let decided = peer.timeout(now);
        if let Some(output) = decided.into_iter().find(|output| !of_link(output)) {
            return (now, output);
        }
        assert!(peer.due() > now, "the time does not move on");
    }
    panic!("nothing is decided");
}

#[test]
fn refused_connection_is_suspect_at_once() {
    let decided = new().handle(at(3), Input::Closed);
    assert_eq!(decided, [Output::Close, Output::Silent]);
}

#[test]
fn closed_connection_is_suspect_at_once() {
    let decided = heard().handle(at(100), Input::Closed);
    assert_eq!(decided, [Output::Close, Output::Silent]);
}

#[test]
fn unknown_lease_is_suspect_at_once() {
    let decided = heard().handle(at(100), Input::Replied(Reply::Unknown));
    assert_eq!(decided, [Output::Close, Output::Silent]);
}

#[test]
fn silence_is_suspect_after_its_limit_and_not_before() {
    let mut peer = heard();
    assert_eq!(peer.due(), Time::ZERO.after(LIMIT));
    assert_eq!(peer.timeout(at(499)), []);
    let decided = peer.timeout(Time::ZERO.after(LIMIT));
    assert_eq!(decided, [Output::Close, Output::Silent]);
}

#[test]
fn each_sign_of_life_extends_the_trust() {
    let mut peer = heard();
    for millis in (0..10_000).step_by(200) {
        assert_eq!(peer.handle(at(millis), ALIVE), []);
        assert_eq!(peer.due(), at(millis).after(LIMIT));
    }
}

#[test]
fn first_contact_may_take_a_second() {
    let mut peer = new();
    assert_eq!(wait(&mut peer), (at(1_000), Output::Silent));
    let mut peer = new();
    assert_eq!(peer.handle(at(700), Input::Connected), []);
    assert_eq!(wait(&mut peer), (at(1_000), Output::Silent));
}

#[test]
fn session_that_cannot_be_asked_is_not_suspected() {
    for reply in [Reply::Busy, Reply::OtherVersion] {
        let mut peer = heard();
        assert_eq!(
            peer.handle(at(100), Input::Replied(reply)),
            [Output::Close],
            "{reply:?}"
        );
        let again = at(100).after(LONGEST_RECONNECT);
        assert_eq!(peer.due(), again);
        assert_eq!(peer.timeout(again), [Output::Connect]);
        assert_eq!(
            wait(&mut peer),
            (again.after(FIRST_REPLY), Output::Silent),
            "a later silence counts from the next attempt"
        );
    }
}

#[test]
fn session_that_speaks_again_is_trusted_again() {
    let mut peer = heard();
    assert_eq!(wait(&mut peer), (at(500), Output::Silent));
    assert_eq!(speak_again(&mut peer, at(610)), [Output::Heard]);
    assert_eq!(peer.handle(at(620), ALIVE), []);
    assert_eq!(peer.suspect_at(), Some(at(620).after(LIMIT * 2)));
}

#[test]
fn suspicion_is_reported_once() {
    let mut peer = heard();
    wait(&mut peer);
    for _ in 0..100 {
        let decided = peer.timeout(peer.due());
        assert!(!decided.contains(&Output::Silent));
        let decided = peer.handle(peer.due(), Input::Closed);
        assert_eq!(decided, [Output::Close]);
    }
}

/// Closes the connection of a session that is heard, and lets it speak again `later`, when it is suspected.
fn fall_silent(peer: &mut Peer, now: Time, later: Duration) -> (Duration, Time) {
    let closed = peer.handle(now, Input::Closed);
    assert_eq!(closed[0], Output::Close);
    let suspected = match closed.get(1) {
        Some(output) => {
            assert_eq!(*output, Output::Silent);
            now
        }
        None => wait(peer).0,
    };
    while !matches!(peer.link, Link::Closed(_)) {
        peer.timeout(peer.due());
    }
    let again = peer.due().max(suspected.after(later));
    peer.timeout(again);
    peer.handle(again, Input::Connected);
    assert_eq!(peer.handle(again, ALIVE), [Output::Heard]);
    (suspected.since(now), again)
}

#[test]
fn each_wrong_suspicion_doubles_the_wait_up_to_a_minute() {
    let mut peer = heard();
    let (mut now, mut waits) = (Time::ZERO, Vec::new());
    for _ in 0..9 {
        let (waited, again) = fall_silent(&mut peer, now, MS);
        waits.push(waited.as_millis());
        now = again;
    }
    let doubled = [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000];
    assert_eq!(waits, [&[0][..], &doubled].concat());
}

#[test]
fn silence_waits_too_after_a_wrong_suspicion() {
    let mut peer = heard();
    assert_eq!(wait(&mut peer), (at(500), Output::Silent));
    assert_eq!(speak_again(&mut peer, at(610)), [Output::Heard]);
    let suspected = wait(&mut peer);
    assert_eq!(suspected, (at(610).after(LIMIT * 2), Output::Silent));
}

#[test]
fn wrong_suspicions_are_forgotten_after_a_minute_of_signs_without_a_gap() {
    let mut peer = heard();
    wait(&mut peer);
    speak_again(&mut peer, at(1_000));
    for millis in (1_200..=60_800).step_by(200) {
        peer.handle(at(millis), ALIVE);
    }
    assert_eq!(peer.suspect_at(), Some(at(60_800).after(LIMIT * 2)));
    // The minute begins again.
    peer.handle(at(60_850), Input::Closed);
    speak_again(&mut peer, at(61_000));
    for millis in (61_200..121_000).step_by(200) {
        peer.handle(at(millis), ALIVE);
        let suspected = at(millis).after(LIMIT * 2);
        assert_eq!(peer.suspect_at(), Some(suspected));
    }
    peer.handle(at(121_000), ALIVE);
    assert_eq!(peer.suspect_at(), Some(at(121_000).after(LIMIT)));
}

#[test]
fn jitter_takes_up_to_a_quarter_of_a_wait() {
    let wait_with = |random| {
        let mut peer = with_jitter(random);
        peer.handle(at(0), Input::Closed);
        let now = peer.due();
        speak_again(&mut peer, now);
        wait(&mut peer).0.since(now)
    };
    assert_eq!(wait_with(0), LIMIT * 2);
    assert_eq!(wait_with(1 << 63), LIMIT * 7 / 4);
    let most = wait_with(u64::MAX);
    assert!(
        most >= LIMIT * 3 / 2 && most < LIMIT * 3 / 2 + MS,
        "{most:?}"
    );
}

#[test]
fn pause_of_the_asker_is_no_silence() {
    let mut peer = heard();
    let now = at(30_000);
    assert_eq!(peer.timeout(now), []);
    assert_eq!(wait(&mut peer), (now.after(LIMIT), Output::Silent));
}

#[test]
fn connection_attempts_are_limited_in_time_and_become_rare() {
    let mut peer = new();
    let mut pauses = Vec::new();
    let mut begun = Time::ZERO;
    for _ in 0..9 {
        let given_up = peer.due();
        assert_eq!(given_up, begun.after(FIRST_REPLY));
        assert_eq!(peer.timeout(given_up)[0], Output::Close);
        begun = peer.due();
        pauses.push(begun.since(given_up).as_millis());
        assert_eq!(peer.timeout(begun), [Output::Connect]);
    }
    assert_eq!(pauses, [50, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
    peer.handle(begun, Input::Connected);
    peer.handle(begun, ALIVE);
    peer.handle(begun, Input::Closed);
    assert_eq!(peer.due(), begun.after(RECONNECT));
}

#[test]
fn connection_without_replies_is_made_again() {
    let mut peer = new();
    peer.handle(at(0), Input::Connected);
    assert_eq!(peer.due(), at(1_000));
    assert_eq!(peer.timeout(at(1_000)), [Output::Close, Output::Silent]);
    assert_eq!(peer.timeout(at(1_050)), [Output::Connect]);
}

/// Draws events at random and holds the decisions against what the caller knows.
#[test]
fn decisions_fit_together_in_every_order_of_events() {
    let mut random = fastrand::Rng::with_seed(42);
    for _ in 0..2_000 {
        let mut jitter = random.fork();
        let lead = Duration::from_millis(random.u64(0..5_000));
        let mut now = at(random.u64(0..1_000));
        let jitter = std::sync::Mutex::new(move || jitter.u64(..));
        let draw = Box::new(move || jitter.lock().unwrap()());
        let mut peer = Peer::new(now, lead, draw);
        let (mut link, mut silent) = (None, false);
        for _ in 0..200 {
            let replies = [
                Reply::Alive,
                Reply::Alive,
                Reply::Alive,
                Reply::Unknown,
                Reply::Busy,
            ];
            let input = match (link, random.u8(0..4)) {
                (Some(_), 0) => Some(Input::Closed),
                (Some(false), 1) => Some(Input::Connected),
                (Some(true), 1 | 2) => Some(Input::Replied(*random.choice(&replies).unwrap())),
                _ => None,
            };
            let decided = if let Some(input) = input {
                now = now.after(MS * random.u32(0..300));
                if input == Input::Connected {
                    link = Some(true);
                }
                peer.handle(now, input)
            } else {
                now = now.max(peer.due());
                peer.timeout(now)
            };
            for output in decided {
                match output {
                    Output::Connect => assert_eq!(link.replace(false), None),
                    Output::Close => assert!(link.take().is_some()),
                    Output::Silent => {
                        assert!(!std::mem::replace(&mut silent, true) && input != Some(ALIVE));
                    }
                    Output::Heard => {
                        assert!(std::mem::take(&mut silent) && input == Some(ALIVE));
                    }
                }
            }
        }
    }
}

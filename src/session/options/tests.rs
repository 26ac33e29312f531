//! Tests which options are refused, and which times follow from the TTL.

use super::*;
use eldest_core::time::Time;

fn refused(options: SessionOptions) -> String {
    let error = options.settle().err().expect("refused");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    error.to_string()
}

#[test]
fn the_defaults_work_for_every_ttl_that_is_allowed() {
    for ttl in 2..=300 {
        let options = SessionOptions::new("n").ttl(Duration::from_secs(ttl));
        let settings = options.settle().expect("defaults scale with the ttl");
        assert_eq!(
            settings.survives(ETCD_ELECTION_TIMEOUT),
            ttl >= 4,
            "ttl {ttl}"
        );
    }
}

const PAGE: &str = include_str!("../../../docs/ttl.md");

/// Formats seconds as the page does: in hundredths, rounded down.
fn seconds(duration: Duration) -> String {
    // A duration a nanosecond below a hundredth comes from an earlier rounding.
    let hundredths = (duration + Duration::from_nanos(10)).as_millis() / 10;
    let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn on_the_page(first: &str, columns: &[Duration]) {
    let columns: Vec<String> = columns.iter().map(|column| seconds(*column)).collect();
    let row = format!("| {first}{} |", columns.join(" | "));
    assert!(PAGE.lines().any(|line| line == row), "missing: {row}");
}

/// Finds the longest survivable change of etcd's leader by trying.
fn change(settings: &Settings) -> Duration {
    let survived = |ms: &u64| settings.survives(Duration::from_millis(*ms));
    let change = (0..300_000).take_while(survived).last().unwrap_or_default();
    Duration::from_millis(change)
}

/// Returns when work must stop, and until when a term is valid, by the lease's clock.
fn ends(settings: &Settings) -> (Duration, Duration) {
    use eldest_core::kv::Header;
    use eldest_core::lease::LeaseClock;
    let header = Header {
        cluster: 1,
        member: 1,
        revision: 1,
        term: 1,
    };
    let clock = LeaseClock::granted(settings.trust, Time::ZERO, settings.ttl, header);
    let valid = clock.deadline().since(Time::ZERO);
    (valid.saturating_sub(settings.grace), valid)
}

#[test]
fn the_figures_on_the_page_of_ttls_are_those_of_the_code() {
    let half = Duration::from_millis(500);
    for ttl in [2, 3, 5, 10, 20, 30, 60, 120, 300].map(Duration::from_secs) {
        let settings = SessionOptions::new("n").ttl(ttl).settle().unwrap();
        let (stop, valid) = ends(&settings);
        let (margin, grace) = (settings.trust.margin, settings.grace);
        let request = settings.request_timeout;
        on_the_page(
            "",
            &[
                ttl,
                margin,
                grace,
                request,
                ttl / 3,
                stop,
                valid,
                ttl + half,
                change(&settings),
            ],
        );
    }
    for ms in [10, 40, 120, 250, 500] {
        let options = SessionOptions::new("n").wan(Duration::from_millis(ms));
        let settings = options.settle().unwrap();
        let (ttl, request) = (settings.ttl, settings.request_timeout);
        let (stop, _) = ends(&settings);
        // Follows the advice of etcd's documentation, and never goes below its defaults.
        let (heartbeat, timeout) = (ms.max(100), (ms * 10).max(1000));
        let first = format!("{ms} ms | {heartbeat} | {timeout} | ");
        let change = change(&settings);
        assert!(change >= Duration::from_millis(timeout), "{ms} ms");
        on_the_page(&first, &[ttl, request, stop, ttl + half, change]);
    }
    for (ttl, seconds) in [(4, 1), (7, 2)] {
        let survives = |ttl| {
            let options = SessionOptions::new("n").ttl(Duration::from_secs(ttl));
            options
                .settle()
                .unwrap()
                .survives(Duration::from_secs(seconds))
        };
        assert!(survives(ttl) && !survives(ttl - 1), "{ttl} s");
    }
}

#[test]
fn the_defaults_at_ten_seconds_are_those_documented() {
    let settings = SessionOptions::new("n").settle().unwrap();
    assert_eq!(settings.trust.margin, Duration::from_millis(500));
    assert_eq!(settings.grace, Duration::from_secs(2));
    assert_eq!(settings.request_timeout, Duration::from_millis(500));
}

#[test]
fn the_wan_preset_holds_for_every_distance_up_to_a_second() {
    for ms in [1, 40, 120, 300, 1000] {
        let options = SessionOptions::new("n").wan(Duration::from_millis(ms));
        let settings = options.settle().expect("a preset is valid");
        assert!(settings.survives(ETCD_ELECTION_TIMEOUT));
        assert!(settings.request_timeout >= Duration::from_millis(ms * 6));
    }
}

#[test]
fn a_round_trip_without_a_fitting_ttl_is_refused_with_the_rule() {
    let wan = |ms| SessionOptions::new("n").wan(Duration::from_millis(ms));
    for (ms, shown) in [(0, "round_trip is 0ns"), (4_951, "round_trip is 4.951s")] {
        let message = refused(wan(ms));
        assert!(message.contains(shown), "{message}");
        assert!(message.contains("at most 4.95s"), "{message}");
    }
    let message = refused(SessionOptions::new("n").wan(Duration::MAX));
    assert!(message.contains("at most 4.95s"), "{message}");
    assert!(wan(4_950).settle().is_ok());
    let message = refused(wan(3_000).ttl(Duration::from_secs(10)));
    assert!(message.contains("2 * 18.25s"), "{message}");
    assert!(message.contains("round_trip = 3s"), "{message}");
    let message = refused(
        wan(3_000)
            .ttl(Duration::from_secs(10))
            .grace(Duration::from_secs(9))
            .request_timeout(Duration::from_secs(1)),
    );
    assert!(!message.contains("round_trip"), "{message}");
}

#[test]
fn a_grace_too_long_for_the_ttl_is_refused_with_the_numbers() {
    let message = refused(SessionOptions::new("n").grace(Duration::from_secs(6)));
    assert!(
        message.contains("6s") && message.contains("9.99s"),
        "{message}"
    );
}

#[test]
fn a_time_of_any_length_is_refused_and_makes_nothing_panic() {
    let longest = [Duration::MAX, Duration::MAX / 2 + Duration::from_secs(1)];
    for time in longest {
        let options = || SessionOptions::new("n");
        for options in [
            options().grace(time),
            options().margin(time),
            options().request_timeout(time),
            options().grace(time).margin(time).request_timeout(time),
        ] {
            let message = refused(options);
            assert!(message.contains("must be at most ttl"), "{message}");
        }
    }
}

#[test]
fn a_ttl_outside_the_bounds_or_with_a_fraction_is_refused() {
    for ttl in [1000, 2500, 301_000] {
        let message = refused(SessionOptions::new("n").ttl(Duration::from_millis(ttl)));
        assert!(message.contains("whole seconds"), "{message}");
    }
}

#[test]
fn names_with_empty_levels_are_refused_with_the_rule() {
    for (name, rule) in [
        ("", "empty"),
        ("/a", "begin or end"),
        ("a/", "begin or end"),
        ("a//b", "'//'"),
        ("a\nb", "control"),
        ("~a", "begin with '~'"),
    ] {
        let message = check_name(name).unwrap_err().to_string();
        assert!(message.contains(rule), "{message}");
    }
    assert!(check_name(&"x".repeat(513)).is_err());
    assert!(check_name("billing/scheduler").is_ok());
    assert!(refused(SessionOptions::new("n").namespace("a/")).contains("namespace"));
    assert!(SessionOptions::new("n").namespace("").settle().is_ok());
    assert!(
        SessionOptions::new("n")
            .namespace("/services")
            .settle()
            .is_ok()
    );
    let slash = SessionOptions::new("n").namespace("/").settle().unwrap();
    assert_eq!(slash.prefix("x"), "/x/", "as Go programs like to name it");
    assert!(refused(SessionOptions::new("")).contains("identity"));
}

#[test]
fn exact_prefix_is_refused_only_where_its_keys_would_lie_elsewhere() {
    for (prefix, rule) in [
        ("", "empty"),
        ("/a/", "\"/a/\" must not end with '/'"),
        ("/", "must not end with '/'"),
        ("/a\0b", "control"),
        ("ns/~semaphore/s/3", "~semaphore"),
        ("other/~partitions/p/9", "~semaphore"),
        ("ns/~new/x", "~semaphore"),
    ] {
        let message = check_exact(prefix, "ns/").unwrap_err().to_string();
        assert!(message.contains(rule), "{message}");
    }
    for prefix in [
        "/golem/shard-manager/leader",
        "a",
        "a//b",
        "//a",
        "/~user/x",
    ] {
        assert!(check_exact(prefix, "ns/").is_ok(), "{prefix}");
    }
    assert!(check_exact(&"x".repeat(1025), "ns/").is_ok());
    assert!(check_exact(&"x".repeat(1026), "ns/").is_err());
    assert!(check_exact("~a", "").is_err());
}

#[test]
fn names_that_begin_alike_never_share_a_prefix() {
    // Complaint 8: `xy` and `xyz`.
    let settings = SessionOptions::new("n").settle().unwrap();
    assert!(!settings.prefix("xyz").starts_with(&settings.prefix("xy")));
}

#[test]
fn the_password_is_in_no_debug_output() {
    let options = SessionOptions::new("n").credentials(Credentials::new("u", "canary-secret"));
    assert!(!format!("{options:?}").contains("canary-secret"));
    let credentials = Credentials::new("u", "canary-secret");
    assert_eq!(
        format!("{credentials:?}"),
        r#"Credentials { user: "u", .. }"#
    );
}

#[test]
fn times_of_a_session_follow_from_its_time_to_answer() {
    let ms = Duration::from_millis;
    let options = SessionOptions::new("n").namespace("ns");
    for (challenges, [grace, request, interval, margin], change) in [
        (Challenges::steady(), [400, 500, 300, 200], 2100),
        (Challenges::fast(), [40, 100, 133, 20], 0),
    ] {
        let settings = options.clone().challenges(challenges).settle().unwrap();
        let config = settings.core_config("a:1");
        let allowed = config.challenges.as_ref().unwrap();
        let times = [
            config.grace,
            settings.challenge_timeout(),
            allowed.interval,
            allowed.trust.margin,
        ];
        let times = times.map(|time| time.as_millis());
        assert_eq!(times, [grace, request, interval, margin]);
        // The other requests of a fast session have their usual timeout.
        assert_eq!(config.request_timeout, ms(500));
        assert_eq!(allowed.grace, config.grace);
        assert_eq!(&*allowed.sessions, b"ns/~session/");
        assert_eq!(&*allowed.address, b"a:1");
        // A read that is sent after the change is answered before the token is cancelled.
        let leads = allowed.trust.deadline(Time::ZERO, allowed.lead);
        let late = allowed.interval * 2 + ms(change) + settings.challenge_timeout();
        assert_eq!(Time::ZERO.after(late + config.grace) <= leads, change > 0);
    }
    let config = options.settle().unwrap().core_config("");
    assert!(config.challenges.is_none());
    let everywhere = SessionOptions::new("n").namespace("").settle().unwrap();
    assert_eq!(everywhere.anchors(), b"~session/");
}

#[test]
fn time_to_answer_that_does_not_fit_is_refused_with_the_rule() {
    let within = |ms| SessionOptions::new("n").challenges(Challenges::answer_within(ms));
    let ms = Duration::from_millis;
    assert!(within(ms(200)).settle().is_ok());
    assert!(within(ms(9_999)).settle().is_ok());
    assert!(within(ms(1200)).wan(ms(100)).settle().is_ok());
    assert!(within(ms(400)).request_timeout(ms(900)).settle().is_ok());
    for (options, rule) in [
        (within(ms(199)), "within 199ms; that time must be at least"),
        (within(ms(10_000)), "less than the ttl = 10s"),
        (within(ms(1200)).wan(ms(101)), "round trips = 303ms"),
        (within(ms(400)).grace(ms(50)), "+ 50ms + 20ms = 403.3"),
        (within(ms(400)).clock_drift_ppm(100_000), "drift = 360ms"),
    ] {
        let message = refused(options);
        assert!(message.contains(rule), "{message}");
    }
}

#[test]
fn addresses_of_challenges_are_refused_with_the_rule() {
    let any: std::net::SocketAddr = ([0, 0, 0, 0], 7400).into();
    let listening = || Challenges::steady().listen(any);
    let with = |challenges| SessionOptions::new("n").challenges(challenges);
    for (challenges, rule) in [
        (
            Challenges::steady().advertise("a:1"),
            "advertise \"a:1\", but the session listens nowhere",
        ),
        (
            listening(),
            "listen at 0.0.0.0:7400, to which no other session can connect",
        ),
        (
            listening().listen((std::net::Ipv6Addr::UNSPECIFIED, 7400)),
            "listen at [::]:7400",
        ),
    ] {
        let message = refused(with(challenges));
        assert!(message.contains(rule), "{message}");
    }
    for place in [
        "",
        "a",
        ":1",
        "a:",
        "a:0",
        "a:+1",
        "a:65536",
        "a b:1",
        "a:1:2",
        "::1:7400",
        "[::]:1",
        "0.0.0.0:1",
        "[a]:1",
        "http://a:1",
        "a:1/",
    ] {
        let message = refused(with(listening().advertise(place)));
        let rule = format!("advertise {place:?}; it must be host:port");
        assert!(message.contains(&rule), "{message}");
    }
    for place in ["a:1", "10.0.0.1:65535", "[fd00::1]:7400", "node-a.x_y:7400"] {
        let challenges = listening().advertise(place);
        assert_eq!(challenges.advertised(any), place);
        with(challenges).settle().unwrap();
    }
    let local = listening().listen(([127, 0, 0, 1], 0));
    with(local.clone()).settle().unwrap();
    assert_eq!(local.advertised(([127, 0, 0, 1], 9).into()), "127.0.0.1:9");
}

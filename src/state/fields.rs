//! Reads and writes the fields that sessions add to announcements: when a term began and in which one the leader serves, that a
//! candidate is warm, its version, and which partitions a member is ready for or that it takes none.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::error::{Error, ErrorKind, Result};
use eldest_core::version::Version;

/// The largest announcement, in bytes as written to etcd. All candidates read every announcement.
pub(crate) const MAX_ANNOUNCEMENT: usize = 32 * 1024;

/// The last moment that programs can format as a date: the end of the year 9999, in milliseconds since 1970.
pub(super) const LAST: u64 = 253_402_300_799_999;

/// Reads a moment, if a date can show it.
pub(super) fn unix_ms(value: Option<&Value>) -> Option<u64> {
    value?.as_u64().filter(|ms| *ms <= LAST)
}

/// Returns `true` if the bytes of the name occur. This costs a hundredth of parsing, and most announcements lack the
/// name.
pub(super) fn mentions(value: &[u8], name: &str) -> bool {
    value
        .windows(name.len())
        .any(|part| part == name.as_bytes())
}

/// Returns the JSON object of an announcement, if it is one of a length that is allowed.
pub(super) fn object(value: &[u8]) -> Option<Map<String, Value>> {
    if value.first() != Some(&b'{') || value.len() > MAX_ANNOUNCEMENT {
        return None;
    }
    match serde_json::from_slice(value).ok()? {
        Value::Object(object) => Some(object),
        _ => None,
    }
}

/// The field in which a leader announces the beginning of its term. It has the fencing token of the term, because the
/// value may be written to a later key.
pub(super) const LEADS: &str = "leads";

/// Returns the announcement of a leader whose term began at `since`, counted from 1970. `None`: the value is not a JSON
/// object of ours and stays unchanged, or it would be too large.
pub(crate) fn leading(value: &[u8], token: i64, since: Duration) -> Option<Arc<[u8]>> {
    let since = u64::try_from(since.as_millis()).ok()?;
    let leads = serde_json::json!({ "token": token, "since_unix_ms": since });
    with(value, LEADS, leads)
}

/// Returns the object of an announcement that a session of this library wrote.
fn of_a_session(value: &[u8]) -> Option<Map<String, Value>> {
    let object = object(value)?;
    unix_ms(object.get("since_unix_ms"))?;
    Some(object)
}

/// Returns a field that only sessions of this library put into announcements, if the value has it.
fn field(value: &[u8], name: &str) -> Option<Value> {
    if !mentions(value, name) {
        return None;
    }
    of_a_session(value)?.remove(name)
}

/// Returns the announcement with that field. `None`: the value is not a JSON object of ours, or it would be too large.
fn with(value: &[u8], field: &str, content: Value) -> Option<Arc<[u8]>> {
    let mut object = of_a_session(value)?;
    object.insert(field.into(), content);
    let value = Value::Object(object).to_string().into_bytes();
    (value.len() <= MAX_ANNOUNCEMENT).then(|| value.into())
}

/// The field with the fencing token of the term in which a leader serves. A candidate whose election has a limit for
/// that has the field from the beginning, with 0.
const SERVES: &str = "serves";

/// Returns `true` if a leader with this announcement serves in the term with that fencing token.
pub(super) fn serves_in(value: &[u8], token: i64) -> bool {
    if !mentions(value, SERVES) {
        return true;
    }
    let object = object(value);
    let said = object
        .as_ref()
        .and_then(|object| object.get(SERVES)?.as_i64());
    said.is_none_or(|term| term == token)
}

/// Returns the announcement of a leader that serves in the term with that fencing token. `None`: the value is not a JSON
/// object of ours, or it would be too large.
pub(crate) fn serving(value: &[u8], token: i64) -> Option<Arc<[u8]>> {
    with(value, SERVES, token.into())
}

/// Returns the announcement of a candidate that does not serve yet. Refuses a value in which it could not say later that
/// it serves.
pub(crate) fn not_serving(value: &[u8]) -> Result<Arc<[u8]>> {
    if let (Some(value), Some(_)) = (serving(value, 0), serving(value, i64::MAX)) {
        return Ok(value);
    }
    let longest = format!(",{SERVES:?}:{}", i64::MAX).len();
    Err(no_room(
        value,
        longest,
        "in an election with",
        "serving_within",
    ))
}

/// Returns the error for an announcement that has no room for the field that the option needs, in that many bytes.
/// `place` is the beginning of the words that name the option.
fn no_room(value: &[u8], longest: usize, place: &str, option: &str) -> Error {
    let message = match of_a_session(value) {
        Some(_) => format!(
            "the announcement has {} bytes; at most {} are allowed {place} `{option}`, which adds a field to it",
            value.len(),
            MAX_ANNOUNCEMENT - longest
        ),
        None => format!(
            "the announcement is a plain string or bytes, and `{option}` adds a field to it: announce an \
             `Announcement::new`, or do not set `{option}`"
        ),
    };
    Error::new(ErrorKind::InvalidInput, message)
}

/// The field that says whether a waiting candidate is warm. A candidate of an election with `warm_within` has the field
/// from the beginning.
const WARM: &str = "warm";

/// Returns the announcement of a candidate that is warm, or not. Refuses a value without room for the field.
pub(crate) fn warm(value: &[u8], is_warm: bool) -> Result<Arc<[u8]>> {
    let longest = format!(",{WARM:?}:false").len();
    with(value, WARM, is_warm.into())
        .ok_or_else(|| no_room(value, longest, "in an election with", "warm_within"))
}

/// Returns true if a waiting candidate with this announcement is warm; `None` if it does not say.
pub(super) fn warmth(value: &[u8]) -> Option<bool> {
    field(value, WARM)?.as_bool()
}

/// Returns true if a candidate with this announcement prepares for its terms and is not warm.
pub(crate) fn is_cold(value: &[u8]) -> bool {
    warmth(value) == Some(false)
}

/// The field with the version that a candidate requires. The mark of an election has it, too.
pub(super) const VERSION: &str = "version";

/// Returns the announcement of a candidate with that version. Refuses a value without room for the field.
pub(crate) fn versioned(value: &[u8], version: Version) -> Result<Arc<[u8]>> {
    let version = version.to_string();
    let longest = format!(",{VERSION:?}:{version:?}").len();
    with(value, VERSION, version.into())
        .ok_or_else(|| no_room(value, longest, "in an election with", "require_version"))
}

/// Returns the version that a candidate announces. `None`: it names none in our spelling, and is older than every version.
pub(crate) fn version(value: &[u8]) -> Option<Version> {
    field(value, VERSION)?.as_str()?.parse().ok()
}

/// The field of a member of partitions that prepares for them: the numbers of those for which it is ready. A member that
/// prepares has the field from the beginning.
const READY: &str = "ready";

/// The largest number of partitions for which a member prepares, or is ready, at a time: the announcement has room for
/// their numbers.
pub(crate) const READY_AT_ONCE: usize = 64;

/// The bytes for their numbers.
const ROOM_FOR_NUMBERS: usize = "65535,".len() * READY_AT_ONCE;

/// Returns the announcement of a member that is ready for these partitions. Refuses a value without room for the field.
pub(crate) fn ready_for(value: &[u8], ready: &BTreeSet<u32>) -> Result<Arc<[u8]>> {
    let with_numbers = |ready: &BTreeSet<u32>| {
        let listed: Vec<u32> = ready.iter().copied().collect();
        with(value, READY, listed.into())
    };
    // The value may list other numbers already, so only the value without numbers has a length that counts.
    with_numbers(&BTreeSet::new())
        .filter(|none| none.len() + ROOM_FOR_NUMBERS <= MAX_ANNOUNCEMENT)
        .and_then(|_| with_numbers(ready))
        .ok_or_else(|| {
            let longest = format!(",{READY:?}:[]").len() + ROOM_FOR_NUMBERS;
            no_room(value, longest, "with", "prepare")
        })
}

/// Returns the partitions for which a member with this announcement is ready; `None` if it prepares for none.
pub(crate) fn ready(value: &[u8]) -> Option<BTreeSet<u32>> {
    let ready = field(value, READY)?;
    let numbers = ready.as_array()?.iter();
    Some(
        numbers
            .filter_map(|number| u32::try_from(number.as_u64()?).ok())
            .collect(),
    )
}

/// Returns `true` if two values differ at most in the beginning of a term, in the term in which the leader serves, in
/// whether the candidate is warm, in its version, and in the partitions for which a member is ready: sessions announce
/// these by themselves.
pub(crate) fn say_the_same(one: &[u8], other: &[u8]) -> bool {
    let without = |value| {
        let mut object = object(value)?;
        object.remove(LEADS);
        object.remove(SERVES);
        object.remove(WARM);
        object.remove(VERSION);
        object.remove(READY);
        Some(object)
    };
    one == other || without(one).is_some_and(|one| Some(one) == without(other))
}

/// Returns the announcement of a candidate whose present key was put at `since`, counted from 1970. `None`: the value
/// is not a JSON object of ours and stays unchanged.
pub(crate) fn in_queue_since(value: &[u8], since: Duration) -> Option<Arc<[u8]>> {
    let since = u64::try_from(since.as_millis()).ok()?;
    with(value, "since_unix_ms", since.into())
}

pub(super) fn leads(object: &Map<String, Value>) -> Option<(i64, u64)> {
    let term = object.get(LEADS)?;
    Some((
        term.get("token")?.as_i64()?,
        unix_ms(term.get("since_unix_ms"))?,
    ))
}

/// The field of a member of partitions that takes none while others do.
pub(super) const ASIDE: &str = "evacuated";

/// Returns the announcement of a member whose data centre is evacuated, or that hands over its partitions.
pub(crate) fn set_aside(value: &[u8]) -> Arc<[u8]> {
    let Some(mut object) = object(value) else {
        return value.into();
    };
    object.insert(ASIDE.into(), true.into());
    Value::Object(object).to_string().into_bytes().into()
}

/// Checks that a member with this announcement can announce that it hands over its partitions: there must be room for that
/// field beside the numbers of the partitions for which the member is ready.
pub(crate) fn check_hand_over(value: &[u8]) -> Result<()> {
    let longest = format!(",{ASIDE:?}:true").len() + ROOM_FOR_NUMBERS;
    let has_room = with(value, ASIDE, true.into())
        .is_some_and(|aside| aside.len() + ROOM_FOR_NUMBERS <= MAX_ANNOUNCEMENT);
    if has_room {
        return Ok(());
    }
    Err(no_room(value, longest, "with", "hand_over_within"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Announcement;
    use crate::state::announcement::tests::{NOW, written};
    use crate::state::announcement::{home, share};
    use std::ops::RangeInclusive;
    use std::time::UNIX_EPOCH;

    #[test]
    fn only_a_member_that_prepares_says_for_which_partitions_it_is_ready() {
        let value = written(&Announcement::new("node-a"));
        assert_eq!(ready(&value), None);
        let none = ready_for(&value, &BTreeSet::new()).unwrap();
        assert_eq!(ready(&none), Some(BTreeSet::new()));
        let three = ready_for(&none, &[7, 3, 65_535].into()).unwrap();
        assert_eq!(ready(&three), Some([3, 7, 65_535].into()));
        assert!(say_the_same(&value, &three));
        let odd = br#"{"identity":"a","since_unix_ms":1,"ready":[-1,"2",3,4294967296]}"#;
        assert_eq!(ready(odd), Some([3].into()));
        for foreign in [
            &b"ready"[..],
            br#"{"ready":[1]}"#,
            br#"{"since_unix_ms":1,"ready":1}"#,
        ] {
            assert_eq!(ready(foreign), None);
        }
    }

    /// Returns the longest accepted lengths, of which the first of the range is one and the last is not.
    fn longest(
        range: RangeInclusive<usize>,
        is_accepted: impl Fn(usize) -> bool,
    ) -> RangeInclusive<usize> {
        let (mut accepted, mut refused) = range.into_inner();
        assert!(is_accepted(accepted) && !is_accepted(refused));
        while refused - accepted > 1 {
            let middle = accepted.midpoint(refused);
            if is_accepted(middle) {
                accepted = middle;
            } else {
                refused = middle;
            }
        }
        accepted - 20..=accepted
    }

    #[test]
    fn an_announcement_that_is_accepted_has_room_for_all_numbers() {
        let most: BTreeSet<u32> = (0..READY_AT_ONCE as u32).map(|n| 65_535 - n).collect();
        let with_length = |length: usize| {
            let large = Announcement::new("a").with_metadata("m", "x".repeat(length));
            written(&large)
        };
        let accepted = |length: usize| ready_for(&with_length(length), &BTreeSet::new());
        for length in longest(30_000..=32_700, |length| accepted(length).is_ok()) {
            let full = ready_for(&accepted(length).unwrap(), &most);
            assert!(full.is_ok(), "{length}");
        }
        let error = ready_for(b"node-a", &BTreeSet::new()).unwrap_err();
        assert!(
            error.to_string().contains("do not set `prepare`"),
            "{error}"
        );
    }

    #[test]
    fn a_leader_announces_when_its_term_began_and_nothing_else_differs() {
        let value = written(&Announcement::new("a").with_metadata("k", "v"));
        let announced = leading(&value, 7, NOW).unwrap();
        let read = Announcement::decode(&announced);
        assert_eq!(read.leads_since(7), Some(UNIX_EPOCH + NOW));
        assert_eq!(read.leads_since(8), None, "of another term");
        assert_eq!(read.since(), Announcement::decode(&value).since());
        assert_eq!(written(&read), value, "it is not announced again");
        assert!(say_the_same(&value, &announced) && !say_the_same(&value, b"a"));
        for plain in [&b"node-a"[..], br#"{"identity":"a"}"#, b"\xff"] {
            assert_eq!(leading(plain, 7, NOW), None, "{plain:?}");
        }
        let full = "x".repeat(MAX_ANNOUNCEMENT - 80);
        let full = written(&Announcement::new("a").with_metadata("k", &full[..full.len() - 10]));
        assert_eq!(leading(&full, 7, NOW), None, "{}", full.len());
    }

    #[test]
    fn leader_announces_the_one_term_in_which_it_serves() {
        let value = written(&Announcement::new("a").with_metadata("k", "v"));
        assert!(serves_in(&value, 7), "without a limit");
        let unready = not_serving(&value).unwrap();
        let said = serving(&unready, 7).unwrap();
        for (value, wanted) in [(&unready, [false, false]), (&said, [true, false])] {
            assert_eq!([serves_in(value, 7), serves_in(value, 8)], wanted);
        }
        assert!(say_the_same(&unready, &said) && say_the_same(&value, &said));
        let leads = leading(&said, 7, NOW).unwrap();
        assert!(serves_in(&leads, 7) && !serves_in(&leads, 8));
        assert_eq!(written(&Announcement::decode(&leads)), value);
        for foreign in [&b"node-a"[..], br#"{"serves":"x"}"#, b"serves"] {
            assert!(serves_in(foreign, 7), "{foreign:?}");
        }
    }

    #[test]
    fn announcement_that_cannot_say_whether_its_leader_serves_is_refused() {
        for plain in [&b"node-a"[..], br#"{"identity":"a"}"#, b"\xff"] {
            let error = not_serving(plain).unwrap_err();
            assert!(error.to_string().contains("plain string"), "{error}");
        }
        let of = |bytes| written(&Announcement::new("a").with_metadata("k", "x".repeat(bytes)));
        let frame = of(0).len();
        let most = MAX_ANNOUNCEMENT - 29;
        let value = not_serving(&of(most - frame)).unwrap();
        assert!(serving(&value, i64::MAX).is_some());
        let error = not_serving(&of(most + 1 - frame)).unwrap_err();
        let text = format!("has {} bytes; at most {most} are", most + 1);
        assert!(error.to_string().contains(&text), "{error}");
    }

    #[test]
    fn candidate_says_whether_it_is_warm_in_one_field() {
        let value = written(&Announcement::new("a").with_metadata("k", "v"));
        assert_eq!((warmth(&value), is_cold(&value)), (None, false));
        for is_warm in [true, false] {
            let said = warm(&value, is_warm).unwrap();
            assert_eq!((warmth(&said), is_cold(&said)), (Some(is_warm), !is_warm));
            assert!(say_the_same(&value, &said));
            assert_eq!(written(&Announcement::decode(&said)), value);
        }
        for foreign in [
            &b"warm"[..],
            br#"{"warm":"false"}"#,
            br#"{"identity":"warm"}"#,
        ] {
            assert_eq!(warmth(foreign), None, "{foreign:?}");
        }
        let of = |bytes| written(&Announcement::new("a").with_metadata("k", "x".repeat(bytes)));
        let most = MAX_ANNOUNCEMENT - br#","warm":false"#.len();
        let frame = of(0).len();
        assert!(warm(&of(most - frame), false).is_ok());
        let error = warm(&of(most + 1 - frame), false).unwrap_err();
        assert!(
            error.to_string().contains(&format!("at most {most}")),
            "{error}"
        );
    }

    #[test]
    fn candidate_announces_its_version_in_one_field() {
        let value = written(&Announcement::new("a").with_metadata("k", "v"));
        assert_eq!(version(&value), None);
        let two: Version = "2.0".parse().unwrap();
        let said = versioned(&value, two).unwrap();
        assert_eq!(version(&said), Some(two));
        assert!(say_the_same(&value, &said));
        assert_eq!(written(&Announcement::decode(&said)), value);
        for foreign in [
            &b"version"[..],
            br#"{"since_unix_ms":5,"version":2}"#,
            br#"{"since_unix_ms":5,"version":"2.x"}"#,
            br#"{"identity":"foreign","version":"2.0"}"#,
            br#"{"identity":"version"}"#,
            br#"{"version":"2""#,
        ] {
            assert_eq!(version(foreign), None, "{foreign:?}");
        }
        let error = versioned(b"node-a", two).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("`require_version`"), "{error}");
    }

    #[test]
    fn rejoined_candidate_announces_when_its_present_key_was_created() {
        let value = written(&Announcement::new("a").with_address("a:1"));
        let later = NOW + Duration::from_secs(9);
        let read = Announcement::decode(&in_queue_since(&value, later).unwrap());
        assert_eq!(read.since(), Some(UNIX_EPOCH + later));
        assert_eq!(read.address(), Some("a:1"));
        assert_eq!(in_queue_since(b"node-a", later), None);
    }

    #[test]
    fn no_foreign_beginning_of_a_term_is_later_than_can_be_shown() {
        for leads in [
            format!(r#"{{"token":7,"since_unix_ms":{}}}"#, LAST + 1),
            r#"{"token":7,"since_unix_ms":-1}"#.to_owned(),
            r#"{"token":"7","since_unix_ms":1}"#.to_owned(),
            r#"{"since_unix_ms":1}"#.to_owned(),
            "7".to_owned(),
        ] {
            let value = format!(r#"{{"identity":"a","leads":{leads}}}"#);
            let read = Announcement::decode(value.as_bytes());
            assert_eq!(
                (read.identity(), read.leads_since(7)),
                ("a", None),
                "{leads}"
            );
        }
    }

    #[test]
    fn set_aside_candidate_announces_it_and_nothing_else_differs() {
        let value = written(&Announcement::new("evacuated").with_data_center("dc1"));
        assert!(!share(&value).aside && !share(b"evacuated").aside);
        let aside = set_aside(&value);
        assert!(share(&aside).aside);
        assert_eq!(Announcement::decode(&aside), Announcement::decode(&value));
        assert_eq!(home(&aside), home(&value));
    }

    #[test]
    fn member_that_may_hand_over_has_room_to_announce_it() {
        let most: BTreeSet<u32> = (0..READY_AT_ONCE as u32).map(|n| 65_535 - n).collect();
        let with_length = |length: usize| {
            let large = Announcement::new("a").with_metadata("m", "x".repeat(length));
            ready_for(&written(&large), &BTreeSet::new()).unwrap()
        };
        for length in longest(30_000..=32_300, |length| {
            check_hand_over(&with_length(length)).is_ok()
        }) {
            let full = set_aside(&ready_for(&with_length(length), &most).unwrap());
            assert!(share(&full).aside, "{length}");
        }
        let error = check_hand_over(b"node-a").unwrap_err();
        assert!(
            error.to_string().contains("do not set `hand_over_within`"),
            "{error}"
        );
    }
}

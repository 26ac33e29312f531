//! Writes the anchor of a session that allows challenges into the announcements of its candidates, and reads it.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::fields::{LEADS, MAX_ANNOUNCEMENT, mentions, object, unix_ms};
use crate::error::{Error, ErrorKind, Result};
use eldest_core::challenge::Announced;
use eldest_core::kv::LOCK;

/// The field with the anchor's full key and create revision.
const ANCHOR: &str = "anchor";
/// The bytes that the anchor, and a mark of a member that is set aside, may add to an announcement.
const ROOM: usize = 1280;

/// Splits a value into the sign of a lock, which may be empty, and the announcement.
fn split(value: &[u8]) -> (&[u8], &[u8]) {
    match value.strip_prefix(LOCK) {
        Some(announcement) => (LOCK, announcement),
        None => (&[], value),
    }
}

/// Returns the object of an announcement of ours. Other values must not change, because other programs read them.
fn of_ours(announcement: &[u8]) -> Option<Map<String, Value>> {
    let object = object(announcement)?;
    unix_ms(object.get("since_unix_ms"))?;
    object.get("identity")?.as_str()?;
    Some(object)
}

/// Returns the value with that anchor. A value that is no JSON object of ours stays unchanged: its candidate is not
/// challenged.
pub(crate) fn announce(value: &[u8], own: &Announced) -> Arc<[u8]> {
    with(value, own).unwrap_or_else(|| value.into())
}

fn with(value: &[u8], own: &Announced) -> Option<Arc<[u8]>> {
    let (lock, announcement) = split(value);
    let mut object = of_ours(announcement)?;
    let key = std::str::from_utf8(&own.anchor).ok()?;
    let anchor = json!({ "key": key, "create_revision": own.create_revision });
    object.insert(ANCHOR.into(), anchor);
    let mut written = Value::Object(object.clone()).to_string();
    if written.len() > MAX_ANNOUNCEMENT {
        // The anchor matters more than the beginning of a term.
        object.remove(LEADS);
        written = Value::Object(object).to_string();
    }
    let fits = written.len() <= MAX_ANNOUNCEMENT;
    fits.then(|| [lock, written.as_bytes()].concat().into())
}

/// Returns the anchor that a candidate announces.
pub(crate) fn announced(value: &[u8]) -> Option<Announced> {
    let (_, announcement) = split(value);
    // Most announcements have no anchor, and need not be parsed.
    if !mentions(announcement, ANCHOR) {
        return None;
    }
    let object = object(announcement)?;
    let anchor = object.get(ANCHOR)?;
    Some(Announced {
        anchor: anchor.get("key")?.as_str()?.as_bytes().into(),
        create_revision: anchor.get("create_revision")?.as_i64()?,
    })
}

/// Returns the value with the anchor that `former` announces, if it announces one.
pub(crate) fn keep_anchor(value: Arc<[u8]>, former: &[u8]) -> Arc<[u8]> {
    match announced(former) {
        Some(anchor) => announce(&value, &anchor),
        None => value,
    }
}

/// Refuses an announcement that has no room for an anchor.
pub(crate) fn check_room(announcement: &[u8]) -> Result<()> {
    let most = MAX_ANNOUNCEMENT - ROOM;
    if announcement.len() <= most || of_ours(announcement).is_none() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidInput,
        format!(
            "the announcement has {} bytes; at most {most} are allowed in a session that allows challenges, because its \
             anchor is announced too",
            announcement.len()
        ),
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::state::{Announcement, in_queue_since, leading};

    const NOW: Duration = Duration::from_secs(1_700_000_000);

    fn anchor() -> Announced {
        Announced {
            anchor: (*b"ns/~session/7f").into(),
            create_revision: 9,
        }
    }

    fn written(announcement: &Announcement) -> Arc<[u8]> {
        announcement.encode(("node-a", Some("eu")), NOW).unwrap()
    }

    #[test]
    fn value_with_an_anchor_is_read_as_before() {
        let value = written(&Announcement::default().with_address("a:1"));
        let with_anchor = announce(&value, &anchor());
        assert_eq!(announced(&with_anchor), Some(anchor()));
        assert_eq!(announced(&value), None);
        let read = Announcement::decode(&with_anchor);
        assert_eq!(read, Announcement::decode(&value));
        // Another anchor replaces it.
        let mut next = anchor();
        next.create_revision = 10;
        assert_eq!(announced(&announce(&with_anchor, &next)), Some(next));
    }

    #[test]
    fn lock_announces_its_anchor_behind_the_sign_of_locks() {
        let value = [LOCK, &written(&Announcement::default())].concat();
        let with_anchor = announce(&value, &anchor());
        assert!(with_anchor.starts_with(LOCK));
        assert_eq!(announced(&with_anchor), Some(anchor()));
        assert_eq!(Announcement::decode(&with_anchor).identity(), "node-a");
    }

    #[test]
    fn value_of_another_form_announces_no_anchor() {
        for value in [
            &b""[..],
            b" ",
            b"node-a",
            b"\xff",
            b"{}",
            br#"{"identity":"a"}"#,
            br#"{"since_unix_ms":7,"more":"anchor"}"#,
        ] {
            assert_eq!(&*announce(value, &anchor()), value);
            assert_eq!(announced(value), None);
        }
    }

    #[test]
    fn later_values_of_a_candidate_keep_its_anchor() {
        let value = announce(&written(&Announcement::default()), &anchor());
        let leads = leading(&value, 7, NOW).unwrap();
        let again = in_queue_since(&leads, NOW).unwrap();
        assert_eq!(announced(&again), Some(anchor()));
        let plain = written(&Announcement::new("b"));
        let kept = keep_anchor(Arc::clone(&plain), &again);
        assert_eq!(announced(&kept), Some(anchor()));
        assert_eq!(keep_anchor(Arc::clone(&plain), b"node-a"), plain);
    }

    #[test]
    fn announcement_without_room_for_an_anchor_is_refused() {
        let of = |bytes| Announcement::default().with_metadata("m", "x".repeat(bytes));
        let frame = written(&of(0)).len();
        let most = of(MAX_ANNOUNCEMENT - ROOM - frame);
        let value = written(&most);
        check_room(&value).unwrap();
        let mut long = anchor();
        long.anchor = "\"".repeat(540).into_bytes().into();
        long.create_revision = i64::MAX;
        let leads = leading(&value, i64::MAX, NOW).unwrap();
        assert_eq!(announced(&announce(&leads, &long)), Some(long));
        let error = check_room(&written(&of(MAX_ANNOUNCEMENT - ROOM - frame + 1))).unwrap_err();
        assert!(error.to_string().contains("31489 bytes"), "{error}");
        check_room(&vec![b'x'; MAX_ANNOUNCEMENT]).unwrap();
    }
}

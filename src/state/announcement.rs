//! Encodes and decodes announcements: JSON objects, and the plain strings of foreign candidates, which are read as
//! identities.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

use super::fields::{ASIDE, MAX_ANNOUNCEMENT, leads, mentions, object, unix_ms};
use crate::error::{Error, ErrorKind, Result};
use twox_hash::XxHash3_64;

use eldest_core::kv::LOCK;
use eldest_core::partitions::{Center, Share};

/// The longest identity or address, in bytes.
pub(crate) const MAX_IDENTITY: usize = 1024;
/// The longest name of a data centre, in bytes.
pub(super) const MAX_DATA_CENTER: usize = 512;

/// The capacities that a member may announce.
const CAPACITIES: RangeInclusive<u32> = 1..=1000;

/// The public data of a candidate: its identity, its address, its data centre and any metadata.
///
/// An announcement without an identity has the session's identity. The announcement is written to etcd as a JSON
/// object, together with the time at which the candidate joined.
///
/// A string or bytes in place of an announcement are written unchanged. Go's `concurrency` package and `etcdctl elect`
/// write a plain string, which is read as an identity. If such clients read a node's announcement and expect its plain
/// identity, announce exactly that: `SessionOptions::announcement("node-a")`.
///
/// ```
/// use eldest::Announcement;
/// let me = Announcement::new("node-a")
///     .with_address("10.0.0.1:8080")
///     .with_data_center("frankfurt")
///     .with_metadata("zone", "a");
/// assert_eq!(me.address(), Some("10.0.0.1:8080"));
/// assert_eq!(me.metadata("zone"), Some("a"));
/// assert_eq!(Announcement::from("node-a").identity(), "node-a");
/// ```
#[must_use = "an announcement does nothing until it is announced"]
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Announcement {
    /// The identity; empty for the session's.
    identity: String,
    address: Option<String>,
    data_center: Option<String>,
    metadata: BTreeMap<String, String>,
    /// The capacity; `None`: one share.
    capacity: Option<u32>,
    spread: bool,
    since_unix_ms: Option<u64>,
    /// The fencing token of the last term whose beginning the candidate announced, and the time of that beginning.
    leads: Option<(i64, u64)>,
    /// The exact bytes to write instead of the fields: a plain string, or another format.
    verbatim: Option<Box<[u8]>>,
}

impl Announcement {
    /// Makes an announcement with that identity; [`Announcement::default`] has the session's.
    pub fn new(identity: impl Into<String>) -> Self {
        Self {
            identity: identity.into(),
            ..Self::default()
        }
    }

    /// Sets the address at which other nodes reach this one.
    pub fn with_address(mut self, address: impl Into<String>) -> Self {
        self.address = Some(address.into());
        self.structured()
    }

    /// Sets the data centre in which the candidate runs.
    pub fn with_data_center(mut self, data_center: impl Into<String>) -> Self {
        self.data_center = Some(data_center.into());
        self.structured()
    }

    /// Sets one item of metadata.
    pub fn with_metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self.structured()
    }

    /// Sets how many partitions the candidate takes as a member of [`Partitions`](crate::Partitions), in proportion to
    /// the others: a member with the capacity 2 takes twice as many as one with 1. It is from 1 to 1000; a member that
    /// announces none has 1. Elections, locks and semaphores ignore it.
    ///
    /// A capacity out of bounds is refused with `InvalidInput` where the announcement is used.
    pub fn with_capacity(mut self, capacity: u32) -> Self {
        self.capacity = Some(capacity);
        self.structured()
    }

    /// Requests that data centres own equal numbers of [`Partitions`](crate::Partitions), however many members each
    /// has. The members of a data centre divide its partitions by their capacities. The wish takes effect while every
    /// member announces it and a [data centre](Announcement::with_data_center); otherwise data centres do not count.
    /// Elections, locks and semaphores ignore it.
    ///
    /// An announcement with the wish and without a data centre, where the session has none either, is refused with
    /// `InvalidInput` where it is used.
    pub fn with_spread_over_data_centers(mut self) -> Self {
        self.spread = true;
        self.structured()
    }

    /// Switches to the JSON form, because the announcement now has more than the original string or bytes.
    fn structured(mut self) -> Self {
        self.verbatim = None;
        self
    }

    /// Returns the candidate's identity. When the announcement is written to etcd, the session's identity replaces an
    /// empty one.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Returns the candidate's address, if it announced one.
    pub fn address(&self) -> Option<&str> {
        self.address.as_deref()
    }

    /// Returns the candidate's data centre, if it announced one.
    pub fn data_center(&self) -> Option<&str> {
        self.data_center.as_deref()
    }

    /// Returns the capacity of a member of partitions; 1 if it announced none.
    pub fn capacity(&self) -> u32 {
        self.capacity.unwrap_or(1)
    }

    /// Returns `true` if the candidate asks that data centres own equal numbers of partitions.
    pub fn spreads_over_data_centers(&self) -> bool {
        self.spread
    }

    /// Returns one item of metadata.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }

    /// Returns all metadata, in order of the keys.
    pub fn iter_metadata(&self) -> impl Iterator<Item = (&str, &str)> {
        self.metadata.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }

    /// Returns when the candidate joined, by its own wall clock, if it announced that. The time has no effect on the
    /// election.
    pub fn since(&self) -> Option<SystemTime> {
        self.since_unix_ms
            .and_then(|ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms)))
    }

    /// Returns when the term with that fencing token began, by the leader's wall clock, if it announced that.
    pub(super) fn leads_since(&self, token: i64) -> Option<SystemTime> {
        let (term, ms) = self.leads?;
        let since = UNIX_EPOCH.checked_add(Duration::from_millis(ms));
        since.filter(|_| term == token)
    }

    /// Returns the bytes that a session with the given identity and data centre writes to etcd. `since` counts from
    /// 1970, and is added unless the announcement is a plain string.
    pub(crate) fn encode(
        &self,
        session: (&str, Option<&str>),
        since: Duration,
    ) -> Result<Arc<[u8]>> {
        if !CAPACITIES.contains(&self.capacity()) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "the capacity is {}; it must be from {} to {}",
                    self.capacity(),
                    CAPACITIES.start(),
                    CAPACITIES.end()
                ),
            ));
        }
        if self.spread && self.data_center.is_none() && session.1.is_none() {
            let message = "the announcement asks to spread partitions over data centres, and names no data centre: set one for the session or in the announcement";
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        self.check_lengths()?;
        let bytes = match &self.verbatim {
            Some(bytes) => bytes.to_vec(),
            None => self.written(session, since),
        };
        if bytes.len() > MAX_ANNOUNCEMENT {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "the announcement has {} bytes; at most {MAX_ANNOUNCEMENT} are allowed, \
                     because every candidate's announcement is read by all the others",
                    bytes.len()
                ),
            ));
        }
        Ok(bytes.into())
    }

    /// Refuses fields that others would truncate or ignore.
    fn check_lengths(&self) -> Result<()> {
        for (what, text, most) in [
            ("identity", Some(&self.identity), MAX_IDENTITY),
            ("address", self.address.as_ref(), MAX_IDENTITY),
            ("data centre", self.data_center.as_ref(), MAX_DATA_CENTER),
        ] {
            let bytes = text.map_or(0, String::len);
            if bytes > most {
                let message =
                    format!("the announced {what} has {bytes} bytes; at most {most} are allowed");
                return Err(Error::new(ErrorKind::InvalidInput, message));
            }
        }
        Ok(())
    }

    /// Returns the JSON object.
    pub(crate) fn written(&self, (session, home): (&str, Option<&str>), now: Duration) -> Vec<u8> {
        let identity = if self.identity.is_empty() {
            session
        } else {
            &self.identity
        };
        let mut object = Map::new();
        object.insert("identity".into(), identity.into());
        if let Some(address) = &self.address {
            object.insert("address".into(), address.clone().into());
        }
        if let Some(data_center) = self.data_center.as_deref().or(home) {
            object.insert(DATA_CENTER.into(), data_center.into());
        }
        if let Some(capacity) = self.capacity {
            object.insert(CAPACITY.into(), capacity.into());
        }
        if self.spread {
            object.insert(SPREAD.into(), DATA_CENTER.into());
        }
        let since = self
            .since_unix_ms
            .unwrap_or_else(|| u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
        object.insert("since_unix_ms".into(), since.into());
        if !self.metadata.is_empty() {
            let metadata = self
                .metadata
                .iter()
                .map(|(k, v)| (k.clone(), v.clone().into()));
            object.insert("metadata".into(), Value::Object(metadata.collect()));
        }
        Value::Object(object).to_string().into_bytes()
    }

    /// Reads the announcement of any candidate; never fails, because a foreign value is an identity. A field that is
    /// longer or later than ours may be is truncated or omitted, so that every announcement can be shown.
    pub(crate) fn decode(value: &[u8]) -> Self {
        let value = value.strip_prefix(LOCK).unwrap_or(value);
        let read = parse(value);
        read.unwrap_or_else(|| Self::new(bounded(String::from_utf8_lossy(value), MAX_IDENTITY)))
    }
}

/// Returns the text, truncated to `most` bytes.
pub(super) fn bounded(text: impl Into<String>, most: usize) -> String {
    let mut text = text.into();
    if text.len() > most {
        let ends = (0..=most).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(ends.unwrap_or(0));
    }
    text
}

/// The name of the data centre's field.
pub(super) const DATA_CENTER: &str = "data_center";

/// Returns the data centre that a candidate announces.
pub(crate) fn home(value: &[u8]) -> Option<Vec<u8>> {
    if !mentions(value, DATA_CENTER) {
        return None;
    }
    Some(parse(value)?.data_center?.into_bytes())
}

/// The field of a member of partitions that takes more than one share.
pub(super) const CAPACITY: &str = "capacity";

/// The field of a member of partitions that wants equal shares for each value of the field that it names.
pub(super) const SPREAD: &str = "spread";

/// Returns the share that a member announces. Every node counts a field that is not in our spelling as one share.
pub(crate) fn share(value: &[u8]) -> Share {
    let named = |name| mentions(value, name);
    // Most members announce none of these fields, and need not be parsed.
    let says = [ASIDE, CAPACITY, SPREAD].into_iter().any(named);
    let object = says.then(|| object(value)).flatten().unwrap_or_default();
    share_in(&object)
}

/// Reads the share from the fields of an announcement.
pub(super) fn share_in(object: &Map<String, Value>) -> Share {
    Share {
        aside: object.get(ASIDE).and_then(Value::as_bool) == Some(true),
        capacity: capacity(object).unwrap_or(1),
        center: center(object),
    }
}

fn center(object: &Map<String, Value>) -> Option<Center> {
    let name = object.get(DATA_CENTER)?.as_str()?;
    spreads(object).then(|| XxHash3_64::oneshot(name.as_bytes()))
}

fn spreads(object: &Map<String, Value>) -> bool {
    object.get(SPREAD).and_then(Value::as_str) == Some(DATA_CENTER)
}

fn capacity(object: &Map<String, Value>) -> Option<u32> {
    let capacity = u32::try_from(object.get(CAPACITY)?.as_u64()?).ok()?;
    CAPACITIES.contains(&capacity).then_some(capacity)
}

fn parse(value: &[u8]) -> Option<Announcement> {
    let object = object(value)?;
    let text = |name: &str| object.get(name).and_then(Value::as_str).map(str::to_owned);
    let metadata = object.get("metadata").and_then(Value::as_object);
    let short = |name: &str, most| text(name).filter(|text| text.len() <= most);
    Some(Announcement {
        identity: bounded(text("identity")?, MAX_IDENTITY),
        address: short("address", MAX_IDENTITY),
        data_center: short(DATA_CENTER, MAX_DATA_CENTER),
        metadata: metadata
            .into_iter()
            .flatten()
            .filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned())))
            .collect(),
        capacity: capacity(&object),
        spread: spreads(&object),
        since_unix_ms: unix_ms(object.get("since_unix_ms")),
        leads: leads(&object),
        verbatim: None,
    })
}

impl From<&str> for Announcement {
    fn from(text: &str) -> Self {
        text.as_bytes().to_vec().into()
    }
}

impl From<String> for Announcement {
    fn from(text: String) -> Self {
        text.into_bytes().into()
    }
}

impl From<Vec<u8>> for Announcement {
    /// Keeps the bytes unchanged, and reads them as every other node does.
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            verbatim: Some(bytes.clone().into()),
            ..Self::decode(&bytes)
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::state::fields::{LAST, set_aside};
    use proptest::prelude::*;

    pub(in crate::state) const NOW: Duration = Duration::from_secs(1_700_000_000);

    pub(in crate::state) fn written(announcement: &Announcement) -> Vec<u8> {
        announcement
            .encode(("session", None), NOW)
            .unwrap()
            .to_vec()
    }

    #[test]
    fn an_identity_alone_is_announced_with_its_joining_time() {
        let written = written(&Announcement::new("node-a"));
        let said = r#"{"identity":"node-a","since_unix_ms":1700000000000}"#;
        assert_eq!(String::from_utf8_lossy(&written), said);
        let read = Announcement::decode(&written);
        assert_eq!(read.since(), Some(UNIX_EPOCH + NOW));
    }

    #[test]
    fn a_plain_string_is_announced_as_it_is() {
        let written = written(&Announcement::from("node-a"));
        assert_eq!(&written[..], b"node-a");
    }

    #[test]
    fn an_announcement_without_an_identity_has_the_sessions() {
        let at = Announcement::default().with_address("a:1");
        let read = Announcement::decode(&written(&at));
        assert_eq!((read.identity(), read.address()), ("session", Some("a:1")));
    }

    #[test]
    fn strings_and_bytes_are_written_raw_until_fields_are_added() {
        for bytes in [&b""[..], b"node-a", b"\xff\xfe", b"{\"identity\":\"x\"}"] {
            assert_eq!(written(&Announcement::from(bytes.to_vec())), bytes);
        }
        let more = Announcement::from("node-a").with_address("a:1");
        let read = Announcement::decode(&written(&more));
        assert_eq!((read.identity(), read.address()), ("node-a", Some("a:1")));
    }

    #[test]
    fn a_plain_string_of_a_foreign_candidate_is_its_identity() {
        assert_eq!(Announcement::decode(b"go-node").identity(), "go-node");
        assert_eq!(Announcement::decode(b"{not json").identity(), "{not json");
        assert_eq!(Announcement::decode(b"\xff").identity(), "\u{fffd}");
    }

    #[test]
    fn foreign_announcement_fields_are_bounded_in_length_and_time() {
        let read = |object: Value| Announcement::decode(object.to_string().as_bytes());
        let long = "\u{e9}".repeat(MAX_IDENTITY);
        let foreign = serde_json::json!({
            "identity": long, "address": long, "data_center": long, "since_unix_ms": 8_640_000_000_000_001_u64,
        });
        let read_of_it = read(foreign.clone());
        assert_eq!(read_of_it.identity(), &long[..MAX_IDENTITY]);
        assert_eq!(
            (read_of_it.address(), read_of_it.data_center()),
            (None, None)
        );
        assert_eq!(read_of_it.since(), None);
        assert_eq!(home(foreign.to_string().as_bytes()), None);
        for (ms, is_shown) in [(LAST, true), (LAST + 1, false), (u64::MAX, false)] {
            let at = read(serde_json::json!({ "identity": "a", "since_unix_ms": ms }));
            assert_eq!(at.since().is_some(), is_shown, "{ms}");
        }
        let huge = format!("{{\"identity\":\"{}\"}}", "x".repeat(MAX_ANNOUNCEMENT));
        assert_eq!(
            Announcement::decode(huge.as_bytes()).identity().len(),
            MAX_IDENTITY
        );
    }

    #[test]
    fn session_data_centre_is_announced_unless_overridden() {
        let encoded = |announcement: Announcement| {
            let bytes = announcement.encode(("session", Some("dc1")), NOW).unwrap();
            home(&bytes)
        };
        let at = |name: &str| Some(name.as_bytes().to_vec());
        assert_eq!(encoded(Announcement::default()), at("dc1"));
        let elsewhere = Announcement::default().with_data_center("dc2");
        assert_eq!(encoded(elsewhere), at("dc2"));
        assert_eq!(encoded(Announcement::from("node-a")), None);
    }

    #[test]
    fn a_capacity_is_read_by_everybody_in_the_same_way() {
        let capacity_of = |announcement: &Announcement| share(&written(announcement)).capacity;
        assert_eq!(capacity_of(&Announcement::new("a")), 1);
        let large = Announcement::new("a").with_capacity(1000);
        assert_eq!(capacity_of(&large), 1000);
        assert_eq!(Announcement::decode(&written(&large)).capacity(), 1000);
        let aside = share(&set_aside(&written(&large)));
        assert_eq!((aside.aside, aside.capacity), (true, 1000));
        for odd in [
            "0",
            "1001",
            "-1",
            "2.5",
            "\"2\"",
            "null",
            "18446744073709551616",
        ] {
            let value = format!("{{\"identity\":\"a\",\"capacity\":{odd}}}");
            assert_eq!(share(value.as_bytes()).capacity, 1, "{odd}");
            assert_eq!(Announcement::from(value).capacity(), 1, "{odd}");
        }
        assert_eq!(share(b"capacity").capacity, 1);
    }

    #[test]
    fn a_capacity_out_of_bounds_is_refused_with_the_bounds() {
        for capacity in [0, 1001] {
            let announcement = Announcement::new("a").with_capacity(capacity);
            let error = announcement.encode(("session", None), NOW).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            let rule = format!("the capacity is {capacity}; it must be from 1 to 1000");
            assert!(error.to_string().contains(&rule), "{error}");
        }
    }

    /// The XXH3-64 of `east`, by another implementation.
    const EAST: Center = 0x14f5_3031_b5dd_f978;

    #[test]
    fn spread_needs_a_data_centre_and_our_spelling() {
        let center = |announcement: &Announcement| share(&written(announcement)).center;
        let wish = Announcement::new("a").with_spread_over_data_centers();
        let nowhere = br#"{"identity":"a","spread":"data_center"}"#;
        assert_eq!(share(nowhere).center, None);
        let east = wish.clone().with_data_center("east");
        let west = wish.clone().with_data_center("west");
        assert!(center(&east).is_some() && center(&east) != center(&west));
        // Every version must compute the same number.
        assert_eq!(center(&east), Some(EAST));
        assert!(Announcement::decode(&written(&east)).spreads_over_data_centers());
        assert_eq!(share(&set_aside(&written(&east))).center, Some(EAST));
        assert_eq!(
            center(&Announcement::new("a").with_data_center("east")),
            None
        );
        for odd in ["true", "\"zone\"", "null", "[\"data_center\"]"] {
            let value = format!("{{\"identity\":\"a\",\"data_center\":\"east\",\"spread\":{odd}}}");
            assert_eq!(share(value.as_bytes()).center, None, "{odd}");
        }
        let refused = wish.encode(("session", None), NOW).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        assert!(
            refused.to_string().contains("names no data centre"),
            "{refused}"
        );
        assert!(wish.encode(("session", Some("east")), NOW).is_ok());
    }

    #[test]
    fn too_large_an_announcement_is_refused_with_the_bound() {
        let error = Announcement::from("x".repeat(MAX_ANNOUNCEMENT + 1))
            .encode(("session", None), NOW)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("32768"), "{error}");
    }

    proptest! {
        #[test]
        fn announcement_is_read_back_as_written(
            identity in ".+", address in proptest::option::of(".*"), zone in proptest::option::of(".*"),
        ) {
            let mut announcement = Announcement::new(identity);
            announcement.address = address;
            if let Some(zone) = zone {
                announcement = announcement.with_metadata("zone", zone);
            }
            let read = Announcement::decode(&written(&announcement));
            prop_assert_eq!(read.identity(), announcement.identity());
            prop_assert_eq!(read.address(), announcement.address());
            prop_assert_eq!(read.metadata("zone"), announcement.metadata("zone"));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Announcement::decode(&bytes);
        }
    }
}

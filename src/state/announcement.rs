//! Encodes and decodes announcements: JSON objects, and the plain strings of foreign candidates, which are read as
//! identities.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

use crate::error::{Error, ErrorKind, Result};

/// The largest announcement, in bytes as written to etcd. All candidates read every announcement.
pub(crate) const MAX_ANNOUNCEMENT: usize = 32 * 1024;

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
    /// Empty: the session's.
    identity: String,
    address: Option<String>,
    data_center: Option<String>,
    metadata: BTreeMap<String, String>,
    since_unix_ms: Option<u64>,
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

    /// Switches to the JSON form, because it now has more than the string or the bytes that it was made of.
    fn structured(mut self) -> Self {
        self.verbatim = None;
        self
    }

    /// Returns the candidate's identity. An empty identity stands for the session's identity, which replaces it when
    /// the announcement is written to etcd.
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

    /// Returns the bytes that a session of that identity, in that data centre, writes to etcd. `since` counts from 1970, and
    /// is added unless the announcement is a plain string.
    pub(crate) fn encode(
        &self,
        session: (&str, Option<&str>),
        since: Duration,
    ) -> Result<Arc<[u8]>> {
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

    /// The JSON object.
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
            object.insert("data_center".into(), data_center.into());
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

    /// Reads the announcement of any candidate; never fails, because a foreign value is an identity.
    pub(crate) fn decode(value: &[u8]) -> Self {
        parse(value).unwrap_or_else(|| Self::new(String::from_utf8_lossy(value)))
    }
}

/// The data centre that a candidate announces.
pub(crate) fn home(value: &[u8]) -> Option<Vec<u8>> {
    Some(parse(value)?.data_center?.into_bytes())
}

/// What members of partitions announce that take none while others do.
const ASIDE: &str = "evacuated";

/// The announcement of a member whose data centre is evacuated.
pub(crate) fn set_aside(value: &[u8]) -> Arc<[u8]> {
    let Some(mut object) = object(value) else {
        return value.into();
    };
    object.insert(ASIDE.into(), true.into());
    Value::Object(object).to_string().into_bytes().into()
}

/// Whether a member announces that.
pub(crate) fn is_set_aside(value: &[u8]) -> bool {
    let named = value
        .windows(ASIDE.len())
        .any(|part| part == ASIDE.as_bytes());
    let said = || object(value)?.get(ASIDE)?.as_bool();
    named && said() == Some(true)
}

fn object(value: &[u8]) -> Option<Map<String, Value>> {
    if value.first() != Some(&b'{') {
        return None;
    }
    match serde_json::from_slice(value).ok()? {
        Value::Object(object) => Some(object),
        _ => None,
    }
}

fn parse(value: &[u8]) -> Option<Announcement> {
    let object = object(value)?;
    let text = |name: &str| object.get(name).and_then(Value::as_str).map(str::to_owned);
    let metadata = object.get("metadata").and_then(Value::as_object);
    Some(Announcement {
        identity: text("identity")?,
        address: text("address"),
        data_center: text("data_center"),
        metadata: metadata
            .into_iter()
            .flatten()
            .filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned())))
            .collect(),
        since_unix_ms: object.get("since_unix_ms").and_then(Value::as_u64),
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
    /// Keeps the bytes unchanged, and reads them as every other node will.
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            verbatim: Some(bytes.clone().into()),
            ..Self::decode(&bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Duration = Duration::from_secs(1_700_000_000);

    fn written(announcement: &Announcement) -> Vec<u8> {
        announcement
            .encode(("session", None), NOW)
            .unwrap()
            .to_vec()
    }

    #[test]
    fn an_identity_alone_says_since_when_it_stands() {
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
    fn strings_and_bytes_are_written_as_they_are_until_more_is_said() {
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
    fn the_sessions_data_centre_is_announced_unless_another_one_or_a_plain_string_is() {
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
    fn who_is_set_aside_says_so_and_nothing_else_differs() {
        let value = written(&Announcement::new("evacuated").with_data_center("dc1"));
        assert!(!is_set_aside(&value) && !is_set_aside(b"evacuated"));
        let aside = set_aside(&value);
        assert!(is_set_aside(&aside));
        assert_eq!(Announcement::decode(&aside), Announcement::decode(&value));
        assert_eq!(home(&aside), home(&value));
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
        fn what_is_announced_is_read_back(
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

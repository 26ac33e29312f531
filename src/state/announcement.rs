//! Encodes and decodes announcements: structured ones as JSON objects, and the plain strings of foreign candidates as
//! identities.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

use crate::error::{Error, ErrorKind, Result};

/// The largest announcement, in bytes as written to etcd. Every candidate's announcement is read by all others.
pub(crate) const MAX_ANNOUNCEMENT: usize = 32 * 1024;

/// What a candidate tells the others: who it is, how to reach it, where it runs.
///
/// Its identity is the session's unless it names another. Written to etcd as a JSON object, with the time at which it was
/// written. A string or bytes, where an announcement is expected, are written as they are: Go's `concurrency` package and
/// `etcdctl elect` write a plain string, which is read as an identity. Where such clients read what a node announces and
/// expect its plain identity, announce that: `SessionOptions::announcement("node-a")`.
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
    /// What is written instead of all that: a plain string, or bytes of another format.
    verbatim: Option<Box<[u8]>>,
}

impl Announcement {
    /// Of a candidate of that name; [`Announcement::default`] has the session's.
    pub fn new(identity: impl Into<String>) -> Self {
        Self {
            identity: identity.into(),
            ..Self::default()
        }
    }

    /// Says how to reach it.
    pub fn with_address(mut self, address: impl Into<String>) -> Self {
        self.address = Some(address.into());
        self.structured()
    }

    /// Says in which data centre it runs.
    pub fn with_data_center(mut self, data_center: impl Into<String>) -> Self {
        self.data_center = Some(data_center.into());
        self.structured()
    }

    /// Says anything else.
    pub fn with_metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self.structured()
    }

    /// It says more than the string or the bytes that it was made of.
    fn structured(mut self) -> Self {
        self.verbatim = None;
        self
    }

    /// Who the candidate is. Empty before it was announced: the session's identity.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// How to reach it, if it said so.
    pub fn address(&self) -> Option<&str> {
        self.address.as_deref()
    }

    /// Where it runs, if it said so.
    pub fn data_center(&self) -> Option<&str> {
        self.data_center.as_deref()
    }

    /// One item of metadata.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }

    /// All metadata, in order of the keys.
    pub fn iter_metadata(&self) -> impl Iterator<Item = (&str, &str)> {
        self.metadata.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }

    /// Since when the candidate stands, by its own wall clock, if it said so. Never used to decide anything.
    pub fn since(&self) -> Option<SystemTime> {
        self.since_unix_ms
            .and_then(|ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms)))
    }

    /// As written to etcd by a session of that identity. `since`, which counts from 1970, is stamped on what is no plain
    /// string.
    pub(crate) fn encode(&self, session: &str, since: Duration) -> Result<Arc<[u8]>> {
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
    pub(crate) fn written(&self, session: &str, now: Duration) -> Vec<u8> {
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
        if let Some(data_center) = &self.data_center {
            object.insert("data_center".into(), data_center.clone().into());
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

    /// Reads what any candidate wrote; never fails, for a foreign value is an identity.
    pub(crate) fn decode(value: &[u8]) -> Self {
        parse(value).unwrap_or_else(|| Self::new(String::from_utf8_lossy(value)))
    }
}

fn parse(value: &[u8]) -> Option<Announcement> {
    if value.first() != Some(&b'{') {
        return None;
    }
    let Value::Object(object) = serde_json::from_slice(value).ok()? else {
        return None;
    };
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
    /// Written as they are; read as everybody else will read them.
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
        announcement.encode("session", NOW).unwrap().to_vec()
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
    fn too_large_an_announcement_is_refused_with_the_bound() {
        let error = Announcement::from("x".repeat(MAX_ANNOUNCEMENT + 1))
            .encode("session", NOW)
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

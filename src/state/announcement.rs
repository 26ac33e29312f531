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
/// Written as a JSON object when it says more than an identity, else as the identity itself, a plain string, which
/// is what Go's `concurrency` package and `etcdctl elect` write too.
///
/// ```
/// use eldest::Announcement;
/// let me = Announcement::new("node-a")
///     .address("10.0.0.1:8080")
///     .data_center("frankfurt")
///     .metadata("zone", "a");
/// assert_eq!(me.get("zone"), Some("a"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Announcement {
    identity: String,
    address: Option<String>,
    data_center: Option<String>,
    metadata: BTreeMap<String, String>,
    since_unix_ms: Option<u64>,
}

impl Announcement {
    /// Says who the candidate is.
    pub fn new(identity: impl Into<String>) -> Self {
        Self {
            identity: identity.into(),
            ..Self::default()
        }
    }

    /// Says how to reach it.
    pub fn address(mut self, address: impl Into<String>) -> Self {
        self.address = Some(address.into());
        self
    }

    /// Says in which data centre it runs.
    pub fn data_center(mut self, data_center: impl Into<String>) -> Self {
        self.data_center = Some(data_center.into());
        self
    }

    /// Says anything else.
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }

    /// Who the candidate is.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// How to reach it, if it said so.
    pub fn get_address(&self) -> Option<&str> {
        self.address.as_deref()
    }

    /// Where it runs, if it said so.
    pub fn get_data_center(&self) -> Option<&str> {
        self.data_center.as_deref()
    }

    /// One item of metadata.
    pub fn get(&self, key: &str) -> Option<&str> {
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

    fn is_plain(&self) -> bool {
        self.address.is_none() && self.data_center.is_none() && self.metadata.is_empty()
    }

    /// As written to etcd. `now` is stamped on structured announcements.
    pub(crate) fn encode(&self, now: Duration) -> Vec<u8> {
        // An identity that looks like one of our objects would be misread if written plainly.
        if self.is_plain() && parse(self.identity.as_bytes()).is_none() {
            return self.identity.clone().into_bytes();
        }
        let mut object = Map::new();
        object.insert("identity".into(), self.identity.clone().into());
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
    })
}

/// What can be announced: an [`Announcement`], a plain string, or any bytes.
#[derive(Debug, Clone)]
pub struct Announced(Form);

#[derive(Debug, Clone)]
enum Form {
    Structured(Announcement),
    Bytes(Vec<u8>),
}

impl Announced {
    pub(crate) fn encode(&self, now: Duration) -> Result<Arc<[u8]>> {
        let bytes = match &self.0 {
            Form::Structured(announcement) => announcement.encode(now),
            Form::Bytes(bytes) => bytes.clone(),
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
}

impl From<Announcement> for Announced {
    fn from(announcement: Announcement) -> Self {
        Self(Form::Structured(announcement))
    }
}

impl From<&str> for Announced {
    fn from(text: &str) -> Self {
        Self(Form::Bytes(text.as_bytes().to_vec()))
    }
}

impl From<String> for Announced {
    fn from(text: String) -> Self {
        Self(Form::Bytes(text.into_bytes()))
    }
}

impl From<Vec<u8>> for Announced {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Form::Bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Duration = Duration::from_secs(1_700_000_000);

    #[test]
    fn an_identity_alone_is_written_as_a_plain_string() {
        assert_eq!(Announcement::new("node-a").encode(NOW), b"node-a");
    }

    #[test]
    fn a_plain_string_of_a_foreign_candidate_is_its_identity() {
        assert_eq!(Announcement::decode(b"go-node").identity(), "go-node");
        assert_eq!(Announcement::decode(b"{not json").identity(), "{not json");
        assert_eq!(Announcement::decode(b"\xff").identity(), "\u{fffd}");
    }

    #[test]
    fn too_large_an_announcement_is_refused_with_the_bound() {
        let error = Announced::from("x".repeat(MAX_ANNOUNCEMENT + 1))
            .encode(NOW)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("32768"), "{error}");
    }

    proptest! {
        #[test]
        fn what_is_announced_is_read_back(
            identity in ".*", address in proptest::option::of(".*"), zone in proptest::option::of(".*"),
        ) {
            let mut announcement = Announcement::new(identity);
            announcement.address = address;
            if let Some(zone) = zone {
                announcement = announcement.metadata("zone", zone);
            }
            let read = Announcement::decode(&announcement.encode(NOW));
            prop_assert_eq!(read.identity(), announcement.identity());
            prop_assert_eq!(read.get_address(), announcement.get_address());
            prop_assert_eq!(read.get("zone"), announcement.get("zone"));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Announcement::decode(&bytes);
        }
    }
}

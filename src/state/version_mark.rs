//! Encodes and decodes the mark with the newest version that led an election.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::announcement::{MAX_IDENTITY, bounded};
use super::fields::{VERSION, object};
use eldest_core::kv::Entry;
use eldest_core::version::Version;

/// Returns the version that the mark of an election names. `None`: another program wrote it.
pub(crate) fn marked(value: &[u8]) -> Option<Version> {
    object(value)?.get(VERSION)?.as_str()?.parse().ok()
}

/// The newest version that led an election, read from its mark in etcd.
///
/// [`Election::require_version`](crate::Election::require_version) says what it does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionMark {
    version: Option<Version>,
    by: Option<String>,
}

impl VersionMark {
    /// Returns the value of the mark that a session with that identity writes.
    pub(crate) fn encode(version: Version, identity: &str) -> Arc<[u8]> {
        let mut object = Map::new();
        object.insert(VERSION.into(), version.to_string().into());
        object.insert("by".into(), identity.into());
        Value::Object(object).to_string().into_bytes().into()
    }

    /// Reads a mark. A value of another format names no version.
    pub(crate) fn decode(entry: &Entry) -> Self {
        let value: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
        let by = value.get("by").and_then(Value::as_str);
        Self {
            version: marked(&entry.value),
            by: by.map(|by| bounded(by, MAX_IDENTITY)),
        }
    }

    /// Returns the version. `None`: another program wrote the mark, which names no version and holds no candidate back.
    pub fn version(&self) -> Option<Version> {
        self.version
    }

    /// Returns the identity of the node that first led with this version, if the mark names one.
    pub fn by(&self) -> Option<&str> {
        self.by.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(value: &[u8]) -> (Option<String>, Option<String>) {
        let entry = Entry {
            key: (*b"ns/~evacuated/~version/ns/e").into(),
            value: value.into(),
            create_revision: 3,
            mod_revision: 3,
            lease: 0,
        };
        let mark = VersionMark::decode(&entry);
        let version = mark.version().map(|version| version.to_string());
        (version, mark.by().map(str::to_owned))
    }

    #[test]
    fn mark_names_its_version_and_the_node_that_led_with_it() {
        let value = VersionMark::encode("1.10".parse().unwrap(), "node-a");
        let wanted = (Some("1.10".to_owned()), Some("node-a".to_owned()));
        assert_eq!(decoded(&value), wanted);
    }

    #[test]
    fn mark_of_another_format_names_no_version() {
        for value in [
            &b""[..],
            b"2.0",
            b"\"2.0\"",
            b"[\"version\"]",
            b"\xff",
            br#"{"version":2}"#,
        ] {
            assert_eq!(decoded(value), (None, None), "{value:?}");
        }
        let long = format!(r#"{{"version":"1","by":"{}"}}"#, "x".repeat(5000));
        assert_eq!(
            decoded(long.as_bytes()).1.map(|by| by.len()),
            Some(MAX_IDENTITY)
        );
    }
}

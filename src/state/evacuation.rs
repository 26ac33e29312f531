//! Encodes and decodes the marks of evacuated data centres.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

use super::announcement::{MAX_DATA_CENTER, bounded};
use super::fields::unix_ms;
use crate::error::{Error, ErrorKind, Result};
use eldest_core::kv::Entry;

/// The prefix of the marks' keys within the namespace.
pub(crate) const EVACUATED: &str = "~evacuated/";
/// The first character of other orders' names, with which no data centre's name may begin.
const RESERVED: char = '~';
/// The longest reason, in bytes.
pub(crate) const MAX_REASON: usize = 4096;
/// The shortest and the longest time for which an order may last.
pub const EVACUATION: RangeInclusive<Duration> =
    Duration::from_secs(5)..=Duration::from_secs(31 * 24 * 60 * 60);

/// An order to evacuate a data centre: while it lasts, the nodes of that data centre let others lead.
///
/// [`Session::evacuate`](crate::Session::evacuate) says what it does.
///
/// ```
/// use std::time::Duration;
/// use eldest::Evacuate;
///
/// let order = Evacuate::new("dc1")
///     .lasting(Duration::from_secs(2 * 60 * 60))
///     .reason("new switches");
/// # let _ = order;
/// ```
#[must_use = "an order does nothing until it is given"]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evacuate {
    data_center: String,
    lasting: Option<Duration>,
    reason: Option<String>,
    by: Option<String>,
}

impl Evacuate {
    /// Makes an order to evacuate the data centre with that name, until it is lifted. The name has 1 to 512 bytes and
    /// does not begin with `~`.
    pub fn new(data_center: impl Into<String>) -> Self {
        Self {
            data_center: data_center.into(),
            lasting: None,
            reason: None,
            by: None,
        }
    }

    /// Ends the order by itself after that time: 5 s to 31 days, counted in whole seconds by etcd. A change of etcd's
    /// leader may prolong it.
    pub fn lasting(mut self, time: Duration) -> Self {
        self.lasting = Some(time);
        self
    }

    /// Sets the reason, which is shown to people, in up to 4096 bytes.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Sets the author of the order, who is shown to people, in up to 4096 bytes. By default, this is the session's
    /// identity.
    pub fn by(mut self, by: impl Into<String>) -> Self {
        self.by = Some(by.into());
        self
    }

    pub(crate) fn data_center(&self) -> &str {
        &self.data_center
    }

    /// Returns the time for which the order lasts, in whole seconds.
    pub(crate) fn seconds(&self) -> Option<i64> {
        let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        self.lasting.map(seconds)
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_data_center(&self.data_center)?;
        for (what, text) in [("reason", &self.reason), ("author", &self.by)] {
            let bytes = text.as_ref().map_or(0, String::len);
            if bytes > MAX_REASON {
                return Err(invalid(format!(
                    "the {what} has {bytes} bytes; at most {MAX_REASON} are allowed"
                )));
            }
        }
        match self.lasting {
            Some(time) if !EVACUATION.contains(&time) => Err(invalid(format!(
                "the evacuation is to last {time:?}; it must last from {:?} to 31 days",
                EVACUATION.start()
            ))),
            _ => Ok(()),
        }
    }

    /// Encodes the mark of a session with the given identity, at the given time since 1970.
    pub(crate) fn encode(&self, session: &str, now: Duration) -> Vec<u8> {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let mut object = Map::new();
        let by = self.by.as_deref().unwrap_or(session);
        object.insert("by".into(), by.into());
        object.insert("since_unix_ms".into(), ms(now).into());
        if let Some(lasting) = self.lasting {
            let until = now.saturating_add(lasting);
            object.insert("until_unix_ms".into(), ms(until).into());
        }
        if let Some(reason) = &self.reason {
            object.insert("reason".into(), reason.as_str().into());
        }
        Value::Object(object).to_string().into_bytes()
    }
}

impl From<&str> for Evacuate {
    fn from(data_center: &str) -> Self {
        Self::new(data_center)
    }
}

impl From<String> for Evacuate {
    fn from(data_center: String) -> Self {
        Self::new(data_center)
    }
}

/// Checks the name of a data centre, which becomes part of a key.
pub(crate) fn check_data_center(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MAX_DATA_CENTER {
        return Err(invalid(format!(
            "the data centre's name has {} bytes; 1 to {MAX_DATA_CENTER} are allowed",
            name.len()
        )));
    }
    if name.starts_with(RESERVED) {
        return Err(invalid(format!(
            "the data centre's name {name:?} must not begin with {RESERVED}"
        )));
    }
    if name.chars().any(char::is_control) {
        return Err(invalid(format!(
            "the data centre's name {name:?} must not contain control characters"
        )));
    }
    Ok(())
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}

/// An evacuated data centre, read from its mark in etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evacuation {
    data_center: String,
    by: Option<String>,
    reason: Option<String>,
    since_unix_ms: Option<u64>,
    until_unix_ms: Option<u64>,
    lease: i64,
}

impl Evacuation {
    /// Reads a mark. Only the key counts, so any value is accepted.
    pub(crate) fn decode(data_center: &[u8], entry: &Entry) -> Self {
        let value = serde_json::from_slice(&entry.value);
        let value: Value = value.unwrap_or(Value::Null);
        let text = |name: &str| value.get(name).and_then(Value::as_str);
        let text = |name: &str| text(name).map(|text| bounded(text, MAX_REASON));
        let time = |name: &str| unix_ms(value.get(name));
        Self {
            data_center: String::from_utf8_lossy(data_center).into_owned(),
            by: text("by"),
            reason: text("reason"),
            since_unix_ms: time("since_unix_ms"),
            until_unix_ms: time("until_unix_ms"),
            lease: entry.lease,
        }
    }

    /// Reads all marks below the prefix, in the order of the data centres' names. A key whose name no data centre may
    /// have is ignored.
    pub(crate) fn all<'a>(
        prefix: &[u8],
        entries: impl IntoIterator<Item = &'a Entry>,
    ) -> Arc<[Self]> {
        let marks = entries.into_iter().filter_map(|entry| {
            let name = entry.key.strip_prefix(prefix)?;
            let is_long = !(1..=MAX_DATA_CENTER).contains(&name.len());
            let is_name = !is_long && name[0] != RESERVED as u8;
            is_name.then(|| Self::decode(name, entry))
        });
        let mut marks: Vec<_> = marks.collect();
        marks.sort_unstable_by(|a, b| a.data_center.cmp(&b.data_center));
        marks.into()
    }

    /// Returns the name of the data centre.
    pub fn data_center(&self) -> &str {
        &self.data_center
    }

    /// Returns the author of the order, if the mark names one.
    pub fn by(&self) -> Option<&str> {
        self.by.as_deref()
    }

    /// Returns the reason, if the mark gives one.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Returns when the order was given, by the wall clock of the node that gave it.
    pub fn since(&self) -> Option<SystemTime> {
        time(self.since_unix_ms)
    }

    /// Returns when the evacuation ends by itself, by the same clock; `None` if it lasts until it is lifted. etcd
    /// decides: a change of its leader may prolong the evacuation.
    pub fn until(&self) -> Option<SystemTime> {
        time(self.until_unix_ms).filter(|_| self.lease != 0)
    }
}

/// Reads the author of an order to step down.
pub(crate) fn author(value: &[u8]) -> String {
    bounded(String::from_utf8_lossy(value), MAX_REASON)
}

fn time(unix_ms: Option<u64>) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_millis(unix_ms?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(value: &[u8], lease: i64) -> Entry {
        Entry {
            key: (*b"ns/~evacuated/eu/1").into(),
            value: value.into(),
            create_revision: 3,
            mod_revision: 3,
            lease,
        }
    }

    #[test]
    fn a_mark_names_its_author_reason_and_end() {
        let order = Evacuate::new("eu/1")
            .lasting(Duration::from_secs(7200))
            .reason("new switches");
        let value = order.encode("ops", Duration::from_secs(1000));
        let all = Evacuation::all(b"ns/~evacuated/", [&entry(&value, 9)]);
        let mark = &all[0];
        assert_eq!(mark.data_center(), "eu/1");
        assert_eq!(
            (mark.by(), mark.reason()),
            (Some("ops"), Some("new switches"))
        );
        let at = |seconds| Some(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!((mark.since(), mark.until()), (at(1000), at(8200)));
    }

    #[test]
    fn any_key_below_the_prefix_is_a_mark() {
        for value in [&b""[..], b"\xff", b"[]", b"{\"by\":7}"] {
            let mark = Evacuation::decode(b"dc1", &entry(value, 0));
            assert_eq!(
                (mark.data_center(), mark.by(), mark.until()),
                ("dc1", None, None)
            );
        }
    }

    #[test]
    fn a_foreign_mark_shows_no_longer_fields_than_ours() {
        let value = serde_json::json!({
            "by": "x".repeat(30_000), "reason": "y".repeat(30_000),
            "since_unix_ms": 8_640_000_000_000_001_u64, "until_unix_ms": u64::MAX,
        });
        let named = |name: &str| Entry {
            key: format!("ns/~evacuated/{name}").into_bytes().into(),
            ..entry(value.to_string().as_bytes(), 9)
        };
        let (long, longest) = ("z".repeat(30_000), "z".repeat(512));
        let all = [&*long, "", "~step_down/e/7f/3", &*longest].map(named);
        let all = Evacuation::all(b"ns/~evacuated/", &all);
        let [mark] = &all[..] else {
            panic!("{} marks", all.len())
        };
        assert_eq!(mark.data_center(), longest);
        let lengths = [mark.by(), mark.reason()].map(|text| text.map(str::len));
        assert_eq!(lengths, [Some(MAX_REASON); 2]);
        assert_eq!((mark.since(), mark.until()), (None, None));
    }

    #[test]
    fn field_that_no_mark_can_hold_is_refused_with_the_rule() {
        let secs = Duration::from_secs;
        for (order, rule) in [
            (Evacuate::new(""), "1 to 512"),
            (Evacuate::new("x".repeat(513)), "1 to 512"),
            (Evacuate::new("a\nb"), "control characters"),
            (Evacuate::new("~a"), "must not begin with ~"),
            (Evacuate::new("a").lasting(secs(4)), "5s"),
            (Evacuate::new("a").lasting(secs(32 * 86_400)), "31 days"),
            (Evacuate::new("a").reason("x".repeat(4097)), "4096"),
        ] {
            let error = order.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains(rule), "{error}");
        }
        assert!(Evacuate::new("eu/1").lasting(secs(5)).check().is_ok());
    }
}

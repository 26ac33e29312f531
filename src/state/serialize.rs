//! Writes members, rosters and the session's lease for other programs, with the names of the HTTP API.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::announcement::Announcement;
use super::roster::{Member, Roster};
use super::session_state::LeaseView;

/// The fields `identity`, `address`, `data_center`, `metadata`, `capacity`, `spread` and `since_unix_ms`, as they are
/// written to etcd; a field without a value is omitted.
#[derive(Serialize, Deserialize)]
#[serde(rename = "Announcement")]
struct Said {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    identity: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data_center: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    capacity: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spread: Option<Spread>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    since_unix_ms: Option<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Spread {
    DataCenter,
}

impl Serialize for Announcement {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let metadata = self.iter_metadata();
        let said = Said {
            identity: self.identity().to_owned(),
            address: self.address().map(str::to_owned),
            data_center: self.data_center().map(str::to_owned),
            metadata: metadata.map(|(k, v)| (k.into(), v.into())).collect(),
            capacity: Some(self.capacity()).filter(|capacity| *capacity != 1),
            spread: self
                .spreads_over_data_centers()
                .then_some(Spread::DataCenter),
            since_unix_ms: since_unix_ms(self),
        };
        said.serialize(serializer)
    }
}

/// Reads an announcement, but ignores `since_unix_ms`: the session sets it when it writes the announcement to etcd.
impl<'de> Deserialize<'de> for Announcement {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let said = Said::deserialize(deserializer)?;
        let mut announcement = Announcement::new(said.identity);
        if let Some(address) = said.address {
            announcement = announcement.with_address(address);
        }
        if let Some(data_center) = said.data_center {
            announcement = announcement.with_data_center(data_center);
        }
        if let Some(capacity) = said.capacity {
            announcement = announcement.with_capacity(capacity);
        }
        if let Some(Spread::DataCenter) = said.spread {
            announcement = announcement.with_spread_over_data_centers();
        }
        let all = said.metadata.into_iter();
        Ok(all.fold(announcement, |said, (key, value)| {
            said.with_metadata(key, value)
        }))
    }
}

fn since_unix_ms(announcement: &Announcement) -> Option<u64> {
    let since = announcement.since()?.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}

/// Formats a lease id in hexadecimal; `None` if there is no lease.
fn lease_id(id: i64) -> Option<String> {
    (id != 0).then(|| format!("{id:x}"))
}

/// Writes `rank`, `identity`, `fencing_token`, `lease_id`, `key`, `address`, `data_center`, `metadata` and
/// `since_unix_ms`, as the HTTP API does.
impl Serialize for Member {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let announcement = self.announcement();
        let metadata: BTreeMap<_, _> = announcement.iter_metadata().collect();
        let mut member = serializer.serialize_struct("Member", 9)?;
        member.serialize_field("rank", &self.rank())?;
        member.serialize_field("identity", self.identity())?;
        member.serialize_field("fencing_token", &self.create_revision())?;
        member.serialize_field("lease_id", &lease_id(self.lease_id()))?;
        member.serialize_field("key", &String::from_utf8_lossy(self.key()))?;
        member.serialize_field("address", &announcement.address())?;
        member.serialize_field("data_center", &announcement.data_center())?;
        member.serialize_field("metadata", &metadata)?;
        member.serialize_field("since_unix_ms", &since_unix_ms(announcement))?;
        member.end()
    }
}

/// Writes `revision`, `leader` (one of the members, or null) and `members`.
impl Serialize for Roster {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut roster = serializer.serialize_struct("Roster", 3)?;
        roster.serialize_field("revision", &self.revision())?;
        roster.serialize_field("leader", &self.leader())?;
        roster.serialize_field("members", self.members())?;
        roster.end()
    }
}

/// Writes `lease_id` and `lease_left_ms`, at the present moment.
impl Serialize for LeaseView {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let left = u64::try_from(self.time_left().as_millis()).unwrap_or(u64::MAX);
        let mut lease = serializer.serialize_struct("LeaseView", 2)?;
        lease.serialize_field("lease_id", &lease_id(self.lease_id()))?;
        lease.serialize_field("lease_left_ms", &left)?;
        lease.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eldest_core::kv::Entry;
    use eldest_core::reason::{EndReason, LostReason};
    use eldest_core::status::Status;
    use serde_json::{from_value, json, to_value};

    #[test]
    fn a_roster_is_written_in_the_words_of_the_http_api() {
        let value = r#"{"identity":"a","address":"a:1","since_unix_ms":7,"metadata":{"zone":"z"}}"#;
        let entry = Entry {
            key: (*b"e/1f").into(),
            value: value.as_bytes().into(),
            create_revision: 5,
            mod_revision: 6,
            lease: 31,
        };
        let member = json!({
            "rank": 1, "identity": "a", "fencing_token": 5, "lease_id": "1f", "key": "e/1f", "address": "a:1",
            "data_center": null, "metadata": {"zone": "z"}, "since_unix_ms": 7,
        });
        let roster = to_value(Roster::new(9, [entry.clone()])).unwrap();
        let wanted = json!({"revision": 9, "leader": member, "members": [member]});
        assert_eq!(roster, wanted);
        let group = to_value(Roster::new(9, [entry]).unled()).unwrap();
        assert_eq!(group["leader"], json!(null));
    }

    #[test]
    fn an_announcement_is_deserialized_from_its_fields() {
        let said = json!({"address": "a:1", "metadata": {"zone": "z"}});
        let read: Announcement = from_value(said.clone()).unwrap();
        let built = Announcement::default().with_address("a:1");
        assert_eq!(read, built.with_metadata("zone", "z"));
        assert_eq!(to_value(&read).unwrap(), said);
    }

    #[test]
    fn status_and_reasons_are_serialized_as_in_the_log() {
        for (status, wanted) in [
            (Status::Idle, json!({"status": "idle"})),
            (
                Status::waiting(1),
                json!({"status": "waiting", "rank": 2, "ahead": 1}),
            ),
            (
                Status::leading(7),
                json!({"status": "leading", "fencing_token": 7}),
            ),
            (
                Status::ending(LostReason::KeyDeleted),
                json!({"status": "ending", "reason": "key_deleted"}),
            ),
            (
                Status::ended(EndReason::SessionClosed),
                json!({"status": "ended", "reason": "session_closed"}),
            ),
        ] {
            assert_eq!(to_value(status).unwrap(), wanted);
            assert_eq!(wanted["status"], status.as_str());
            assert_eq!(from_value::<Status>(wanted).unwrap(), status);
        }
    }
}

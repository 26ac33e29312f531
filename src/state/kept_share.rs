//! Encodes and decodes the records of kept shares, which list the partitions of a member that may be away for a while.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::announcement::{
    Announcement, CAPACITY, DATA_CENTER, MAX_DATA_CENTER, MAX_IDENTITY, SPREAD, bounded, share,
    share_in,
};
use super::fields::{ASIDE, object};
use super::number;
use eldest_core::partitions::{KeptShare, ShareReaders};

/// The largest record, in bytes. All members read every record.
const MAX_RECORD: usize = 64 * 1024;
/// The longest list of partitions, in bytes. The other fields fit beside it.
const MAX_LIST: usize = 48 * 1024;

/// The field with the partitions: numbers and ranges in ascending order, as in `0-3,9`.
const PARTITIONS: &str = "partitions";
/// The field with the time for which the share is kept, in seconds.
const KEPT_FOR: &str = "kept_for_s";

/// The functions by which every member reads the others.
pub(crate) const SHARES: ShareReaders = ShareReaders {
    share,
    identity: |value| Announcement::decode(value).identity().as_bytes().to_vec(),
    kept,
};

/// Returns the record of a member with that announcement. A list that is too long ends early: the partitions that it has no
/// room for are not kept.
pub(crate) fn keep_share(
    announcement: &[u8],
    kept_for: Duration,
    partitions: &BTreeSet<u32>,
) -> Arc<[u8]> {
    let mut record = Map::new();
    let identity = Announcement::decode(announcement).identity().to_owned();
    record.insert("identity".into(), identity.into());
    let announced = object(announcement).unwrap_or_default();
    for field in [ASIDE, CAPACITY, DATA_CENTER, SPREAD] {
        if let Some(value) = announced.get(field) {
            record.insert(field.into(), value.clone());
        }
    }
    // A long name of a data centre is no name, as in announcements.
    let center = record.get(DATA_CENTER).and_then(Value::as_str);
    if center.is_none_or(|name| name.len() > MAX_DATA_CENTER) {
        record.remove(DATA_CENTER);
    }
    record.insert(KEPT_FOR.into(), whole_seconds(kept_for).into());
    record.insert(PARTITIONS.into(), list(partitions).into());
    Value::Object(record).to_string().into_bytes().into()
}

/// Returns the duration in seconds, rounded up.
pub(crate) fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

fn list(partitions: &BTreeSet<u32>) -> String {
    let mut ranges: Vec<RangeInclusive<u32>> = Vec::new();
    for partition in partitions {
        match ranges.last_mut() {
            Some(run) if run.end().checked_add(1) == Some(*partition) => {
                *run = *run.start()..=*partition;
            }
            _ => ranges.push(*partition..=*partition),
        }
    }
    let mut list = String::new();
    for range in ranges {
        let comma = if list.is_empty() { "" } else { "," };
        let text = match range.into_inner() {
            (from, to) if from == to => format!("{comma}{from}"),
            (from, to) => format!("{comma}{from}-{to}"),
        };
        if list.len() + text.len() > MAX_LIST {
            break;
        }
        list += &text;
    }
    list
}

fn record(value: &[u8]) -> Option<Map<String, Value>> {
    if value.len() > MAX_RECORD {
        return None;
    }
    match serde_json::from_slice(value).ok()? {
        Value::Object(record) => Some(record),
        _ => None,
    }
}

/// Reads a record as every member does. `None`: another program wrote it.
fn kept(value: &[u8]) -> Option<KeptShare> {
    let record = record(value)?;
    let identity = record.get("identity")?.as_str()?;
    Some(KeptShare {
        identity: bounded(identity, MAX_IDENTITY).into_bytes(),
        share: share_in(&record),
        partitions: ranges(record.get(PARTITIONS)?.as_str()?)?,
    })
}

/// Reads a list of partitions. `None`: it is not in our spelling. Ranges that overlap are refused, so that no list is longer
/// than the number of partitions.
fn ranges(list: &str) -> Option<Vec<RangeInclusive<u32>>> {
    let (mut ranges, mut next) = (Vec::new(), 0);
    for text in list.split(',').filter(|text| !text.is_empty()) {
        let (from, to) = text.split_once('-').unwrap_or((text, text));
        let (from, to): (u32, u32) = (number(from)?, number(to)?);
        if from < next || to < from {
            return None;
        }
        next = to.checked_add(1)?;
        ranges.push(from..=to);
    }
    Some(ranges)
}

/// A record as a partition map shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeptRecord {
    pub(crate) identity: String,
    pub(crate) data_center: Option<String>,
    pub(crate) capacity: u32,
    pub(crate) kept_for: Option<Duration>,
}

impl KeptRecord {
    /// Reads a record. `None`: another program wrote it.
    pub(crate) fn decode(value: &[u8]) -> Option<Self> {
        let kept = kept(value)?;
        let record = record(value)?;
        let text = |name| record.get(name).and_then(Value::as_str).map(str::to_owned);
        Some(Self {
            identity: String::from_utf8_lossy(&kept.identity).into_owned(),
            data_center: text(DATA_CENTER).filter(|name| name.len() <= MAX_DATA_CENTER),
            capacity: kept.share.capacity,
            kept_for: record
                .get(KEPT_FOR)
                .and_then(Value::as_u64)
                .map(Duration::from_secs),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::set_aside;
    use proptest::prelude::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn written(announcement: &[u8], partitions: impl IntoIterator<Item = u32>) -> Arc<[u8]> {
        keep_share(announcement, HOUR, &partitions.into_iter().collect())
    }

    #[test]
    fn record_has_the_share_that_the_member_announces() {
        let announced = br#"{"identity":"a","capacity":3,"data_center":"east","spread":"data_center","address":"x"}"#;
        let record = written(announced, [0, 1, 2, 9]);
        let text = std::str::from_utf8(&record).unwrap();
        let wanted = r#"{"identity":"a","capacity":3,"data_center":"east","spread":"data_center","kept_for_s":3600,"partitions":"0-2,9"}"#;
        let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(parsed(text), parsed(wanted));
        let kept = kept(&record).unwrap();
        assert_eq!(kept.identity, b"a");
        assert_eq!(kept.share, share(announced));
        assert_eq!(kept.partitions, [0..=2, 9..=9]);
        let shown = KeptRecord::decode(&record).unwrap();
        assert_eq!((shown.capacity, shown.kept_for), (3, Some(HOUR)));
        assert_eq!(shown.data_center.as_deref(), Some("east"));
        assert!(
            super::kept(&written(&set_aside(announced), [0]))
                .unwrap()
                .share
                .aside
        );
    }

    #[test]
    fn record_of_a_plain_announcement_names_the_identity_that_others_read() {
        let kept = kept(&written(b"node-a", [])).unwrap();
        assert_eq!(kept.identity, (SHARES.identity)(b"node-a"));
        assert!(kept.partitions.is_empty());
    }

    #[test]
    fn list_in_another_spelling_is_no_record() {
        for list in [
            "2-1",
            "1,1",
            "3,2",
            "0-5,5",
            "x",
            "-1",
            "1-",
            "4294967296",
            "01",
            "+1",
            "1-+2",
        ] {
            let record = format!(r#"{{"identity":"a","partitions":"{list}"}}"#);
            assert_eq!(kept(record.as_bytes()), None, "{list}");
        }
        for odd in [
            &b"[]"[..],
            b"",
            b"{}",
            br#"{"identity":"a"}"#,
            br#"{"partitions":"1"}"#,
        ] {
            assert_eq!(kept(odd), None);
        }
        let long = format!(
            r#"{{"identity":"a","partitions":"1","x":"{}"}}"#,
            "x".repeat(MAX_RECORD)
        );
        assert_eq!(kept(long.as_bytes()), None);
    }

    #[test]
    fn longest_list_fits_and_ends_with_a_whole_number() {
        let identity = "\u{1}".repeat(MAX_IDENTITY);
        let announced =
            serde_json::json!({"identity": identity, "data_center": identity[..MAX_DATA_CENTER]});
        let record = written(announced.to_string().as_bytes(), (0..65_536).step_by(2));
        assert!(record.len() <= MAX_RECORD, "{}", record.len());
        let kept = kept(&record).unwrap();
        assert!(kept.partitions.len() > 8_000);
        let numbers = kept.partitions.iter().map(|range| *range.start());
        assert!(numbers.eq((0..).step_by(2).take(kept.partitions.len())));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn partitions_are_read_back_as_written(partitions in proptest::collection::btree_set(0u32..200, 0..100)) {
            let kept = kept(&written(b"a", partitions.clone())).unwrap();
            let read: BTreeSet<u32> = kept.partitions.into_iter().flatten().collect();
            prop_assert_eq!(read, partitions);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (kept(&bytes), KeptRecord::decode(&bytes));
        }
    }
}

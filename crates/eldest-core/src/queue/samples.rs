//! Keys and events that the tests of this folder share.

use super::own::Own;
use crate::kv::{Change, Entry};

pub(super) const PREFIX: &[u8] = b"e/";

pub(super) fn entry(key: &str, create_revision: i64, lease: i64) -> Entry {
    Entry {
        key: key.as_bytes().into(),
        value: (*b"v").into(),
        create_revision,
        mod_revision: create_revision,
        lease,
    }
}

pub(super) fn own(create_revision: i64) -> Own {
    Own {
        key: (*b"e/me").into(),
        create_revision,
        lease: 1,
    }
}

pub(super) fn delete(key: &str, revision: i64) -> Change {
    Change::Delete {
        key: key.as_bytes().into(),
        revision,
    }
}

pub(super) fn queue() -> Vec<Entry> {
    vec![entry("e/a", 3, 9), entry("e/b", 4, 8), entry("e/me", 10, 1)]
}

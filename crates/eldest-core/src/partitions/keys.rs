//! Names the keys of members, partitions and kept shares, and reads such names.

use std::sync::Arc;

use crate::kv::Entry;

/// The purpose of a key below the prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// The key of a member.
    Member {
        /// The lease that the key names.
        lease: i64,
    },
    /// The key of the partition with this number.
    Partition(u32),
    /// The key of a kept share.
    Kept {
        /// The lease that the key names.
        lease: i64,
    },
}

/// Returns `<prefix>m-<lease in lower-case hex>`.
pub fn member_key(prefix: &[u8], lease: i64) -> Arc<[u8]> {
    [prefix, format!("m-{lease:x}").as_bytes()].concat().into()
}

/// Returns `<prefix>o-<partition>`.
pub fn partition_key(prefix: &[u8], partition: u32) -> Arc<[u8]> {
    [prefix, format!("o-{partition}").as_bytes()]
        .concat()
        .into()
}

/// Returns `<prefix>k-<lease in lower-case hex>`, the key of a kept share, which has a lease of its own.
pub fn kept_key(prefix: &[u8], lease: i64) -> Arc<[u8]> {
    [prefix, format!("k-{lease:x}").as_bytes()].concat().into()
}

/// Reads the kind of a key. `None`: the key is not one of ours, or not in our spelling.
pub fn kind_of(prefix: &[u8], key: &[u8]) -> Option<KeyKind> {
    let name = std::str::from_utf8(key.strip_prefix(prefix)?).ok()?;
    let (kind, number) = name.split_at_checked(2)?;
    let digit = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f');
    let plain = number.bytes().all(digit) && (number == "0" || !number.starts_with('0'));
    match kind {
        "m-" if plain => lease_of(number).map(|lease| KeyKind::Member { lease }),
        "k-" if plain => lease_of(number).map(|lease| KeyKind::Kept { lease }),
        "o-" if plain => number.parse().ok().map(KeyKind::Partition),
        _ => None,
    }
}

/// Reads the kind of an entry by its key. `None` also for the key of a member or a kept share that is bound to another
/// lease than it names: another program overwrote it.
pub fn kind_of_entry(prefix: &[u8], entry: &Entry) -> Option<KeyKind> {
    kind_of(prefix, &entry.key).filter(|kind| match *kind {
        KeyKind::Member { lease } | KeyKind::Kept { lease } => lease == entry.lease,
        KeyKind::Partition(_) => true,
    })
}

/// Reads a lease. Zero is none: a key without a lease that names it would be a member that takes nothing and never goes.
fn lease_of(hex: &str) -> Option<i64> {
    let lease = i64::from_str_radix(hex, 16).ok();
    lease.filter(|lease| *lease != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &[u8] = b"p/2/";

    #[test]
    fn key_of_a_kept_share_is_read_as_it_is_written() {
        let key = kept_key(PREFIX, 0x7f);
        assert_eq!(*key, *b"p/2/k-7f");
        assert_eq!(kind_of(PREFIX, &key), Some(KeyKind::Kept { lease: 0x7f }));
    }

    #[test]
    fn only_keys_that_are_written_as_we_write_them_count() {
        for (key, kind) in [
            (&b"p/2/m-7f"[..], Some(KeyKind::Member { lease: 0x7f })),
            (b"p/2/m-7F", None),
            (b"p/2/m-", None),
            (b"p/2/m-0", None),
            (b"p/2/k-0", None),
            (b"p/2/k-7f", Some(KeyKind::Kept { lease: 0x7f })),
            (b"p/2/k-07f", None),
            (b"p/2/k-", None),
            (b"p/2/o-17", Some(KeyKind::Partition(17))),
            (b"p/2/m-07f", None),
            (b"p/2/o-0", Some(KeyKind::Partition(0))),
            (b"p/2/o-a", None),
            (b"p/2/o-017", None),
            (b"p/2/o-+1", None),
            (b"p/2/o-4294967296", None),
            (b"p/2/\xff", None),
            (b"p/3/o-1", None),
        ] {
            assert_eq!(
                kind_of(PREFIX, key),
                kind,
                "{}",
                String::from_utf8_lossy(key)
            );
        }
    }
}

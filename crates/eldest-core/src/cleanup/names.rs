//! Recognises a session's own keys by their names.

use crate::challenge::is_below_sessions;
use crate::queue::SHARED;

/// Returns the part after the last slash of a key.
fn name_of(key: &[u8]) -> &[u8] {
    key.rsplit(|byte| *byte == b'/').next().unwrap_or(key)
}

/// Returns true if the key is a partition's, of which many may be deleted at the same time.
pub(crate) fn is_one_of_many(key: &[u8]) -> bool {
    name_of(key).starts_with(b"o-")
}

/// Returns true if a session gives such a name to a key under that lease: of a candidate, permit, shared lock, member
/// or partition. Anchors and challenges, which are named after leases too, have owners of their own.
pub(crate) fn is_named_by_us(key: &[u8], lease: i64) -> bool {
    if is_below_sessions(key) {
        return false;
    }
    let (name, lease) = (name_of(key), format!("{lease:x}"));
    let digits = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let after_lease = name.strip_prefix(lease.as_bytes());
    let permit = after_lease.and_then(|rest| rest.strip_prefix(b"-"));
    let shared = after_lease.and_then(|rest| rest.strip_prefix(SHARED));
    after_lease == Some(b"")
        || permit.is_some_and(digits)
        || shared.is_some_and(digits)
        || name.strip_prefix(b"m-") == Some(lease.as_bytes())
        || name.strip_prefix(b"o-").is_some_and(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_candidates_permits_members_and_partitions_are_named_by_us() {
        for (key, ours) in [
            (&b"ns/e/7f"[..], true),
            (b"ns/s/3/7f-12", true),
            (b"ns/l/7f-shared-12", true),
            (b"ns/l/7f-shared-", false),
            (b"ns/l/7e-shared-12", false),
            (b"ns/p/9/m-7f", true),
            (b"ns/p/9/o-0", true),
            (b"ns/e/7e", false),
            (b"ns/e/7f-", false),
            (b"ns/e/7f-x", false),
            (b"ns/p/9/m-7e", false),
            (b"ns/p/9/o-x", false),
            (b"services/billing/10.0.0.1:8080", false),
            (b"7f/endpoint", false),
            (b"ns/~session/7f", false),
            (b"ns/~session/7e/challenges/7f", false),
        ] {
            let text = String::from_utf8_lossy(key);
            assert_eq!(is_named_by_us(key, 0x7f), ours, "{text}");
        }
    }
}

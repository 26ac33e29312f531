//! Writes a session's anchor into the values of its candidates, and reads it.

use super::store::Key;
use eldest_core::challenge::Announced;

/// The sign before the anchor in an announcement.
const SIGN: u8 = b'#';

/// Returns the value without the anchor that it announces.
pub(super) fn plain(value: &[u8]) -> &[u8] {
    let end = value.iter().position(|byte| *byte == SIGN);
    &value[..end.unwrap_or(value.len())]
}

/// Returns the value with the announcement of that anchor.
pub(super) fn announce(value: &[u8], own: &Announced) -> Key {
    let created = format!("@{}", own.create_revision);
    [value, &[SIGN], &own.anchor, created.as_bytes()]
        .concat()
        .into()
}

/// Returns the anchor that a value announces.
pub(super) fn announced(value: &[u8]) -> Option<Announced> {
    let rest = value.strip_prefix(plain(value))?.strip_prefix(&[SIGN])?;
    let (anchor, created) = std::str::from_utf8(rest).ok()?.rsplit_once('@')?;
    Some(Announced {
        anchor: anchor.as_bytes().into(),
        create_revision: created.parse().ok()?,
    })
}

//! Converts a request's key and range end into the keys that they select: one, a range, or all from one on.

use std::ops::Bound;

/// The keys that a request selects by its key and the end of its range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Keys {
    /// This key alone.
    One(Vec<u8>),
    /// All keys from the first on, before the second.
    Until(Vec<u8>, Vec<u8>),
    /// All keys from this one on.
    From(Vec<u8>),
}

impl Keys {
    pub(crate) fn new(key: &[u8], end: &[u8]) -> Self {
        match end {
            [] => Keys::One(key.to_vec()),
            [0] => Keys::From(key.to_vec()),
            _ => Keys::Until(key.to_vec(), end.to_vec()),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Keys::Until(key, end) if key >= end)
    }

    /// Returns the one key, or the exact beginning of these keys; `None` for any other range.
    pub(crate) fn beginning(&self) -> Option<&[u8]> {
        match self {
            Keys::One(one) => Some(one),
            Keys::Until(first, end) => {
                let (last, before) = first.split_last()?;
                let next = last.checked_add(1)?;
                let prefix = end.strip_prefix(before).is_some_and(|end| end == [next]);
                prefix.then_some(first)
            }
            Keys::From(_) => None,
        }
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        match self {
            Keys::One(one) => one == key,
            Keys::Until(first, end) => &**first <= key && key < &**end,
            Keys::From(first) => &**first <= key,
        }
    }

    /// Returns the bounds for a sorted map; the range is not empty.
    pub(crate) fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        match self {
            Keys::One(one) => (Bound::Included(one), Bound::Included(one)),
            Keys::Until(first, end) => (Bound::Included(first), Bound::Excluded(end)),
            Keys::From(first) => (Bound::Included(first), Bound::Unbounded),
        }
    }
}

//! Selects keys as a request does: one, a range, or all from one on.

use std::ops::Bound;

use crate::Bytes;

/// The keys that a request selects by its key and the end of its range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keys {
    /// This key alone.
    One(Bytes),
    /// All keys from the first on, before the second.
    Until(Bytes, Bytes),
    /// All keys from this one on.
    From(Bytes),
}

impl Keys {
    /// Reads etcd's notation: no end selects one key, and an end of one zero byte all keys from the first on.
    pub fn new(key: impl Into<Bytes>, end: &[u8]) -> Self {
        match end {
            [] => Keys::One(key.into()),
            [0] => Keys::From(key.into()),
            _ => Keys::Until(key.into(), end.into()),
        }
    }

    /// Selects all keys that begin with the prefix.
    pub fn below(prefix: &Bytes) -> Self {
        match Self::end_of(prefix) {
            Some(end) => Keys::Until(Bytes::clone(prefix), end),
            None => Keys::From(Bytes::clone(prefix)),
        }
    }

    /// Returns the first key after all that begin with the prefix; `None` if there is no such key.
    pub fn end_of(prefix: &[u8]) -> Option<Bytes> {
        let last = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
        let mut end = prefix[..=last].to_vec();
        end[last] += 1;
        Some(end.into())
    }

    /// Returns the first key.
    pub fn first(&self) -> &Bytes {
        match self {
            Keys::One(first) | Keys::Until(first, _) | Keys::From(first) => first,
        }
    }

    /// Returns true if the range ends before it begins.
    pub fn is_empty(&self) -> bool {
        matches!(self, Keys::Until(key, end) if key >= end)
    }

    /// Returns the one key, or the exact beginning of these keys; `None` for any other range.
    pub fn beginning(&self) -> Option<&[u8]> {
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

    /// Returns true if the key is selected.
    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            Keys::One(one) => **one == *key,
            Keys::Until(first, end) => **first <= *key && *key < **end,
            Keys::From(first) => **first <= *key,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_of_a_prefix_has_its_keys_and_no_others() {
        let below = |prefix: &[u8]| Keys::below(&prefix.into());
        assert_eq!(below(b"a/"), Keys::new(&b"a/"[..], b"a0"));
        assert_eq!(below(b"a\xff\xff"), Keys::new(&b"a\xff\xff"[..], b"b"));
        assert_eq!(below(b"\xff"), Keys::new(&b"\xff"[..], b"\0"));
        assert_eq!(below(b"a/").beginning(), Some(&b"a/"[..]));
    }
}

//! Defines a node's place and version as it announces them, and names the marks of evacuated data centres.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::anchors::plain;
use super::store::Key;
use eldest_core::evacuation::Homes;
use eldest_core::partitions::{Center, KeptShare, Share, ShareReaders};
use eldest_core::version::Version;

/// The prefix of the marks.
pub(crate) const MARKS: &[u8] = b"~evacuated/";

/// The place that a node announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Home {
    /// The node announces no data centre.
    #[default]
    Nowhere,
    East,
    West,
}

impl Home {
    fn name(self) -> Option<&'static str> {
        match self {
            Home::Nowhere => None,
            Home::East => Some("east"),
            Home::West => Some("west"),
        }
    }

    /// Returns the prefix of every value that is announced there.
    pub(super) fn tag(self) -> String {
        self.name().map_or(String::new(), |name| format!("{name}|"))
    }

    pub(super) fn mark(self) -> Option<Key> {
        let name = self.name()?.as_bytes();
        Some([MARKS, name].concat().into())
    }
}

/// The first byte of the value of a member that declines partitions.
const ASIDE: u8 = b'!';

pub(super) fn home(value: &[u8]) -> Option<Vec<u8>> {
    let value = value.strip_prefix(&[ASIDE]).unwrap_or(value);
    let end = value.iter().position(|byte| *byte == b'|')?;
    Some(value[..end].to_vec())
}

/// The sign of a candidate that prepares for its terms and is not warm.
const COLD: &str = "~";

fn is_cold(value: &[u8]) -> bool {
    value.contains(&COLD.as_bytes()[0])
}

/// The sign before and after a version.
const VERSION: char = '@';

/// Returns the tag of a version: 0 if the node has none.
pub(super) fn version_tag(version: u32) -> String {
    match version {
        0 => String::new(),
        version => format!("{VERSION}{version}{VERSION}"),
    }
}

pub(super) fn version(value: &[u8]) -> Option<Version> {
    let text = std::str::from_utf8(value).ok()?;
    text.split(VERSION).nth(1)?.parse().ok()
}

/// Returns the sign, with the partitions for which a member is ready.
pub(super) fn cold_tag(ready: &BTreeSet<u32>) -> String {
    let ready: Vec<_> = ready.iter().map(u32::to_string).collect();
    format!("{COLD}{}{COLD}", ready.join(","))
}

fn ready(value: &[u8]) -> Option<BTreeSet<u32>> {
    let value = std::str::from_utf8(value).ok()?;
    let numbers = value.split(COLD).nth(1)?.split(',');
    Some(numbers.filter_map(|number| number.parse().ok()).collect())
}

fn set_aside(value: &[u8]) -> Key {
    [&[ASIDE], value].concat().into()
}

/// Returns the tag of a member's capacity and of its wish for equal shares of the data centres.
pub(super) fn share_tag(capacity: u32, spread: bool) -> String {
    let spread = if spread { SPREAD } else { "" };
    match capacity {
        1 => spread.to_owned(),
        more => format!("{spread}*{more}*"),
    }
}

/// The sign after the data centre's name.
const SPREAD: &str = "+";

fn share(value: &[u8]) -> Share {
    let mut parts = value.split(|byte| *byte == b'*').skip(1);
    let capacity = parts
        .next()
        .and_then(|bytes| std::str::from_utf8(bytes).ok());
    Share {
        aside: value.first() == Some(&ASIDE),
        capacity: capacity.and_then(|digits| digits.parse().ok()).unwrap_or(1),
        center: center(value),
    }
}

/// The readers of members' shares.
pub(super) const SHARES: ShareReaders = ShareReaders {
    share,
    identity,
    kept,
};

/// Returns the name of the node, which is the last part of each announcement before the anchor.
fn identity(value: &[u8]) -> Vec<u8> {
    let value = plain(value);
    let at = value.iter().rposition(|byte| *byte == b'n');
    value[at.unwrap_or_default()..].to_vec()
}

/// The beginning of a record that keeps a share.
const KEPT: &str = "kept:";

/// Returns the record that keeps these partitions for an identity.
pub(super) fn kept_value(identity: usize, partitions: &[u32]) -> String {
    let numbers: Vec<_> = partitions.iter().map(u32::to_string).collect();
    format!("{KEPT}n{identity}:{}", numbers.join(","))
}

fn kept(value: &[u8]) -> Option<KeptShare> {
    let record = std::str::from_utf8(value).ok()?.strip_prefix(KEPT)?;
    let (name, numbers) = record.split_once(':')?;
    let numbers = numbers.split(',').filter_map(|number| number.parse().ok());
    Some(KeptShare {
        identity: name.as_bytes().to_vec(),
        share: share(b""),
        partitions: numbers.map(|number: u32| number..=number).collect(),
    })
}

fn center(value: &[u8]) -> Option<Center> {
    let home = home(value)?;
    let value = value.strip_prefix(&[ASIDE]).unwrap_or(value);
    let rest = value.strip_prefix(home.as_slice())?.strip_prefix(b"|")?;
    let number = |name: Vec<u8>| name.into_iter().map(Center::from).sum();
    rest.starts_with(SPREAD.as_bytes()).then(|| number(home))
}

/// Returns how the cores of a world read announcements.
pub(super) fn homes() -> Homes {
    Homes {
        marks: MARKS.into(),
        home,
        is_cold,
        version,
        ready,
        marked: version,
        set_aside,
        shares: SHARES,
    }
}

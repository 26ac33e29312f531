//! Says where a node is, in what it announces, and names the marks of evacuated data centres.

use serde::{Deserialize, Serialize};

use super::store::Key;
use eldest_core::evacuation::Homes;

/// Below this are the marks.
pub(crate) const MARKS: &[u8] = b"~evacuated/";

/// Where a node is, as it announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Home {
    /// It announces no data centre.
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

    /// What begins every value that is announced there.
    pub(super) fn tag(self) -> String {
        self.name().map_or(String::new(), |name| format!("{name}|"))
    }

    pub(super) fn mark(self) -> Option<Key> {
        let name = self.name()?.as_bytes();
        Some([MARKS, name].concat().into())
    }
}

/// What is announced by whoever does without partitions begins with that.
const ASIDE: u8 = b'!';

pub(super) fn home(value: &[u8]) -> Option<Vec<u8>> {
    let value = value.strip_prefix(&[ASIDE]).unwrap_or(value);
    let end = value.iter().position(|byte| *byte == b'|')?;
    Some(value[..end].to_vec())
}

fn set_aside(value: &[u8]) -> Key {
    [&[ASIDE], value].concat().into()
}

fn is_set_aside(value: &[u8]) -> bool {
    value.first() == Some(&ASIDE)
}

/// How the cores of a world read what is announced.
pub(super) fn homes() -> Homes {
    Homes {
        marks: MARKS.into(),
        home,
        set_aside,
        is_set_aside,
    }
}

//! Defines the versions of nodes: dotted numbers, which are compared one after the other.

use std::cmp::Ordering;
use std::error::Error;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

/// The largest number of numbers in a version.
const MOST: usize = 4;
/// How much of a text without a version an error repeats, in characters.
const SHOWN: usize = 64;

/// The version of a node's program: one to four numbers with dots between them, such as `1.10.2`.
///
/// Versions are compared number by number, so `1.10` is newer than `1.9`, and a missing number counts as zero: `1.2`
/// equals `1.2.0`. Each number is at most 4,294,967,295. Signs, letters, blanks and suffixes such as `-rc1` are refused.
///
/// ```
/// # use eldest_core::version::Version;
/// # fn main() -> Result<(), eldest_core::version::InvalidVersion> {
/// let version: Version = "1.10".parse()?;
/// assert!(version > "1.9".parse()?);
/// assert_eq!("1.2".parse::<Version>()?, "1.2.0".parse()?);
/// assert_eq!(version.to_string(), "1.10");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Version {
    numbers: [u32; MOST],
    /// How many of the numbers the text has.
    count: u8,
}

impl FromStr for Version {
    type Err = InvalidVersion;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (mut numbers, mut count) = ([0; MOST], 0_u8);
        for part in text.split('.') {
            let number = numbers.get_mut(usize::from(count));
            let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            match (number, part.parse()) {
                (Some(number), Ok(parsed)) if is_number => *number = parsed,
                _ => return Err(InvalidVersion::new(text)),
            }
            count += 1;
        }
        Ok(Self { numbers, count })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = self.numbers.iter().take(usize::from(self.count));
        let texts: Vec<_> = numbers.map(ToString::to_string).collect();
        f.pad(&texts.join("."))
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.numbers == other.numbers
    }
}

impl Eq for Version {}

impl Hash for Version {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.numbers.hash(state);
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        self.numbers.cmp(&other.numbers)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Version {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Version {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The error for a text that is no [`Version`]. It names the text and the rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidVersion {
    text: String,
}

impl InvalidVersion {
    fn new(text: &str) -> Self {
        let text = text.chars().take(SHOWN).collect();
        Self { text }
    }
}

impl fmt::Display for InvalidVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is no version: a version has one to four numbers from 0 to {} with dots between them, such as 1.10.2",
            self.text,
            u32::MAX
        )
    }
}

impl Error for InvalidVersion {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::DefaultHasher;

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    #[test]
    fn versions_are_compared_number_by_number() {
        let ascending = ["0", "0.9", "1", "1.9", "1.10", "1.10.0.1", "2", "10.0"];
        for pair in ascending.windows(2) {
            assert!(version(pair[0]) < version(pair[1]), "{pair:?}");
        }
    }

    #[test]
    fn missing_numbers_are_zeros_and_the_text_stays() {
        let hash = |version: Version| {
            let mut hasher = DefaultHasher::new();
            version.hash(&mut hasher);
            hasher.finish()
        };
        for (short, long) in [("1.2", "1.2.0"), ("3", "3.0.0.0"), ("1.02", "1.2")] {
            let (short, long) = (version(short), version(long));
            assert_eq!(short, long);
            assert_eq!(short.cmp(&long), Ordering::Equal);
            assert_eq!(hash(short), hash(long));
        }
        for text in ["2", "1.2.0", "1.2.3.4294967295"] {
            assert_eq!(version(text).to_string(), text);
        }
    }

    #[test]
    fn text_without_a_version_is_refused_with_the_rule() {
        for text in [
            "",
            ".",
            "1.",
            ".1",
            "1..2",
            "1.2.3.4.5",
            "v1",
            "1.2-rc1",
            "+1",
            "-1",
            " 1",
            "1 ",
            "1,2",
            "4294967296",
            "\u{661}",
        ] {
            let error = text.parse::<Version>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("{text:?} is no version")),
                "{error}"
            );
            assert!(error.contains("one to four numbers"), "{error}");
        }
        let long = "1".repeat(10_000).parse::<Version>().unwrap_err();
        assert!(long.to_string().len() < 250, "{long}");
    }

    #[cfg(feature = "serde")]
    #[test]
    fn version_is_text_in_json() {
        let read: Version = serde_json::from_str("\"1.10\"").unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), "\"1.10\"");
        let error = serde_json::from_str::<Version>("\"x\"").unwrap_err();
        assert!(error.to_string().contains("\"x\" is no version"), "{error}");
        assert!(serde_json::from_str::<Version>("1.1").is_err());
    }
}

//! Parses and compares version numbers.

use std::fmt;

/// A release: major, minor, patch; parts that are not written are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) u64, pub(crate) u64, pub(crate) u64);

impl Version {
    /// Reads "1.88", "3.5.34", "v3.6.0-rc.1" (the pre-release is dropped) or "3.4.23+dfsg".
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim().trim_start_matches('v');
        let release = text.split(['-', '+', '~']).next()?;
        let mut parts = release.split('.').map(str::parse);
        let major = parts.next()?.ok()?;
        let mut rest = [0; 2];
        for slot in &mut rest {
            if let Some(part) = parts.next() {
                *slot = part.ok()?;
            }
        }
        match parts.next() {
            Some(_) => None,
            None => Some(Self(major, rest[0], rest[1])),
        }
    }

    /// What `etcd --version` prints, read.
    pub(crate) fn of_etcd(output: &str) -> Option<Self> {
        let mut lines = output.lines();
        lines.find_map(|line| Self::parse(line.strip_prefix("etcd Version:")?))
    }

    /// Whether this is a release of "3.5" (or of "3", or exactly "3.4.23").
    pub(crate) fn is_of(self, series: &str) -> bool {
        let release = self.to_string();
        release
            .strip_prefix(series)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

#[cfg(test)]
mod tests {
    use super::Version;

    #[test]
    fn short_and_decorated_versions_are_read() {
        assert_eq!(Version::parse("1.88"), Some(Version(1, 88, 0)));
        assert_eq!(Version::parse("2"), Some(Version(2, 0, 0)));
        assert_eq!(Version::parse(" v3.6.0-rc.1\n"), Some(Version(3, 6, 0)));
        assert_eq!(Version::parse("3.4.23+dfsg-4+b4"), Some(Version(3, 4, 23)));
    }

    #[test]
    fn what_is_no_version_is_not_read() {
        for text in ["", "x", "1.x", "1..2", "1.2.3.4"] {
            assert_eq!(Version::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn versions_compare_by_number_and_not_by_letter() {
        assert!(Version::parse("1.9") < Version::parse("1.88"));
        assert!(Version::parse("1.88") == Version::parse("1.88.0"));
        assert!(Version::parse("1.88.1") > Version::parse("1.88"));
    }

    #[test]
    fn a_series_does_not_take_in_its_longer_namesakes() {
        assert!(Version(3, 5, 34).is_of("3.5"));
        assert!(Version(3, 4, 23).is_of("3.4.23"));
        assert!(!Version(3, 50, 1).is_of("3.5"));
        assert!(!Version(3, 4, 230).is_of("3.4.23"));
    }

    #[test]
    fn etcds_own_words_are_understood() {
        let output = "etcd Version: 3.5.34\nGit SHA: abc\nGo Version: go1.24\n";
        assert_eq!(Version::of_etcd(output), Some(Version(3, 5, 34)));
        assert_eq!(Version::of_etcd("Go Version: go1.24"), None);
    }
}

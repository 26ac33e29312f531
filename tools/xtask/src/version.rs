//! Reads the version numbers that programs print.

use cargo_metadata::semver::{Prerelease, Version, VersionReq};

/// Reads "3.5.34", "v3.6.0-rc.1" (the pre-release is dropped) or "3.4.23+dfsg".
pub(crate) fn parse(text: &str) -> Option<Version> {
    let mut version = Version::parse(text.trim().trim_start_matches('v')).ok()?;
    version.pre = Prerelease::EMPTY;
    Some(version)
}

/// Parses the output of `etcd --version`.
pub(crate) fn of_etcd(output: &str) -> Option<Version> {
    let mut lines = output.lines();
    lines.find_map(|line| parse(line.strip_prefix("etcd Version:")?))
}

/// Returns true if this is a release of "3.5" (or of "3", or exactly "3.4.23").
pub(crate) fn is_of(version: &Version, series: &str) -> bool {
    VersionReq::parse(&format!("={series}")).is_ok_and(|series| series.matches(version))
}

#[cfg(test)]
mod tests {
    use super::{is_of, parse};
    use cargo_metadata::semver::Version;

    #[test]
    fn decorated_versions_are_read() {
        assert_eq!(parse(" v3.6.0-rc.1\n"), Some(Version::new(3, 6, 0)));
        assert_eq!(parse("2.26.1-4"), Some(Version::new(2, 26, 1)));
        let debian = parse("3.4.23+dfsg-4-b4").unwrap();
        assert!(is_of(&debian, "3.4.23") && is_of(&debian, "3.4"));
        assert!(!is_of(&debian, "3.4.2") && !is_of(&debian, "3.40"));
        assert_eq!(parse("etcd"), None);
    }
}

//! Lists the bugs and advisories of etcd that matter to elections, with the releases that fix them.

use eldest_http::contract::command::Level;

/// A version, such as 3.5.23.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32, u32);

impl Version {
    fn parse(text: &str) -> Option<Self> {
        let plain = text.split(['-', '+']).next()?;
        let mut numbers = plain.split('.').map(str::parse);
        let mut next = || numbers.next()?.ok();
        Some(Self(next()?, next()?, next()?))
    }
}

/// A flaw of etcd, and the release of each series that mended it.
struct Flaw {
    /// True if the flaw concerns only clusters with users.
    users_only: bool,
    level: Level,
    what: &'static str,
    /// The first release of each series without the flaw. Older series keep it to their end; newer ones never had it.
    mended: &'static [Version],
}

const FLAWS: &[Flaw] = &[
    Flaw {
        users_only: false,
        level: Level::Fail,
        what: "may answer a linearizable read, which verifies renewals, with old state after a pause",
        mended: &[Version(3, 4, 42), Version(3, 5, 28), Version(3, 6, 9)],
    },
    Flaw {
        users_only: false,
        level: Level::Warn,
        what: "may acknowledge the renewal of a lease that is gone; eldest verifies renewals, other clients do not",
        mended: &[Version(3, 4, 38), Version(3, 5, 23), Version(3, 6, 5)],
    },
    Flaw {
        users_only: false,
        level: Level::Warn,
        what: "has bugs in watches that later releases fix; a node may learn of a change late",
        mended: &[Version(3, 4, 31), Version(3, 5, 0), Version(3, 6, 9)],
    },
    Flaw {
        users_only: true,
        level: Level::Warn,
        what: "lets anybody revoke leases and compact without permission (CVE-2026-33413, GHSA-q8m4-xhhv-38mg)",
        mended: &[Version(3, 4, 42), Version(3, 5, 28), Version(3, 6, 9)],
    },
    Flaw {
        users_only: true,
        level: Level::Warn,
        what: "lets any user read and write all keys by nested transactions (GHSA-rfx7-8w68-q57q)",
        mended: &[Version(3, 4, 42), Version(3, 5, 28), Version(3, 6, 9)],
    },
    Flaw {
        users_only: true,
        level: Level::Warn,
        what: "lets users read, and attach leases, without permission by puts in transactions (CVE-2026-44283, \
               GHSA-x35m-3gp4-4fh5)",
        mended: &[Version(3, 4, 44), Version(3, 5, 30), Version(3, 6, 11)],
    },
    Flaw {
        users_only: true,
        level: Level::Warn,
        what: "lets a user who may read one key watch all that follow it (CVE-2026-73499, GHSA-xg4h-6gfc-h4m8)",
        mended: &[Version(3, 5, 33), Version(3, 6, 14), Version(3, 7, 1)],
    },
];

/// The oldest series that is tested.
const OLDEST: Version = Version(3, 4, 0);
/// The last series that gets no more releases.
const ENDED: (u32, u32) = (3, 4);

/// Returns the flaws of that version: severity, description, and the release to take instead.
pub(crate) fn flaws(version: &str, users: bool) -> Vec<(Level, String, String)> {
    let Some(version) = Version::parse(version) else {
        let what = format!("the version {version:?} is unknown");
        return vec![(Level::Warn, what, "check etcd's releases".to_owned())];
    };
    if version < OLDEST {
        let what = "this etcd is too old: eldest is tested with 3.4 and newer".to_owned();
        return vec![(Level::Fail, what, "upgrade to 3.5 or newer".to_owned())];
    }
    let series = (version.0, version.1);
    let mut found = Vec::new();
    for flaw in FLAWS {
        if flaw.users_only && !users {
            continue;
        }
        let cure = flaw.mended.iter().find(|cure| (cure.0, cure.1) == series);
        let first = flaw.mended.first();
        let concerned = match cure {
            Some(cure) => version < *cure,
            None => first.is_some_and(|first| series < (first.0, first.1)),
        };
        if concerned {
            let target = match cure {
                Some(Version(a, b, c)) => format!("upgrade to {a}.{b}.{c} or a later {a}.{b}"),
                None => "upgrade to a newer series".to_owned(),
            };
            found.push((flaw.level, format!("etcd {}", flaw.what), target));
        }
    }
    if series == ENDED {
        let what = "etcd 3.4 receives no more releases".to_owned();
        found.push((
            Level::Warn,
            what,
            "upgrade to 3.5 or newer, one series at a time".to_owned(),
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Versions, the number of their flaws about old state, and that of advisories where there are users.
    #[test]
    fn flaw_is_reported_until_the_release_that_mends_it() {
        let count = |version, users, part: &str| {
            let flaws = flaws(version, users);
            flaws
                .iter()
                .filter(|(_, what, _)| what.contains(part))
                .count()
        };
        for (version, stale, advisories) in [
            ("3.4.41", 1, None),
            ("3.4.42", 0, None),
            ("3.5.27", 1, Some(4)),
            ("3.5.28", 0, None),
            ("3.6.8", 1, None),
            ("3.6.9", 0, None),
            ("3.7.0", 0, Some(1)),
            // One was never mended in 3.4.
            ("3.4.45", 0, Some(1)),
        ] {
            assert_eq!(count(version, false, "old state"), stale, "{version}");
            assert_eq!(count(version, false, "GHSA"), 0, "no users: {version}");
            if let Some(advisories) = advisories {
                assert_eq!(count(version, true, "GHSA"), advisories, "{version}");
            }
        }
        for version in [
            "3.5.33",
            "3.6.14",
            "3.7.1",
            "3.7.2",
            "3.8.0",
            "3.7.2-rc.0+git",
        ] {
            assert!(flaws(version, true).is_empty(), "{version}");
        }
    }

    #[test]
    fn debians_etcd_must_be_replaced_and_an_unknown_version_is_reported() {
        for old in ["3.4.23", "3.3.25"] {
            let flaws = flaws(old, false);
            assert!(
                flaws.iter().any(|(level, ..)| *level == Level::Fail),
                "{old}"
            );
        }
        assert_eq!(flaws("next", false)[0].0, Level::Warn);
    }
}

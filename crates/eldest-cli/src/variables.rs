//! Names the environment variables: those of options, the secrets, and those that programs receive.
//!
//! One rule: an option `--some-name` that may come from the environment has the variable `ELDEST_SOME_NAME`. The tests
//! of the command line check every option, and docs/cli.md, against it.

/// Holds the password of `--user`. There is no option for it: every user of a machine can read arguments.
pub(crate) const PASSWORD: &str = "ELDEST_PASSWORD";
/// Holds the token for write requests. There is no option for it either.
pub(crate) const HTTP_TOKEN: &str = "ELDEST_HTTP_TOKEN";
/// Variables that are hidden from every program that we run.
#[cfg(unix)]
pub(crate) const SECRETS: [&str; 2] = [PASSWORD, HTTP_TOKEN];

/// Variables of three options, set from the options for a program: an `eldest` that it runs uses the same etcd.
#[cfg(unix)]
pub(crate) const ENDPOINTS: &str = "ELDEST_ENDPOINTS";
#[cfg(unix)]
pub(crate) const DATA_CENTER: &str = "ELDEST_DATA_CENTER";
#[cfg(unix)]
pub(crate) const ID: &str = "ELDEST_ID";

/// Variables of two options that no program receives: an `eldest` that it runs would run our command at its own end.
#[cfg(unix)]
pub(crate) const OF_AFTER: [&str; 2] = ["ELDEST_AFTER", "ELDEST_AFTER_LIMIT"];

/// Variable of an option that no program receives either: an `eldest` that it runs in another election would require this
/// program's version there.
#[cfg(unix)]
pub(crate) const APP_VERSION: &str = "ELDEST_APP_VERSION";

/// Returns the variables that no program receives which this command runs.
#[cfg(unix)]
pub(crate) fn hidden() -> impl Iterator<Item = &'static str> {
    SECRETS.into_iter().chain(OF_AFTER).chain([APP_VERSION])
}

/// Further variables that are set for a program. No option may ever have one of these names.
#[cfg(unix)]
pub(crate) const ELECTION: &str = "ELDEST_ELECTION";
#[cfg(unix)]
pub(crate) const FENCING_TOKEN: &str = "ELDEST_FENCING_TOKEN";
#[cfg(unix)]
pub(crate) const TERM_KEY: &str = "ELDEST_TERM_KEY";
/// Set only for the command of `--after`.
#[cfg(unix)]
pub(crate) const END_REASON: &str = "ELDEST_END_REASON";
#[cfg(unix)]
pub(crate) const MAY_OVERLAP: &str = "ELDEST_MAY_OVERLAP";
#[cfg(unix)]
pub(crate) const TIME_LEFT_MS: &str = "ELDEST_TIME_LEFT_MS";
#[cfg(unix)]
pub(crate) const PARTITION: &str = "ELDEST_PARTITION";
#[cfg(unix)]
pub(crate) const PARTITION_COUNT: &str = "ELDEST_PARTITION_COUNT";

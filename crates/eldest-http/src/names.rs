//! Parses the names in paths. The name of an election or a lock may contain a plain slash. `%2F` always belongs to the
//! name, so it is needed in a name whose last part is also an action's.

use http::{Method, StatusCode};
use percent_encoding::percent_decode_str;

use super::problem::Problem;

/// The path before the name of an election.
const ELECTIONS: &str = "/v1/elections/";
const LOCKS: &str = "/v1/locks/";
const EVACUATIONS: &str = "/v1/evacuations/";
const PARTITIONS: &str = "/v1/partitions/";

/// The part of an election that a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// `{name}`.
    State,
    /// `{name}/events`.
    Events,
    /// `{name}/step_down`.
    StepDown,
    /// `{name}/heartbeat`.
    Heartbeat,
    /// `{name}/serving`.
    Serving,
    /// `{name}/warm`.
    Warm,
}

impl Part {
    /// Returns the methods that it accepts.
    pub(super) const fn allow(self) -> &'static str {
        match self {
            Part::State | Part::Events => "GET,HEAD,OPTIONS",
            Part::StepDown | Part::Heartbeat | Part::Serving => "POST,OPTIONS",
            Part::Warm => "POST,DELETE,OPTIONS",
        }
    }
}

/// Returns the name of an election, and the requested part of it.
pub(super) fn election(path: &str) -> Result<(String, Part), Problem> {
    let rest = path.strip_prefix(ELECTIONS).unwrap_or_default();
    let (name, part) = match rest.rsplit_once('/') {
        Some((name, "events")) => (name, Part::Events),
        Some((name, "step_down")) => (name, Part::StepDown),
        Some((name, "heartbeat")) => (name, Part::Heartbeat),
        Some((name, "serving")) => (name, Part::Serving),
        Some((name, "warm")) => (name, Part::Warm),
        _ => (rest, Part::State),
    };
    Ok((decoded(name)?, part))
}

/// The part of a set of partitions that a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PartitionsPart {
    /// `{name}`.
    State,
    /// `{name}/owner`.
    Owner,
    /// `{name}/own`.
    Own,
    /// `{name}/heartbeat`.
    Heartbeat,
    /// `{name}/forget`.
    Forget,
    /// `{name}/events`.
    Events,
}

impl PartitionsPart {
    /// Returns the methods that it accepts.
    pub(super) fn allow(self) -> &'static str {
        match self {
            Self::State | Self::Owner | Self::Own | Self::Events => "GET,HEAD,OPTIONS",
            Self::Heartbeat | Self::Forget => "POST,OPTIONS",
        }
    }
}

/// Returns the name of a set of partitions, and the requested part of it.
pub(super) fn partitions(path: &str) -> Result<(String, PartitionsPart), Problem> {
    let rest = path.strip_prefix(PARTITIONS).unwrap_or_default();
    let (name, part) = match rest.rsplit_once('/') {
        Some((name, "owner")) => (name, PartitionsPart::Owner),
        Some((name, "own")) => (name, PartitionsPart::Own),
        Some((name, "heartbeat")) => (name, PartitionsPart::Heartbeat),
        Some((name, "forget")) => (name, PartitionsPart::Forget),
        Some((name, "events")) => (name, PartitionsPart::Events),
        _ => (rest, PartitionsPart::State),
    };
    Ok((decoded(name)?, part))
}

/// A request about a lock.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LockRequest {
    /// `POST {resource}`.
    Acquire(String),
    /// `PUT {resource}/{lock}/renew`.
    Renew(String, String),
    /// `DELETE {resource}/{lock}`.
    Release(String, String),
    /// A path that does not accept the method, with the methods that it accepts.
    Other(&'static str),
}

/// Returns the name of a lock, and the request. The method determines where the name ends.
pub(super) fn lock(method: &Method, path: &str) -> Result<LockRequest, Problem> {
    let rest = path.strip_prefix(LOCKS).unwrap_or_default();
    let held = |path: &str| match path.rsplit_once('/') {
        Some((resource, id)) => Ok(Some((decoded(resource)?, decoded(id)?))),
        None => Ok(None),
    };
    let renewal = rest
        .strip_suffix("/renew")
        .filter(|held| held.contains('/'));
    let request = match *method {
        Method::POST => Some(LockRequest::Acquire(decoded(rest)?)),
        Method::DELETE => held(rest)?.map(|(resource, id)| LockRequest::Release(resource, id)),
        Method::PUT => match renewal {
            Some(path) => held(path)?.map(|(resource, id)| LockRequest::Renew(resource, id)),
            None => None,
        },
        _ => None,
    };
    let allow = match (renewal, rest.contains('/')) {
        (Some(_), _) => "POST,DELETE,PUT,OPTIONS",
        (None, true) => "POST,DELETE,OPTIONS",
        (None, false) => "POST,OPTIONS",
    };
    Ok(request.unwrap_or(LockRequest::Other(allow)))
}

/// Returns the name of a data centre.
pub(super) fn data_center(path: &str) -> Result<String, Problem> {
    decoded(path.strip_prefix(EVACUATIONS).unwrap_or_default())
}

fn decoded(text: &str) -> Result<String, Problem> {
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded = decoded.map_err(|_| {
        let detail = "the decoded path is not UTF-8";
        Problem::new(StatusCode::BAD_REQUEST, "bad_path", detail)
    })?;
    Ok(decoded.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_is_part_of_a_name_with_and_without_an_escape() {
        for (path, name, part) in [
            ("jobs", "jobs", Part::State),
            ("billing/scheduler", "billing/scheduler", Part::State),
            ("billing%2Fscheduler", "billing/scheduler", Part::State),
            (
                "billing/scheduler/events",
                "billing/scheduler",
                Part::Events,
            ),
            (
                "billing%2fscheduler/step_down",
                "billing/scheduler",
                Part::StepDown,
            ),
            ("jobs/heartbeat", "jobs", Part::Heartbeat),
            // Elections whose name ends like an action.
            ("events", "events", Part::State),
            ("billing%2Fevents", "billing/events", Part::State),
            ("billing/%65vents", "billing/events", Part::State),
            ("billing/events/events", "billing/events", Part::Events),
            (
                "billing%2Fstep_down/step_down",
                "billing/step_down",
                Part::StepDown,
            ),
            ("%c3%bc%20+", "ü +", Part::State),
        ] {
            let read = election(&format!("{ELECTIONS}{path}"));
            assert_eq!(read.expect(path), (name.to_owned(), part), "{path}");
        }
        let refused = election("/v1/elections/%ff").expect_err("not UTF-8");
        assert_eq!(refused.code, "bad_path");
    }

    #[test]
    fn the_last_part_of_a_path_of_partitions_may_be_an_action() {
        for (path, name, part) in [
            ("billing/eu", "billing/eu", PartitionsPart::State),
            ("billing%2Feu/owner", "billing/eu", PartitionsPart::Owner),
            ("billing/events", "billing", PartitionsPart::Events),
            ("billing/own", "billing", PartitionsPart::Own),
            ("billing/heartbeat", "billing", PartitionsPart::Heartbeat),
            ("billing/forget", "billing", PartitionsPart::Forget),
            ("billing%2Fowner", "billing/owner", PartitionsPart::State),
        ] {
            let read = partitions(&format!("{PARTITIONS}{path}"));
            assert_eq!(read.expect(path), (name.to_owned(), part), "{path}");
        }
    }

    #[test]
    fn method_determines_where_the_name_of_a_lock_ends() {
        let (post, put, delete) = (Method::POST, Method::PUT, Method::DELETE);
        let read = |method: &Method, path: &str| lock(method, &format!("{LOCKS}{path}")).unwrap();
        let both = || ("a/b".to_owned(), "l1".to_owned());
        for path in ["a/b", "a%2Fb"] {
            let acquire = LockRequest::Acquire("a/b".to_owned());
            assert_eq!(read(&post, path), acquire, "{path}");
            let (resource, id) = both();
            let release = LockRequest::Release(resource, id);
            assert_eq!(read(&delete, &format!("{path}/l1")), release, "{path}");
            let (resource, id) = both();
            let renew = LockRequest::Renew(resource, id);
            assert_eq!(read(&put, &format!("{path}/l1/renew")), renew, "{path}");
        }
        let named = LockRequest::Acquire("a/l1/renew".to_owned());
        assert_eq!(read(&post, "a/l1/renew"), named);
        for (method, path, allow) in [
            (&Method::GET, "a", "POST,OPTIONS"),
            (&delete, "a", "POST,OPTIONS"),
            (&put, "l1/renew", "POST,DELETE,OPTIONS"),
            (&put, "a/l1", "POST,DELETE,OPTIONS"),
            (&Method::GET, "a/l1/renew", "POST,DELETE,PUT,OPTIONS"),
        ] {
            assert_eq!(read(method, path), LockRequest::Other(allow), "{path}");
        }
    }
}

//! Decides which members of etcd's own list are endpoints of a session, and by which of their URLs. Does no I/O.

use std::net::IpAddr;

use super::access::Access;
use super::endpoint::{self, Endpoint};
use super::operator::EtcdMember;
use super::source::{self, address};

/// The endpoints that a list of members offers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Usable {
    /// One endpoint for each member that can be used.
    pub(super) endpoints: Vec<Endpoint>,
    /// Why some members, or all of them, cannot be used.
    pub(super) refused: Vec<String>,
    /// True if a member has not started or is a learner, so that the list is about to change.
    pub(super) changing: bool,
}

/// Chooses an endpoint for each member: a known one, with its data centre and its server name, or else the first URL
/// that follows the rules. `named` are the endpoints that the user named, as they were found; `in_use` are those of the
/// present list.
pub(super) fn usable(
    members: &[EtcdMember],
    named: &[Endpoint],
    in_use: &[Endpoint],
    access: &Access,
) -> Usable {
    let rules = Rules::of(named, access);
    let mut usable = Usable::default();
    for member in members {
        if member.learner || member.client_urls.is_empty() {
            usable.changing = true;
            continue;
        }
        let checked = member.client_urls.iter().map(|url| rules.check(url));
        let checked: Vec<Result<String, String>> = checked.collect();
        let known = named.iter().chain(in_use);
        let known = |url: &String| known.clone().find(|one| one.url == *url);
        let good = || checked.iter().flatten();
        let chosen = good().find_map(known).cloned();
        if let Some(endpoint) = chosen.or_else(|| good().next().map(Endpoint::new)) {
            usable.endpoints.push(endpoint);
            continue;
        }
        let why: Vec<String> = checked.into_iter().filter_map(Result::err).collect();
        let why = format!("member {:?}: {}", member.name, why.join("; "));
        usable.refused.push(why);
    }
    if usable.endpoints.is_empty() {
        usable.refused.push("no member can be used".to_owned());
    }
    usable
}

/// The rules for a member's URL, so that no list leads a session to another machine's etcd or to a connection without
/// TLS.
struct Rules<'a> {
    access: &'a Access,
    secure: bool,
    local: bool,
}

impl<'a> Rules<'a> {
    fn of(named: &[Endpoint], access: &'a Access) -> Self {
        let here = |one: &Endpoint| {
            let host = source::host(one);
            host.is_some_and(|host| is_loopback(&host))
        };
        Self {
            access,
            secure: named.iter().any(source::is_secure),
            local: named.iter().all(here),
        }
    }

    /// Returns the URL in the form of an endpoint.
    fn check(&self, text: &str) -> Result<String, String> {
        let refused = |why: &str| Err(format!("{text:?}: {why}"));
        let url = match endpoint::one(text, self.access) {
            Ok(url) => url,
            Err(why) => return refused(&why),
        };
        if self.secure && !url.is_secure() {
            return refused("the session's endpoints are https, and this one is not");
        }
        if address(url.host()).is_some_and(|at| at.is_unspecified()) {
            return refused("it names no machine");
        }
        if !self.local && is_loopback(url.host()) {
            return refused("it names this machine, and the session's endpoints name others");
        }
        Ok(url.to_string())
    }
}

fn is_loopback(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    let is_local = |at: IpAddr| at.to_canonical().is_loopback();
    host == "localhost" || host.ends_with(".localhost") || address(&host).is_some_and(is_local)
}

#[cfg(test)]
mod tests;

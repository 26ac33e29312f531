//! Owns the endpoints as the user named them, and the endpoints found for each name.

use std::collections::BTreeSet;

use super::endpoint::Endpoint;
use super::source::Source;
use eldest_core::error::RequestError;

/// The names and members that make up the list of endpoints.
pub(super) struct Named {
    pub(super) names: Vec<Name>,
    /// The members in etcd's last list.
    pub(super) members: Option<Vec<Endpoint>>,
    /// The failures of the last round.
    pub(super) troubles: BTreeSet<Trouble>,
}

impl Named {
    pub(super) fn new(names: Vec<Name>) -> Self {
        Self {
            names,
            members: None,
            troubles: BTreeSet::new(),
        }
    }

    /// Records the failures of a round, and returns those that the round before it did not have.
    pub(super) fn new_troubles(&mut self, troubles: BTreeSet<Trouble>) -> Vec<Trouble> {
        let new = troubles.difference(&self.troubles).cloned().collect();
        self.troubles = troubles;
        new
    }

    /// Returns `true` if there is a name to look up.
    pub(super) fn has_sources(&self) -> bool {
        self.names.iter().any(|name| name.source.is_some())
    }

    /// Returns why no connection to the endpoint with that URL is possible; `None` unless it is a name that was not
    /// found yet.
    pub(super) fn missing(&self, url: &str) -> Option<String> {
        Source::of(url)?;
        let name = self.names.iter().find(|name| name.named.url == url);
        let failure = name.and_then(Name::failure);
        Some(failure.map_or("not looked up yet".to_owned(), |(_, why)| why))
    }
}

/// A part of a round that failed. Each is logged once, and again after a round without it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trouble {
    Name { name: String, why: String },
    Members { why: String },
    Endpoints { why: String },
}

impl Trouble {
    pub(super) fn log(&self) {
        match self {
            Self::Name { name, why } => {
                tracing::warn!(target: "eldest::etcd", name, why, "name not looked up");
            }
            Self::Members { why } => {
                tracing::warn!(target: "eldest::etcd", why, "member list not followed");
            }
            Self::Endpoints { why } => {
                tracing::warn!(target: "eldest::etcd", why, "endpoint not used");
            }
        }
    }
}

/// An endpoint as the user named it.
#[derive(Debug, Clone)]
pub(super) struct Name {
    named: Endpoint,
    source: Option<Source>,
    /// The endpoints that were found last.
    found: Option<Vec<Endpoint>>,
    /// Why the last lookup failed.
    failure: Option<String>,
}

impl Name {
    pub(super) fn of(named: Endpoint) -> Self {
        Self {
            source: Source::of(&named.url),
            named,
            found: None,
            failure: None,
        }
    }

    pub(super) fn named(&self) -> &Endpoint {
        &self.named
    }

    pub(super) fn source(&self) -> Option<&Source> {
        self.source.as_ref()
    }

    /// Records the outcome of a lookup.
    pub(super) fn answered(&mut self, answer: Result<Vec<Endpoint>, String>) {
        match answer {
            Ok(found) => (self.found, self.failure) = (Some(found), None),
            Err(why) => self.failure = Some(why),
        }
    }

    /// Returns the name, and why the last lookup did not find it.
    pub(super) fn failure(&self) -> Option<(String, String)> {
        Some((self.named.url.clone(), self.failure.clone()?))
    }
}

/// Explains a failure at an endpoint: if the endpoint is a name, adds why it was not found.
pub(super) fn explained(names: &[Name], mut failure: RequestError) -> RequestError {
    let mut failures = names.iter().filter_map(Name::failure);
    if let Some((_, why)) = failures.find(|(name, _)| *name == failure.endpoint) {
        failure.message = why;
    }
    failure
}

/// Returns the endpoints that were found, each once. A name that was never found is listed itself: no connection to it
/// succeeds.
pub(super) fn list(names: &[Name]) -> Vec<Endpoint> {
    let mut all: Vec<Endpoint> = Vec::new();
    for name in names {
        let found = match &name.found {
            Some(found) => found.as_slice(),
            None => std::slice::from_ref(&name.named),
        };
        let found = found.iter().map(|one| Endpoint {
            data_center: name.named.data_center.clone(),
            ..one.clone()
        });
        add(&mut all, found);
    }
    all
}

/// Adds the endpoints that are not in the list yet.
pub(super) fn add(list: &mut Vec<Endpoint>, others: impl IntoIterator<Item = Endpoint>) {
    for one in others {
        if list.iter().all(|known| known.url != one.url) {
            list.push(one);
        }
    }
}

#[cfg(test)]
mod tests;

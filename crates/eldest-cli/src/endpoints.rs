//! Reads the endpoints of etcd as the option names them: URLs, each with the data centre of its member if that is given.

use std::convert::Infallible;
use std::fmt;

use anyhow::Result;
use eldest::Endpoint;
use eldest::operator::Found;

use crate::exit::{Code, fault};

/// One endpoint: `URL`, or `DATA_CENTER=URL`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) url: String,
    pub(crate) data_center: Option<String>,
    /// The endpoint that was found for a DNS name.
    found: Option<Endpoint>,
}

impl Listed {
    /// Separates the data centre from the URL. Errors in either are reported later, in messages that never show a
    /// password.
    #[allow(clippy::unnecessary_wraps, reason = "the signature of clap's parsers")]
    pub(crate) fn parse(text: &str) -> Result<Self, Infallible> {
        let named = text.split_once('=');
        // An equals sign behind the scheme belongs to the URL.
        let named = named.filter(|(name, _)| !name.contains("://"));
        Ok(match named {
            Some((name, url)) => Self {
                url: url.to_owned(),
                data_center: Some(name.to_owned()),
                found: None,
            },
            None => Self {
                url: text.to_owned(),
                data_center: None,
                found: None,
            },
        })
    }
}

impl From<Found> for Listed {
    fn from(found: Found) -> Self {
        Self {
            url: found.url,
            data_center: found.data_center,
            found: Some(found.endpoint),
        }
    }
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.data_center {
            Some(name) => write!(f, "{name}={}", self.url),
            None => f.write_str(&self.url),
        }
    }
}

impl From<&Listed> for Endpoint {
    fn from(listed: &Listed) -> Self {
        if let Some(found) = &listed.found {
            return found.clone();
        }
        let endpoint = Self::new(&listed.url);
        match &listed.data_center {
            Some(name) => endpoint.data_center(name),
            None => endpoint,
        }
    }
}

/// Returns the endpoints for a node in the data centre `own`.
///
/// # Errors
///
/// Endpoints name data centres, and the node names none.
pub(crate) fn for_node(listed: &[Listed], own: Option<&str>) -> Result<Vec<Endpoint>> {
    let named = listed.iter().find_map(|one| one.data_center.as_deref());
    if let (Some(name), None) = (named, own) {
        let message = format!(
            "--endpoints names the data centre {name:?}, but --data-center is missing: name the one that this node is in"
        );
        return Err(fault(Code::Usage, message));
    }
    Ok(listed.iter().map(Endpoint::from).collect())
}

/// Returns the endpoints for a command that only observes: without a data centre of its own, it prefers none.
pub(crate) fn for_observer(listed: &[Listed], own: Option<&str>) -> Vec<Endpoint> {
    let plain = |one: &Listed| Endpoint::new(&one.url);
    match own {
        Some(_) => listed.iter().map(Endpoint::from).collect(),
        None => listed.iter().map(plain).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_url_or_a_data_center_and_a_url() {
        for (text, url, data_center) in [
            ("http://a:1", "http://a:1", None),
            ("a:1", "a:1", None),
            ("eu=http://a:1", "http://a:1", Some("eu")),
            ("eu=a:1", "a:1", Some("eu")),
            ("eu=dns+https://a:1", "dns+https://a:1", Some("eu")),
            ("eu=srv://a/b", "srv://a/b", Some("eu")),
            ("=a:1", "a:1", Some("")),
            ("http://a:1/?x=y", "http://a:1/?x=y", None),
            ("eu=http://a:1/?x=y", "http://a:1/?x=y", Some("eu")),
        ] {
            let Ok(read) = Listed::parse(text);
            assert_eq!(
                (&*read.url, read.data_center.as_deref()),
                (url, data_center)
            );
            assert_eq!(read.to_string(), text);
        }
    }
}

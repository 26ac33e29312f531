//! Checks endpoints, and looks up those that are named by a host with several addresses, or by a domain with SRV
//! records.

use std::net::IpAddr;

use futures::future::try_join;
use http::Uri;

use super::access::Access;
use super::endpoint::{self, Endpoint};
use super::url::Url;
use crate::runtime::{Env, Service};

/// The prefix of a URL: each address of its host is an endpoint.
const HOST: &str = "dns+";
/// The prefix of a domain: each of its SRV records is an endpoint.
const DOMAIN: &str = "srv://";
/// The longest name in DNS.
const MAX_NAME: usize = 253;

/// A lookup: the kind of records, and their name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    /// The addresses of the host of this URL.
    Host(String),
    /// The SRV records of a domain: with a name, those of one of its clusters.
    Domain(String, Option<String>),
}

impl Source {
    /// Reads the prefix of a URL or a domain; `None` if the text is an endpoint itself.
    pub(super) fn of(text: &str) -> Option<Self> {
        if let Some(url) = text.strip_prefix(HOST) {
            return Some(Self::Host(url.to_owned()));
        }
        let domain = text.strip_prefix(DOMAIN)?;
        Some(match domain.split_once('/') {
            Some((domain, cluster)) => Self::Domain(domain.to_owned(), Some(cluster.to_owned())),
            None => Self::Domain(domain.to_owned(), None),
        })
    }

    /// Returns the source with its scheme.
    ///
    /// # Errors
    ///
    /// Says which rule the source breaks.
    pub(super) fn checked(self, access: &Access) -> Result<String, String> {
        match self {
            Self::Host(url) => {
                let url = endpoint::one(&url, access)?;
                let name = url.host();
                if address(name).is_some() {
                    return Err(format!(
                        "{name} is an address, which needs no {HOST} before it"
                    ));
                }
                Ok(format!("{HOST}{url}"))
            }
            Self::Domain(domain, cluster) => {
                check_name(&domain)?;
                let Some(cluster) = cluster else {
                    return Ok(format!("{DOMAIN}{domain}"));
                };
                let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
                if cluster.is_empty() || cluster.len() > 40 || !cluster.bytes().all(fits) {
                    return Err(
                        "behind the domain stands the cluster's name: 1 to 40 letters, digits and hyphens"
                            .to_owned(),
                    );
                }
                Ok(format!("{DOMAIN}{domain}/{cluster}"))
            }
        }
    }

    /// Returns the source's name in metrics.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Host(_) => "dns",
            Self::Domain(..) => "srv",
        }
    }

    /// Looks up the source, without a time limit.
    ///
    /// # Errors
    ///
    /// Says why no endpoint was found.
    pub(super) async fn look_up(
        &self,
        env: &dyn Env,
        access: &Access,
    ) -> Result<Vec<Endpoint>, String> {
        let found = match self {
            Self::Host(url) => {
                let url = endpoint::one(url, access)?;
                let found = env.addresses(url.host().to_owned()).await;
                let found = found.map_err(|error| error.to_string())?;
                found.iter().map(|at| at_address(&url, *at)).collect()
            }
            Self::Domain(domain, cluster) => {
                let cluster = cluster.as_deref();
                let secure = records(env, "-ssl", cluster, domain);
                let plain = async {
                    // Endpoints without TLS would be refused.
                    if access.demands_tls() {
                        return Ok(Vec::new());
                    }
                    records(env, "", cluster, domain).await
                };
                let (secure, mut plain) = try_join(secure, plain).await?;
                if !secure.is_empty() {
                    plain.clear();
                }
                let secure = secure.iter().map(|one| at_service("https", one));
                let plain = plain.iter().map(|one| at_service("http", one));
                secure.chain(plain).collect::<Vec<_>>()
            }
        };
        if found.is_empty() {
            return Err(match self {
                Self::Host(_) => "the host has no address".to_owned(),
                Self::Domain(domain, cluster) => {
                    let name = record("-ssl", cluster.as_deref(), domain);
                    format!("there is no SRV record {name}, nor one without -ssl")
                }
            });
        }
        all(found, access)
    }
}

/// The access for a list: if one of its endpoints is `https`, no connection of the list is made without TLS.
pub(super) fn access_of<'a>(
    endpoints: impl IntoIterator<Item = &'a Endpoint>,
    access: &Access,
) -> Access {
    if endpoints.into_iter().any(is_secure) {
        access.clone().demanding_tls()
    } else {
        access.clone()
    }
}

/// Returns each endpoint with its scheme, once; at least one. `access` is that of the list, from [`access_of`].
///
/// # Errors
///
/// Says which endpoint is unusable and why.
pub(super) fn all(endpoints: Vec<Endpoint>, access: &Access) -> Result<Vec<Endpoint>, String> {
    let mut all: Vec<Endpoint> = Vec::new();
    for (index, endpoint) in endpoints.into_iter().enumerate() {
        let Endpoint {
            url,
            data_center,
            server_name,
        } = endpoint;
        let refused = |why: String| {
            // An error must not repeat an endpoint with a password in it.
            if url.contains('@') {
                format!("etcd endpoint number {}: {why}", index + 1)
            } else {
                format!("etcd endpoint {url:?}: {why}")
            }
        };
        let whole = match Source::of(&url) {
            Some(source) => source.checked(access),
            None => endpoint::one(&url, access).map(|url| url.to_string()),
        };
        let whole = whole.map_err(refused)?;
        if let Some(name) = &data_center {
            endpoint::check_data_center(name).map_err(refused)?;
        }
        match all.iter().find(|known| known.url == whole) {
            None => all.push(Endpoint {
                url: whole,
                data_center,
                server_name,
            }),
            Some(known) if known.data_center == data_center => {}
            Some(_) => return Err(refused("it is named twice, in two data centres".to_owned())),
        }
    }
    if all.is_empty() {
        return Err("no etcd endpoint given".to_owned());
    }
    Ok(all)
}

fn record(secure: &str, cluster: Option<&str>, domain: &str) -> String {
    let cluster = cluster.map(|name| format!("-{name}")).unwrap_or_default();
    format!("_etcd-client{secure}{cluster}._tcp.{domain}")
}

/// Returns the records that etcd's own clients look up, ordered by priority. Weights do not matter, because a session
/// uses the nearest endpoint.
async fn records(
    env: &dyn Env,
    secure: &str,
    cluster: Option<&str>,
    domain: &str,
) -> Result<Vec<Service>, String> {
    let name = record(secure, cluster, domain);
    let found = env.services(name.clone()).await;
    let mut found = found.map_err(|error| match error.kind() {
        std::io::ErrorKind::Unsupported => "SRV records need the crate's feature `srv`".to_owned(),
        _ => format!("{name}: {error}"),
    })?;
    found.sort_by_key(|one| one.priority);
    Ok(found)
}

/// Returns the host of an endpoint, without the brackets of an address; `None` if the endpoint is a domain.
pub(super) fn host(endpoint: &Endpoint) -> Option<String> {
    url_of(endpoint).map(|url| url.host().to_owned())
}

/// Returns true if the endpoint names `https`, in any spelling: then no other endpoint beside it is dialled without
/// TLS.
pub(super) fn is_secure(endpoint: &Endpoint) -> bool {
    url_of(endpoint).is_some_and(|url| url.is_secure())
}

/// Returns the URL of an endpoint, including one whose addresses are looked up.
fn url_of(endpoint: &Endpoint) -> Option<Url> {
    let text = &endpoint.url;
    Url::parse(text.strip_prefix(HOST).unwrap_or(text), false).ok()
}

/// Returns the address that the host is, unless it is a name.
pub(super) fn address(host: &str) -> Option<IpAddr> {
    host.parse().ok()
}

/// Makes the endpoint at one address of the host. The certificate must be valid for the host's name.
fn at_address(url: &Url, at: IpAddr) -> Endpoint {
    let whole = match at {
        IpAddr::V4(at) => url.at(at),
        IpAddr::V6(at) => url.at(format_args!("[{at}]")),
    };
    Endpoint {
        server_name: Some(url.host().to_owned()),
        ..Endpoint::new(whole)
    }
}

fn at_service(scheme: &str, service: &Service) -> Endpoint {
    Endpoint::new(format!("{scheme}://{}:{}", service.host, service.port))
}

fn check_name(domain: &str) -> Result<(), String> {
    let parsed = domain.parse::<Uri>().ok();
    let plain = parsed.is_some_and(|uri| uri.host() == Some(domain) && uri.port().is_none());
    if domain.is_empty() || domain.len() > MAX_NAME || !plain {
        return Err(format!(
            "behind {DOMAIN} stands a domain, such as example.com, of 1 to {MAX_NAME} bytes"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;

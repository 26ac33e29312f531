//! Defines an endpoint as a user names it, and refuses those that cannot work.

use super::access::Access;
use super::url::Url;
use eldest_core::error::{Class, RequestError};

/// The longest name of a data centre, in bytes.
const MAX_DATA_CENTER: usize = 256;

/// A member of etcd, by its URL and its data centre; or a name by which members are looked up in DNS.
///
/// | text | endpoints |
/// |---|---|
/// | `https://etcd.example:2379` | this one. If its host has several addresses, each connection uses one that answers |
/// | `dns+https://etcd.example:2379` | one for each address of the host. TLS checks the certificate against the host's name |
/// | `srv://example.com` | one for each SRV record `_etcd-client-ssl._tcp.example.com` (`https`) and `_etcd-client._tcp.example.com` (`http`), as with etcd's `--discovery-srv` (needs the feature `srv`) |
/// | `srv://example.com/blue` | as before, with the records `_etcd-client-ssl-blue` and `_etcd-client-blue`, as with etcd's `--discovery-srv-name` |
///
/// A session looks names up at the start, when a request fails, and every 30 s on average. While a lookup fails, it
/// keeps the former endpoints. With TLS options, or beside `https`, it ignores the records of `http`.
///
/// `Session::connect` takes strings as well, which name no data centre.
///
/// ```
/// use eldest::{Endpoint, SessionOptions};
///
/// let options = SessionOptions::new("node-a").data_center("eu");
/// let endpoints = [
///     Endpoint::new("http://10.1.0.1:2379").data_center("eu"),
///     Endpoint::new("http://10.2.0.1:2379").data_center("us"),
/// ];
/// # let _ = (options, endpoints);
/// ```
#[must_use = "an endpoint does nothing until a session connects to it"]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub(super) url: String,
    pub(super) data_center: Option<String>,
    /// The name for which the certificate must be valid, if it is not the URL's host.
    pub(super) server_name: Option<String>,
}

impl Endpoint {
    /// Makes an endpoint of a URL, such as `https://etcd.example:2379`, or of another text of the table above. Without
    /// a scheme it is `http`, or `https` if the session has TLS options or another of its endpoints is `https`: then no
    /// connection is made without TLS.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            data_center: None,
            server_name: None,
        }
    }

    /// Names the data centre that the member, or each member found, is in: 1 to 256 bytes without control characters.
    /// Sessions of the same data centre (`SessionOptions::data_center`) prefer the endpoint.
    pub fn data_center(mut self, data_center: impl Into<String>) -> Self {
        self.data_center = Some(data_center.into());
        self
    }
}

impl Endpoint {
    /// Returns the text of the endpoint as it was given.
    #[doc(hidden)]
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl<T: AsRef<str>> From<T> for Endpoint {
    fn from(url: T) -> Self {
        Self::new(url.as_ref())
    }
}

impl From<&Endpoint> for Endpoint {
    fn from(endpoint: &Endpoint) -> Self {
        endpoint.clone()
    }
}

/// An endpoint in use.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// A number that no other endpoint of the session ever has: a request in flight when the list is replaced cannot
    /// count as a failure of another endpoint.
    pub(super) number: usize,
    pub(super) endpoint: Endpoint,
    /// The URL to dial; `None` if the endpoint is a name that was not found yet.
    target: Option<Url>,
}

impl Place {
    pub(super) fn new(number: usize, endpoint: Endpoint) -> Self {
        let target = Url::parse(&endpoint.url, false).ok();
        Self {
            number,
            endpoint,
            target,
        }
    }

    pub(super) fn url(&self) -> &str {
        &self.endpoint.url
    }

    /// Returns the URL to dial, and the name for which the certificate must be valid if that is not its host.
    ///
    /// # Errors
    ///
    /// The endpoint is a name, which must be looked up first.
    pub(super) fn server(&self) -> Result<(Url, Option<String>), RequestError> {
        let why =
            || RequestError::new(Class::Retry, "the name was not found yet", self.url()).unsent();
        let target = self.target.clone().ok_or_else(why)?;
        Ok((target, self.endpoint.server_name.clone()))
    }
}

/// Refuses data centres that would have no effect.
///
/// # Errors
///
/// Says what is missing.
pub(super) fn check_own(own: Option<&str>, endpoints: &[Endpoint]) -> Result<(), String> {
    let named = endpoints
        .iter()
        .find_map(|endpoint| Some((&endpoint.url, endpoint.data_center.as_ref()?)));
    match (own, named) {
        (Some(own), _) if check_data_center(own).is_err() => check_data_center(own),
        (Some(own), None) => Err(format!(
            "the session is in the data centre {own:?}, but no endpoint names its data centre; use Endpoint::data_center"
        )),
        (None, Some((url, name))) => Err(format!(
            "etcd endpoint {url:?} is in the data centre {name:?}, but the session names none; use \
             SessionOptions::data_center"
        )),
        _ => Ok(()),
    }
}

pub(super) fn check_data_center(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > MAX_DATA_CENTER {
        return Err(format!(
            "the data centre's name has {} bytes; 1 to {MAX_DATA_CENTER} are allowed",
            name.len()
        ));
    }
    if name.chars().any(char::is_control) {
        return Err(format!(
            "the data centre's name {name:?} must not contain control characters"
        ));
    }
    Ok(())
}

/// Parses an endpoint. Without a scheme it is `http`, or `https` if the access demands TLS.
///
/// # Errors
///
/// Says which rule the text breaks.
pub(super) fn one(text: &str, access: &Access) -> Result<Url, String> {
    let url = Url::parse(text, access.demands_tls())?;
    match url.is_secure() {
        false if access.demands_tls() => Err(
            "the scheme is http, but TLS options, or another endpoint with https, demand https"
                .to_owned(),
        ),
        true if cfg!(not(any(feature = "tls-ring", feature = "tls-aws-lc"))) => {
            Err("https needs the crate's feature `tls`".to_owned())
        }
        true if !access.knows_authorities() => Err(
            "https needs to know whom to trust: name authorities in the TLS options, or enable the crate's feature \
             `tls-native-roots` or `tls-webpki-roots`"
                .to_owned(),
        ),
        _ => Ok(url),
    }
}

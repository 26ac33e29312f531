//! Makes and keeps the client of each address.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use eldest::BoxError;
#[cfg(any(feature = "http", feature = "tonic", test))]
use http::Uri;
use http::{Request, Response};
use tower_service::Service;

use crate::body::Body;

/// The number of addresses whose clients are kept. Beyond it, all clients are made again.
const KEPT: usize = 256;

/// Makes the client for an address, once for each: [`Http`](crate::Http), `Grpc`, or a closure.
///
/// The client is cloned for each request. It must not send a request twice by itself, unless it knows that the first
/// was not sent.
///
/// A closure makes any `tower` service a client. Errors that mean that the request was not sent need
/// [`NotSent`](crate::NotSent), if this crate does not know them.
///
/// ```
/// # use eldest_route::{Body, Route, Routed};
/// # use http::{Request, Response};
/// # fn example(route: Route) {
/// let client = Routed::new(route, |address: &str| {
///     let address = address.to_owned();
///     Ok(tower::service_fn(move |request: Request<Body>| {
///         let answer = format!("{} of {address}", request.uri().path());
///         async move { Ok::<_, std::io::Error>(Response::new(answer)) }
///     }))
/// });
/// # }
/// ```
pub trait MakeClient: Send + Sync + 'static {
    /// The body of the client's answers.
    type Answer;
    /// The error of the client.
    type Error: Into<BoxError>;
    /// The future of an answer.
    type Future: Future<Output = Result<Response<Self::Answer>, Self::Error>> + Send;
    /// The client.
    type Client: Service<
            Request<Body>,
            Response = Response<Self::Answer>,
            Error = Self::Error,
            Future = Self::Future,
        > + Clone
        + Send
        + 'static;

    /// Makes the client for that address. It must not wait, and connects when it is used.
    ///
    /// # Errors
    ///
    /// The text is not an address.
    fn make(&self, address: &str) -> Result<Self::Client, BoxError>;
}

impl<F, S, A, E, U> MakeClient for F
where
    F: Fn(&str) -> Result<S, BoxError> + Send + Sync + 'static,
    S: Service<Request<Body>, Response = Response<A>, Error = E, Future = U>
        + Clone
        + Send
        + 'static,
    E: Into<BoxError>,
    U: Future<Output = Result<Response<A>, E>> + Send,
{
    type Answer = A;
    type Error = E;
    type Future = U;
    type Client = S;

    fn make(&self, address: &str) -> Result<S, BoxError> {
        self(address)
    }
}

/// The clients that were made, by their addresses.
pub(crate) struct Clients<M: MakeClient> {
    make: M,
    made: Mutex<HashMap<Arc<str>, M::Client>>,
}

impl<M: MakeClient> Clients<M> {
    pub(crate) fn new(make: M) -> Self {
        Self {
            make,
            made: Mutex::default(),
        }
    }

    pub(crate) fn of(&self, address: &str) -> Result<M::Client, BoxError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = made.get(address) {
            return Ok(client.clone());
        }
        let client = self.make.make(address)?;
        if made.len() >= KEPT {
            made.clear();
        }
        made.insert(address.into(), client.clone());
        Ok(client)
    }
}

/// Reads an announced address: `host:port`, or a URL with `http` or `https` and nothing after the port.
///
/// # Errors
///
/// The text is not an address; the error names the text and the rule.
#[cfg(any(feature = "http", feature = "tonic", test))]
pub(crate) fn base(address: &str) -> Result<Uri, BoxError> {
    let wrong = || {
        format!(
            "{address:?} is no address: it must be host:port, http://host:port or https://host:port"
        )
    };
    let uri = if address.contains("://") {
        address.parse::<Uri>()
    } else {
        format!("http://{address}").parse()
    };
    let uri = uri.map_err(|_| wrong())?;
    let plain = matches!(uri.path(), "" | "/") && uri.query().is_none();
    let scheme = matches!(uri.scheme_str(), Some("http" | "https"));
    let named = uri
        .authority()
        .is_some_and(|host| !host.as_str().contains('@'));
    if plain && scheme && named {
        return Ok(uri);
    }
    Err(wrong().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_port_or_their_url() {
        for (address, url) in [
            ("10.0.0.1:8080", "http://10.0.0.1:8080/"),
            ("node-a", "http://node-a/"),
            ("[::1]:80", "http://[::1]:80/"),
            ("https://node-a:8443/", "https://node-a:8443/"),
        ] {
            assert_eq!(base(address).unwrap().to_string(), url);
        }
        for wrong in [
            "",
            "a b",
            "ftp://a:1",
            "http://a:1/path",
            "http://a:1/?x",
            "u:p@a:1",
            "a:1/path",
            "unix:/run/a",
        ] {
            let error = base(wrong).expect_err(wrong).to_string();
            assert!(error.contains(&format!("{wrong:?}")), "{error}");
        }
    }
}

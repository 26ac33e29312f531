//! Checks access to a node: the host names that requests may use, and the origin and token that write requests need.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, Version, header, uri::Authority};
use subtle::ConstantTimeEq;

use super::peer::Peer;
use super::problem::{Problem, shortened};

/// The access rules of a node.
///
/// Every request must call the node by one of its own names. So no web page can reach the node through a name that
/// points at it for a while (DNS rebinding). The names are `localhost`, any IP address (only a loopback address if the
/// node listens on loopback alone), and every [`Auth::host`].
///
/// Write requests are those with a method other than GET, HEAD and OPTIONS. The node refuses them to a page whose
/// origin is neither the name and port of the request nor an [`Auth::host`]. Write requests need the [`Auth::token`] if
/// one is set. A node that listens beyond loopback refuses every write request if no token is set.
///
/// A request over a Unix socket (`serve_unix`) may call the node by any name, or by none. The permissions of the socket's
/// file decide who may connect. The rules about origins and the token are the same, but no token must be set.
#[must_use = "it has no effect until a server uses it"]
#[derive(Clone)]
pub struct Auth {
    hosts: Vec<String>,
    token: Option<Arc<str>>,
    beyond_loopback: bool,
}

impl Auth {
    /// Makes the rules for a server that listens at that address.
    pub fn at(address: SocketAddr) -> Self {
        Self {
            hosts: Vec::new(),
            token: None,
            beyond_loopback: !address.ip().to_canonical().is_loopback(),
        }
    }

    /// Makes the rules for a server that listens at a Unix socket alone.
    pub fn at_unix_socket() -> Self {
        Self {
            hosts: Vec::new(),
            token: None,
            beyond_loopback: false,
        }
    }

    /// Adds a name that requests may use, without a port.
    ///
    /// Add each DNS name by which callers call the node: Prometheus with names as targets, a Service of Kubernetes, a
    /// proxy that passes its own name on. Without that name, such requests are answered 421 with the code
    /// `unknown_host`.
    ///
    /// ```
    /// use eldest_http::Auth;
    ///
    /// // Prometheus scrapes http://web1.internal:8470/metrics, others call the node by its address.
    /// let auth = Auth::at(([10, 0, 0, 1], 8470).into()).host("web1.internal");
    /// ```
    pub fn host(mut self, name: impl Into<String>) -> Self {
        let name = name.into().to_ascii_lowercase();
        self.hosts.push(name.trim_end_matches('.').to_owned());
        self
    }

    /// Sets the token that write requests must carry: `Authorization: Bearer <token>`.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into().into());
        self
    }

    /// Has another router admit only what these rules admit.
    #[doc(hidden)]
    pub fn around(self, app: Router) -> Router {
        app.layer(from_fn_with_state(Arc::new(self), check))
    }

    fn knows(&self, authority: &Authority) -> bool {
        let host = authority.host();
        let literal = host.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = literal.parse::<IpAddr>() {
            return self.beyond_loopback || address.to_canonical().is_loopback();
        }
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        host == "localhost" || self.hosts.contains(&host)
    }

    /// Returns `true` if a page of that origin is one of ours. Another port of this machine may belong to any program.
    fn is_ours(&self, origin: &HeaderValue, called: Option<&Authority>) -> bool {
        let origin = origin.to_str().ok().and_then(|origin| origin.parse().ok());
        let Some(origin) = origin.and_then(|uri: Uri| uri.into_parts().authority) else {
            return false;
        };
        called == Some(&origin) || self.hosts.contains(&origin.host().to_ascii_lowercase())
    }

    /// Checks a request before anything else handles it.
    fn admits(&self, request: &Request) -> Result<(), Problem> {
        let headers = request.headers();
        let local = request.extensions().get::<Peer>().is_some();
        if local {
            // No name leads a web page to this socket, and the file's permissions decide who may connect.
            let called = called(request.uri(), headers).unwrap_or_default();
            return self.allows(request.method(), headers, called.as_ref(), local);
        }
        let called = called(request.uri(), headers)?;
        match &called {
            Some(authority) if self.knows(authority) => {}
            Some(authority) => {
                let detail = format!("this node is not called {:?}", shortened(authority.host()));
                return Err(Problem::new(
                    StatusCode::MISDIRECTED_REQUEST,
                    "unknown_host",
                    detail,
                ));
            }
            // Simple health checks send no name; browsers always do.
            None if request.version() == Version::HTTP_10 => {}
            None => return Err(bad_host("the request has no header `host`")),
        }
        self.allows(request.method(), headers, called.as_ref(), local)
    }

    fn allows(
        &self,
        method: &Method,
        headers: &HeaderMap,
        called: Option<&Authority>,
        local: bool,
    ) -> Result<(), Problem> {
        // Requests with these methods change nothing.
        if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
            return Ok(());
        }
        let forbidden =
            |code, detail: &'static str| Problem::new(StatusCode::FORBIDDEN, code, detail);
        let stranger = |origin: &HeaderValue| !self.is_ours(origin, called);
        if headers.get_all(header::ORIGIN).iter().any(stranger) {
            let detail = "this node refuses write requests from pages of another origin";
            return Err(forbidden("foreign_origin", detail));
        }
        let Some(token) = &self.token else {
            if self.beyond_loopback && !local {
                let detail = "this node listens beyond loopback without a token, so it refuses write requests";
                return Err(forbidden("no_token_configured", detail));
            }
            return Ok(());
        };
        let given = headers
            .get(header::AUTHORIZATION)
            .map(HeaderValue::as_bytes);
        let given = given.and_then(|given| match given.split_at_checked(7) {
            Some((scheme, given)) if scheme.eq_ignore_ascii_case(b"bearer ") => Some(given),
            _ => None,
        });
        // The comparison takes constant time, so its duration does not show how much of the token was right.
        if given.is_some_and(|given| bool::from(given.ct_eq(token.as_bytes()))) {
            return Ok(());
        }
        let detail = "a write request needs `authorization: Bearer <token>`, and the token is missing or wrong";
        let problem = Problem::new(StatusCode::UNAUTHORIZED, "token_needed", detail);
        Err(problem.with(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")))
    }
}

impl fmt::Debug for Auth {
    /// Formats the rules without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auth")
            .field("hosts", &self.hosts)
            .field("token", &self.token.as_ref().map(|_| "..."))
            .field("beyond_loopback", &self.beyond_loopback)
            .finish()
    }
}

/// Returns the name by which a request calls us, if any.
fn called(uri: &Uri, headers: &HeaderMap) -> Result<Option<Authority>, Problem> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(bad_host("the request has two headers `host`"));
    }
    // A target in absolute form takes precedence over the header.
    if let Some(authority) = uri.authority() {
        return Ok(Some(authority.clone()));
    }
    host.map(|host| {
        let host = host.to_str().ok().and_then(|host| host.parse().ok());
        host.ok_or_else(|| bad_host("the header `host` is not a name and a port"))
    })
    .transpose()
}

fn bad_host(detail: &'static str) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "bad_host", detail)
}

pub(super) async fn check(
    State(auth): State<Arc<Auth>>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    auth.admits(&request)?;
    Ok(next.run(request).await)
}

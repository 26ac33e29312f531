//! Passes a request on to another server as a reverse proxy does: it adds headers about the caller, removes those of
//! the connection, and joins connections that change their protocol.

use std::net::SocketAddr;
use std::pin::pin;

use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::response::{IntoResponse, Response};
use eldest::internal::Env;
use futures::future::{BoxFuture, select};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{StatusCode, Version};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::problem::Problem;

/// Sends a request that is ready to be sent.
pub(super) trait Client {
    type Error;

    fn answer(
        &mut self,
        request: Request,
    ) -> impl Future<Output = Result<Response, Self::Error>> + Send;

    /// Completes when the term of the node that gave that answer is over, as far as this node sees.
    fn over(&self, answer: &Response) -> BoxFuture<'static, ()>;
}

/// Marks the requests of connections over TLS.
#[derive(Debug, Clone, Copy)]
pub(super) struct OverTls;

/// The headers that belong to one connection, besides those that `connection` names (RFC 9110, 7.6.1).
const OF_CONNECTION: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Passes a request on, and its answer back. A call of gRPC is refused.
pub(super) async fn pass<C: Client>(
    env: &dyn Env,
    client: &mut C,
    mut request: Request,
) -> Result<Response, C::Error> {
    if is_grpc(&request) {
        return Ok(grpc_refused());
    }
    let protocol = upgrade(request.headers());
    let caller = protocol.is_some().then(|| hyper::upgrade::on(&mut request));
    prepare(&mut request);
    if let Some(protocol) = &protocol {
        mark_upgrade(request.headers_mut(), protocol);
    }
    let mut answer = client.answer(request).await?;
    let accepted = upgrade(answer.headers());
    remove_of_connection(answer.headers_mut());
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(answer);
    }
    let (Some(caller), Some(accepted)) = (caller, accepted) else {
        let detail = "the leader changed the protocol, and nobody asked it to";
        return Ok(Problem::new(StatusCode::BAD_GATEWAY, "bad_answer", detail).into_response());
    };
    mark_upgrade(answer.headers_mut(), &accepted);
    let over = client.over(&answer);
    let joined = join(caller, hyper::upgrade::on(&mut answer));
    // Dropping the connections closes them.
    env.spawn(Box::pin(async { drop(select(pin!(joined), over).await) }));
    *answer.body_mut() = Body::empty();
    Ok(answer)
}

/// Joins two connections until one of them ends.
async fn join(caller: OnUpgrade, leader: OnUpgrade) {
    if let (Ok(caller), Ok(leader)) = tokio::join!(caller, leader) {
        let (mut caller, mut leader) = (TokioIo::new(caller), TokioIo::new(leader));
        // Either side may end the connection, and an error ends it as well.
        let _ = tokio::io::copy_bidirectional(&mut caller, &mut leader).await;
    }
}

/// Returns the protocol that the headers request or accept.
fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let asks = named_by_connection(headers).any(|name| name == header::UPGRADE);
    headers.get(header::UPGRADE).filter(|_| asks).cloned()
}

fn mark_upgrade(headers: &mut HeaderMap, protocol: &HeaderValue) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, protocol.clone());
}

/// Returns the headers that `connection` names.
fn named_by_connection(headers: &HeaderMap) -> impl Iterator<Item = HeaderName> {
    let values = headers.get_all(header::CONNECTION).iter();
    let values = values.filter_map(|value| value.to_str().ok());
    let names = values.flat_map(|value| value.split(','));
    names.filter_map(|name| name.trim().parse().ok())
}

fn remove_of_connection(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = named_by_connection(headers).collect();
    for name in named.iter().chain(&OF_CONNECTION) {
        headers.remove(name);
    }
}

/// Turns a caller's request into one of this node's own.
fn prepare(request: &mut Request) {
    let caller = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let caller = caller.map(|ConnectInfo(address)| *address);
    let scheme = match request.extensions().get::<OverTls>() {
        Some(OverTls) => "https",
        None => "http",
    };
    // With HTTP/2, the host is part of the request's target.
    let authority = request
        .uri()
        .authority()
        .map(|authority| authority.as_str().to_owned());
    let headers = request.headers_mut();
    remove_of_connection(headers);
    if !headers.contains_key(header::HOST)
        && let Some(host) = authority.and_then(|host| HeaderValue::from_str(&host).ok())
    {
        headers.insert(header::HOST, host);
    }
    append_caller(headers, caller, scheme);
    *request.version_mut() = Version::HTTP_11;
}

/// Appends the caller to `forwarded` (RFC 7239) and `x-forwarded-for`. The first node on the way names host and scheme.
fn append_caller(headers: &mut HeaderMap, caller: Option<SocketAddr>, scheme: &'static str) {
    let host = headers.get(header::HOST).cloned();
    let address = caller.map(|caller| caller.ip().to_canonical());
    let node = match address {
        Some(address) if address.is_ipv6() => format!("\"[{address}]\""),
        Some(address) => address.to_string(),
        None => "unknown".to_owned(),
    };
    let named = host.as_ref().and_then(|host| host.to_str().ok());
    // No host has these characters, which would end the quotes.
    let named = named.filter(|host| !host.contains(['"', '\\']));
    let named = named.map_or_else(String::new, |host| format!(";host=\"{host}\""));
    append(
        headers,
        &header::FORWARDED,
        &format!("for={node}{named};proto={scheme}"),
    );
    let address = address.map_or_else(|| "unknown".to_owned(), |address| address.to_string());
    append(headers, &X_FORWARDED_FOR, &address);
    if let Some(host) = host {
        headers.entry(X_FORWARDED_HOST).or_insert(host);
    }
    let scheme = HeaderValue::from_static(scheme);
    headers.entry(X_FORWARDED_PROTO).or_insert(scheme);
}

/// Adds an entry to a list, and writes the list as one header.
fn append(headers: &mut HeaderMap, name: &HeaderName, entry: &str) {
    let before = headers.get_all(name).iter().map(HeaderValue::as_bytes);
    let mut all = before.collect::<Vec<_>>().join(&b", "[..]);
    if !all.is_empty() {
        all.extend_from_slice(b", ");
    }
    all.extend_from_slice(entry.as_bytes());
    if let Ok(all) = HeaderValue::from_bytes(&all) {
        headers.insert(name, all);
    }
}

/// Returns true for a call of gRPC, which needs HTTP/2 all the way.
fn is_grpc(request: &Request) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
        && request.version() == Version::HTTP_2
}

/// Refuses a call of gRPC with the status 12, "unimplemented".
fn grpc_refused() -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/grpc"),
        (HeaderName::from_static("grpc-status"), "12"),
        (
            HeaderName::from_static("grpc-message"),
            "this node does not lead, and passes no gRPC on; route it with eldest-route",
        ),
    ];
    headers.into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn text(headers: &HeaderMap, name: &str) -> Vec<String> {
        let values = headers.get_all(name).iter();
        values
            .map(|value| value.to_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn headers_of_the_connection_stay_behind() {
        let mut passed = headers(&[
            ("connection", "keep-alive, x-own"),
            ("connection", "X-Other"),
            ("x-own", "1"),
            ("x-other", "2"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("proxy-authorization", "Basic eDp5"),
            ("authorization", "Bearer x"),
            ("host", "orders.example"),
        ]);
        remove_of_connection(&mut passed);
        assert_eq!(
            passed,
            headers(&[("authorization", "Bearer x"), ("host", "orders.example")])
        );
    }

    #[test]
    fn caller_is_appended_to_the_existing_headers() {
        let mut first = headers(&[("host", "orders.example:80")]);
        append_caller(&mut first, Some("192.0.2.7:4711".parse().unwrap()), "https");
        assert_eq!(text(&first, "x-forwarded-for"), ["192.0.2.7"]);
        assert_eq!(
            text(&first, "forwarded"),
            ["for=192.0.2.7;host=\"orders.example:80\";proto=https"]
        );
        append_caller(&mut first, Some("[2001:db8::1]:1".parse().unwrap()), "http");
        assert_eq!(text(&first, "x-forwarded-for"), ["192.0.2.7, 2001:db8::1"]);
        assert!(
            text(&first, "forwarded")[0].contains("proto=https, for=\"[2001:db8::1]\""),
            "{first:?}"
        );
        assert_eq!(text(&first, "x-forwarded-proto"), ["https"]);
        assert_eq!(text(&first, "x-forwarded-host"), ["orders.example:80"]);

        let mut several = headers(&[("x-forwarded-for", "a"), ("x-forwarded-for", "b, c")]);
        append_caller(&mut several, None, "http");
        assert_eq!(text(&several, "x-forwarded-for"), ["a, b, c, unknown"]);
        assert_eq!(text(&several, "forwarded"), ["for=unknown;proto=http"]);
        let mut mapped = HeaderMap::new();
        append_caller(
            &mut mapped,
            Some("[::ffff:192.0.2.7]:1".parse().unwrap()),
            "http",
        );
        assert_eq!(text(&mapped, "x-forwarded-for"), ["192.0.2.7"]);
    }

    #[test]
    fn an_upgrade_is_one_that_the_connection_names() {
        let asked = headers(&[
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "websocket"),
        ]);
        assert_eq!(upgrade(&asked).unwrap(), "websocket");
        assert_eq!(upgrade(&headers(&[("upgrade", "websocket")])), None);
        assert_eq!(upgrade(&headers(&[("connection", "upgrade")])), None);
    }
}

//! Formats every refusal as problem details (RFC 9457), those of the framework included.

use std::borrow::Cow;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use eldest::{Error, ErrorKind};
use http::{HeaderName, HeaderValue, Method, StatusCode, header};

use super::answer::text;
use super::contract;

/// A refused request. `code` is stable and meant for programs, `detail` for people.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) status: StatusCode,
    pub(super) code: &'static str,
    pub(super) detail: Cow<'static, str>,
    header: Option<(HeaderName, HeaderValue)>,
}

impl Problem {
    pub(super) fn new(
        status: StatusCode,
        code: &'static str,
        detail: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            status,
            code,
            detail: detail.into(),
            header: None,
        }
    }

    /// Makes a refusal after which the caller may try again in a second.
    pub(super) fn try_again(code: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, detail)
            .with(header::RETRY_AFTER, HeaderValue::from_static("1"))
    }

    /// Converts an error of the session to a refusal. `invalid` is the code for input that breaks a rule.
    pub(super) fn of(error: &Error, invalid: &'static str) -> Self {
        let detail = error.report().to_string();
        match error.kind() {
            ErrorKind::InvalidInput => Self::new(StatusCode::BAD_REQUEST, invalid, detail),
            ErrorKind::Closed => Self::try_again("closed", detail),
            ErrorKind::Unavailable | ErrorKind::Overloaded => Self::try_again("etcd", detail),
            ErrorKind::Unguarded => Self::try_again("unguarded", detail),
            ErrorKind::NameInUse => Self::new(StatusCode::CONFLICT, "election", detail),
            _ => Self::new(StatusCode::BAD_GATEWAY, "etcd", detail),
        }
    }

    pub(super) fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.header = Some((name, value));
        self
    }
}

/// Writes an error and all its causes.
pub(super) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let said: Vec<String> = causes.map(ToString::to_string).collect();
    said.join(": ")
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = contract::Problem {
            kind: "about:blank".to_owned(),
            title: self
                .status
                .canonical_reason()
                .unwrap_or_default()
                .to_owned(),
            status: self.status.as_u16(),
            code: self.code.to_owned(),
            detail: self.detail.into_owned(),
        };
        let kind = HeaderValue::from_static("application/problem+json");
        let mut response = (self.status, text(&body)).into_response();
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        if let Some((name, value)) = self.header {
            response.headers_mut().insert(name, value);
        }
        response
    }
}

/// Answers a path that does not exist.
pub(super) async fn no_such_path(request: Request) -> Response {
    // `OPTIONS *` requests the methods of the server as a whole.
    if request.method() == Method::OPTIONS && request.uri().path() == "*" {
        return options("GET,HEAD,POST,PUT,DELETE,OPTIONS");
    }
    let path = shortened(request.uri().path());
    let detail = format!("there is nothing at {path:?}; /openapi.json says what there is");
    Problem::new(StatusCode::NOT_FOUND, "no_such_path", detail).into_response()
}

/// Answers an unknown method on a path that only has GET and HEAD: all write requests are below `/v1/elections/` and
/// `/v1/locks/`.
pub(super) async fn no_such_method(request: Request) -> Response {
    not_allowed(&request, "GET,HEAD,OPTIONS")
}

/// Answers a method that a path does not have.
pub(super) fn not_allowed(request: &Request, allow: &'static str) -> Response {
    if request.method() == Method::OPTIONS {
        return options(allow);
    }
    let allow = HeaderValue::from_static(allow);
    refused(request).with(header::ALLOW, allow).into_response()
}

fn options(allow: &'static str) -> Response {
    (StatusCode::NO_CONTENT, [(header::ALLOW, allow)]).into_response()
}

fn refused(request: &Request) -> Problem {
    let method = shortened(request.method().as_str());
    let path = shortened(request.uri().path());
    let detail =
        format!("{path:?} does not accept {method}; the header `allow` lists the accepted methods");
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "no_such_method", detail)
}

/// Shortens a caller's text before an answer repeats it.
pub(super) fn shortened(text: &str) -> Cow<'_, str> {
    const LONGEST: usize = 100;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]).into(),
        None => text.into(),
    }
}

//! Builds JSON responses, and marks responses as not cacheable.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;

pub(super) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    let mut response = (status, text(body)).into_response();
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Forbids caching, because every answer is true only for a moment. Forbids guessing of types, because an answer may
/// repeat foreign text that no browser may treat as a page or a script.
pub(super) async fn to_be_taken_as_it_is(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Writes JSON. This cannot fail, because all keys of our answers are strings.
pub(super) fn text(body: &impl Serialize) -> String {
    serde_json::to_string(body).unwrap_or_default()
}

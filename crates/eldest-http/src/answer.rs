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

/// Forbids caching, because every answer is true only for a moment.
pub(super) async fn not_to_be_kept(mut response: Response) -> Response {
    let value = HeaderValue::from_static("no-store");
    response.headers_mut().insert(header::CACHE_CONTROL, value);
    response
}

/// Writes JSON. This cannot fail, because all keys of our answers are strings.
pub(super) fn text(body: &impl Serialize) -> String {
    serde_json::to_string(body).unwrap_or_default()
}

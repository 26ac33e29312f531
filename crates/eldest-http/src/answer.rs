//! Builds JSON responses, and marks responses as not to be stored.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;

pub(super) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    let mut response = (status, text(body)).into_response();
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// No answer is true for longer than a moment.
pub(super) async fn not_to_be_kept(mut response: Response) -> Response {
    let value = HeaderValue::from_static("no-store");
    response.headers_mut().insert(header::CACHE_CONTROL, value);
    response
}

/// What we answer has strings as keys alone, so writing it cannot fail.
pub(super) fn text(body: &impl Serialize) -> String {
    serde_json::to_string(body).unwrap_or_default()
}

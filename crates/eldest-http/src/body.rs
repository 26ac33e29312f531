//! Reads the body of a request: one JSON object, within limits of size and time.

use std::borrow::Cow;
use std::ops::RangeInclusive;
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::Request;
use http::{HeaderValue, StatusCode, header};
use serde::de::DeserializeOwned;

use super::contract::millis;
use super::problem::{Problem, shortened};
use eldest::internal::{Env, timeout};

/// The largest body, in bytes.
pub(super) const LARGEST: usize = 16 * 1024;
/// The longest time for a body.
const SLOWEST: Duration = Duration::from_secs(10);

/// Refuses a body.
pub(super) fn bad(detail: impl Into<Cow<'static, str>>) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "bad_body", detail)
}

/// Reads the whole body.
pub(super) async fn read<T: DeserializeOwned>(
    request: Request,
    env: &dyn Env,
) -> Result<T, Problem> {
    let kind = request.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        // Without a preflight request, a page of another origin can send only other types.
        let detail = format!(
            "the body must be application/json, not {:?}",
            shortened(kind)
        );
        return Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "not_json",
            detail,
        ));
    }
    let Some(read) = timeout(env, SLOWEST, to_bytes(request.into_body(), LARGEST)).await else {
        let detail = format!("the body did not arrive within {SLOWEST:?}");
        let problem = Problem::new(StatusCode::REQUEST_TIMEOUT, "too_slow", detail);
        return Err(problem.with(header::CONNECTION, HeaderValue::from_static("close")));
    };
    let bytes = read.map_err(|error| {
        let too_large = std::error::Error::source(&error)
            .is_some_and(<dyn std::error::Error>::is::<http_body_util::LengthLimitError>);
        if too_large {
            let detail = format!("the body is longer than {LARGEST} bytes");
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail)
        } else {
            bad("the connection broke before the end of the body")
        }
    })?;
    serde_json::from_slice(&bytes).map_err(|error| bad(format!("the body is wrong: {error}")))
}

/// Returns a duration of that many milliseconds, if it is within the bounds.
pub(super) fn duration(
    name: &str,
    given: u64,
    bounds: RangeInclusive<Duration>,
) -> Result<Duration, Problem> {
    let duration = Duration::from_millis(given);
    if bounds.contains(&duration) {
        return Ok(duration);
    }
    let (least, most) = (millis(*bounds.start()), millis(*bounds.end()));
    Err(bad(format!(
        "`{name}` is {given}; it must be from {least} to {most} milliseconds"
    )))
}

/// Refuses a text unless it has 1 to `longest` characters and no control character.
pub(super) fn text(name: &str, given: &str, longest: usize) -> Result<(), Problem> {
    let count = given.chars().count();
    if (1..=longest).contains(&count) && !given.chars().any(char::is_control) {
        return Ok(());
    }
    Err(bad(format!(
        "`{name}` is {:?}; it must have 1 to {longest} characters, and no control characters",
        shortened(given)
    )))
}

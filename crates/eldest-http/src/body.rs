//! Reads the body of a request: one JSON object of known members, within limits of size and time.

use std::borrow::Cow;
use std::ops::RangeInclusive;
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::Request;
use http::{HeaderValue, StatusCode, header};
use serde_json::{Map, Value};

use super::answer::millis;
use super::problem::{Problem, shortened};
use eldest::internal::{Env, timeout};

/// No request needs more, in bytes.
pub(super) const LARGEST: usize = 16 * 1024;
/// Nor longer.
const SLOWEST: Duration = Duration::from_secs(10);

/// The members that have not been asked for yet.
pub(super) struct Members(Map<String, Value>);

fn bad(detail: impl Into<Cow<'static, str>>) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "bad_body", detail)
}

/// Reads the body to its end.
pub(super) async fn read(request: Request, env: &dyn Env) -> Result<Members, Problem> {
    let kind = request.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        // What a page of another origin may send without asking is of other types.
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
        let detail = format!("the body did not come within {SLOWEST:?}");
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
            bad("the body was broken off")
        }
    })?;
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(members)) => Ok(Members(members)),
        Ok(_) => Err(bad("the body must be a JSON object")),
        Err(error) => Err(bad(format!("the body is not JSON: {error}"))),
    }
}

impl Members {
    /// A text of 1 to `longest` characters, none of them a control character.
    pub(super) fn text(&mut self, name: &str, longest: usize) -> Result<String, Problem> {
        let fits = |text: &str| {
            (1..=longest).contains(&text.chars().count()) && !text.chars().any(char::is_control)
        };
        match self.0.remove(name) {
            Some(Value::String(text)) if fits(&text) => Ok(text),
            Some(other) => Err(bad(format!(
                "`{name}` is {}; it must be a text of 1 to {longest} characters without control characters",
                shortened(&other.to_string())
            ))),
            None => Err(bad(format!("`{name}` is missing"))),
        }
    }

    /// Milliseconds.
    pub(super) fn duration(
        &mut self,
        name: &str,
        usual: Duration,
        bounds: RangeInclusive<Duration>,
    ) -> Result<Duration, Problem> {
        let Some(value) = self.0.remove(name) else {
            return Ok(usual);
        };
        let given = value.as_u64().map(Duration::from_millis);
        given.filter(|given| bounds.contains(given)).ok_or_else(|| {
            let (least, most) = (millis(*bounds.start()), millis(*bounds.end()));
            bad(format!(
                "`{name}` is {}; it must be a whole number of milliseconds from {least} to {most}",
                shortened(&value.to_string())
            ))
        })
    }

    /// One of a few words; the first is what is meant if there is none.
    pub(super) fn word(
        &mut self,
        name: &str,
        words: &[&'static str],
    ) -> Result<&'static str, Problem> {
        let Some(value) = self.0.remove(name) else {
            return Ok(words[0]);
        };
        let known = words.iter().find(|word| value == **word).copied();
        known.ok_or_else(|| {
            let given = value.to_string();
            bad(format!(
                "`{name}` is {}; it must be one of {words:?}",
                shortened(&given)
            ))
        })
    }

    /// There are no others.
    pub(super) fn end(self) -> Result<(), Problem> {
        match self.0.keys().next() {
            Some(name) => Err(bad(format!("there is no member `{}`", shortened(name)))),
            None => Ok(()),
        }
    }
}

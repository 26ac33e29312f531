//! Reads the parameters of a request's address.

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use http::StatusCode;

use super::problem::Problem;

/// The parameters of a request, or the error of parsing them.
pub(super) type Asked = Result<Query<Vec<(String, String)>>, QueryRejection>;

/// Returns the value of `?name=`, if present.
pub(super) fn parameter(asked: &Asked, name: &str) -> Result<Option<String>, Problem> {
    let bad = |detail: String| Problem::new(StatusCode::BAD_REQUEST, "bad_query", detail);
    let all = asked.as_ref();
    let Query(all) = all.map_err(|rejection| bad(rejection.body_text()))?;
    let mut values = all.iter().filter(|(key, _)| key == name);
    let value = values.next().map(|(_, value)| value.clone());
    if values.next().is_some() {
        return Err(bad(format!("`{name}` is given twice")));
    }
    Ok(value)
}

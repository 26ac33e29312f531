//! Serves the status page, the `OpenAPI` description and the metrics.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderName, StatusCode, header};

use eldest::internal;

use super::App;
use super::contract::Role;
use super::node::Render;
use super::problem::Problem;

/// Allows no content from elsewhere, and no frame around the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

type Text = ([(HeaderName, &'static str); 1], &'static str);

const fn text(kind: &'static str, text: &'static str) -> Text {
    ([(header::CONTENT_TYPE, kind)], text)
}

/// Answers `GET /`.
pub(super) async fn status() -> impl IntoResponse {
    let page = text("text/html; charset=utf-8", include_str!("page.html"));
    ([(header::CONTENT_SECURITY_POLICY, POLICY)], page)
}

/// Answers `GET /page.js`, for [`status`].
pub(super) async fn script() -> Text {
    text("text/javascript; charset=utf-8", include_str!("page.js"))
}

/// Answers `GET /page.css`, for [`status`].
pub(super) async fn style() -> Text {
    text("text/css; charset=utf-8", include_str!("page.css"))
}

/// Answers `GET /openapi.json`.
pub(super) async fn description() -> Text {
    text("application/json", include_str!("openapi.json"))
}

/// Answers `GET /metrics`.
pub(super) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    let Some(Render(render)) = &app.node.render else {
        let detail = "this node has no metrics to show";
        return Err(Problem::new(StatusCode::NOT_FOUND, "no_metrics", detail));
    };
    for shown in app.node.shown.iter().filter(|shown| shown.is_candidate()) {
        // The end of a term by the clock sends no notification, so the gauges are set now.
        let own = shown.seen();
        let leads = matches!(own.role, Role::Leader | Role::Ending);
        internal::report_leading(shown.identity(), shown.election.name(), leads, own.serving);
    }
    let kind = [(
        header::CONTENT_TYPE,
        "text/plain; version=0.0.4; charset=utf-8",
    )];
    Ok((kind, render()).into_response())
}

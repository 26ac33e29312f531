//! A router: it sends each request to the pod that owns the person, and keeps it while the partition moves.

use anyhow::Result;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use eldest::{CancellationToken, Session};
use eldest_route::{Direct, Error, ErrorKind, Http, RouteExt, Routed};
use tokio::net::TcpListener;
use tower::ServiceExt;

use crate::{COUNT, PARTITIONS, person_of};

/// Passes requests on until `shutdown`. Any number of routers may run. Each only observes, so its session has no lease.
///
/// # Errors
///
/// etcd refuses to show who owns the partitions.
pub async fn route(
    session: &Session,
    listener: TcpListener,
    shutdown: CancellationToken,
) -> Result<()> {
    let routes = session.partitions(PARTITIONS, COUNT)?.route().await?;
    let by_person = routes.by_key(|request| Some(person_of(&request.uri)?.as_bytes().to_vec()));
    let pods = Routed::new(by_person, Http::new());
    let app = Router::new().fallback(move |request: Request| pass_on(pods.clone(), request));
    axum::serve(listener, app)
        .with_graceful_shutdown(shutdown.cancelled_owned())
        .await?;
    Ok(())
}

async fn pass_on<D: Direct>(pods: Routed<Http, D>, request: Request) -> Response {
    // The pod gets no header of the client's connection.
    let (head, body) = request.into_parts();
    let mut request = Request::new(body);
    *request.method_mut() = head.method;
    *request.uri_mut() = head.uri;
    match pods.oneshot(request).await {
        Ok(answer) => answer.map(Body::new),
        Err(error) => (status_of(&error), error.to_string()).into_response(),
    }
}

fn status_of(error: &Error) -> StatusCode {
    match error.kind() {
        ErrorKind::NoKey => StatusCode::NOT_FOUND,
        // The pod may have carried it out: the client must check.
        ErrorKind::Lost => StatusCode::BAD_GATEWAY,
        // Nobody worked on it: the client may send it again.
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

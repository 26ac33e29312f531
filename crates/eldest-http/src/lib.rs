//! Answers HTTP requests about the elections of a node: health checks, state, events, stepping down, partitions, evacuations
//! and locks.
//!
//! [`router`] makes an axum router for load balancers, orchestrators, dashboards and programs in other languages. Mount
//! it in a service, or pass it to [`serve`], to `serve_unix`, or with the feature `tls` to `serve_tls`.
//! [`OnlyWhileLeader`] admits a service's requests only while the node leads, and [`ForwardToLeader`] passes the others on to
//! the leader.
//!
//! | request | answer |
//! |---|---|
//! | `GET /leader`, `GET /primary` | 200 while this node leads and serves, else 503 |
//! | `GET /follower` | 200 while this node does not lead and none of its terms is still ending, else 503 |
//! | `GET /live` | 503 when a session is closed, so that only a new process helps; else 200 |
//! | `GET /ready` | 200 while the node is a candidate with a lease that it trusts, or an observer with a recently confirmed view; else 503 with the reason |
//! | `GET /v1/elections`, `GET /v1/elections/{name}` | roster, leader, tokens, the node's own rank, the last terms |
//! | `GET /v1/elections/{name}/events`, `GET /v1/events` | the same as server-sent events `state`, of one election or of all: at once, and after every change |
//! | `GET /v1/partitions` | the sets of partitions of [`Node::observes_partitions`] and [`Node::own_on_behalf`], with the numbers of their members and of owned partitions |
//! | `GET /v1/partitions/{name}` | members and the owner of each partition; at most 1024 partitions, the next from `?from=` |
//! | `GET /v1/partitions/{name}/own` | the partitions that this node owns on behalf of its callers ([`Node::own_on_behalf`]), and how long they may act |
//! | `POST /v1/partitions/{name}/heartbeat` | as for an election |
//! | `POST /v1/partitions/{name}/forget?identity=` | others take the partitions that are [kept](eldest::Partitions::keep_share_for) for an absent member |
//! | `GET /v1/partitions/{name}/owner?key=` | the partition of a key, and its owner's address and token |
//! | `GET /v1/partitions/{name}/events` | server-sent events `state`: all partitions at once, then those whose owner changed |
//! | `GET /` | a live status page of the elections, for people |
//! | `GET /openapi.json` | the description of this API, in `OpenAPI` 3.1 |
//! | `GET /metrics` | the text of [`Node::metrics`] |
//! | `POST /v1/elections/{name}/step_down` | the node's term ends, and the node joins at the end of the queue; `?fencing_token=` names the term |
//! | `POST /v1/elections/{name}/heartbeat` | reports that the program beside the node works ([`Health::stall_timeout`]) |
//! | `POST`, `DELETE /v1/elections/{name}/warm` | reports that the program beside the waiting node is prepared for its term, or no longer ([`eldest::Election::warm_within`]) |
//! | `POST /v1/elections/{name}/serving` | reports that the program beside the node is ready ([`eldest::Election::serving_within`]); `?fencing_token=` names the term |
//! | `POST /v1/program` | over a Unix socket: binds the elections to the life of a program ([`Node::lead_on_behalf`]) |
//! | `GET /v1/evacuations` | the data centres that are evacuated, if [`Node::evacuations`] allows it |
//! | `PUT /v1/evacuations/{data_center}` | evacuates it: `{"for_ms": 7200000, "reason": ..., "by": ...}`, all of them optional |
//! | `DELETE /v1/evacuations/{data_center}` | lifts the order |
//! | `GET /v1/locks` | the locks that this node keeps for others, if [`Node::locks`] allows it |
//! | `POST /v1/locks/{resource}` | acquires a lock: `{"owner": ..., "wait_ms": 0, "ttl_ms": 10000, "hold": "renewals"}`, or `"connection"` |
//! | `PUT /v1/locks/{resource}/{lock}/renew` | keeps it for `ttl_ms` more |
//! | `DELETE /v1/locks/{resource}/{lock}` | releases it |
//!
//! `/leader`, `/primary`, `/follower` and `/ready` accept `?election=`; all but `/ready` need it if the node shows several
//! elections. `/live` and `/ready` do not depend on partitions: on a node without elections, both answer 200. A slash in
//! a name is written as it is or as `%2F`:
//! `/v1/elections/billing/scheduler/events`. `%2F` always belongs to the name, so the election `billing/events` is at
//! `/v1/elections/billing%2Fevents`. Each path answers `HEAD` where it answers `GET`, and `OPTIONS` with 204 and the
//! header `allow`. Refusals are problem details (RFC 9457) with a stable `code`.
//!
//! **What stays**: the paths above, and the name, type and meaning of each field. **What may be added**: paths, fields,
//! and values of `status`, `session` and `code`. So clients must accept fields and values that they do not know.
//!
//! **Guaranteed**: every answer uses the state and the deadline of that moment. A node that was paused beyond its
//! deadline does not answer 200 to `GET /leader` when it wakes up. With [`Node::lead_on_behalf`], a caller that
//! received 200 may act for `may_act_for_ms`, counted from before it asked. **Not guaranteed**: that the node still
//! leads when its answer arrives, because the node or the network may pause *after* the check. Fence writes that must
//! never happen twice, with the `fencing_token` of the same answer.
//!
//! **Old views**: `age_ms` of an election is how long ago etcd last confirmed that its `roster` is complete. Beyond
//! [`Node::stale_after`] (default: one TTL) the election is `stale`: the page and the event `state` say so, and
//! `/ready` is 503 on a node that only observes. A candidate relies on its lease, which etcd must confirm as well.
#![cfg_attr(docsrs, feature(doc_cfg))]
// Public enums and structs may grow without breaking users; hidden modules say where they are exempt.
#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]

mod answer;
mod api;
mod auth;
mod beside;
mod body;
#[doc(hidden)]
pub mod contract;
mod evacuations;
mod events;
mod forward;
#[doc(hidden)]
pub mod fuzzing;
mod health;
mod layer;
#[cfg(target_os = "linux")]
mod local;
mod lock_table;
mod locks;
mod names;
mod node;
#[cfg(test)]
mod openapi;
mod owning;
mod page;
mod partition_routes;
mod partitions;
mod peer;
mod problem;
mod programs;
mod proxied;
mod query;
mod role;
mod room;
mod serve;
mod sidecar;
mod term_history;
#[cfg(test)]
mod tests;
mod timed;
#[cfg(feature = "tls")]
mod tls;
#[cfg(unix)]
mod unix;
mod view;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::{from_fn_with_state, map_response};
use axum::routing::{any, get};

pub use auth::Auth;
pub use beside::{FORWARD, program_router, program_router_with};
pub use forward::{ForwardToLeader, Forwarding};
pub use health::Health;
pub use layer::{Guarded, OnlyWhileLeader};
pub use node::Node;
#[cfg(feature = "tls")]
#[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
pub use serve::serve_tls;
#[cfg(unix)]
#[cfg_attr(docsrs, doc(cfg(unix)))]
pub use serve::serve_unix;
pub use serve::{Limits, serve};
pub use sidecar::Leading;
#[cfg(feature = "tls")]
#[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
pub use tls::ServerCertificate;
#[cfg(unix)]
#[cfg_attr(docsrs, doc(cfg(unix)))]
pub use unix::bind_unix;

/// The state that the handlers share.
struct App {
    node: Node,
}

/// Makes the router that answers requests about a node, for callers that `auth` admits.
pub fn router(node: Node, auth: Auth) -> Router {
    Router::new()
        .route("/", get(page::status))
        .route("/page.js", get(page::script))
        .route("/page.css", get(page::style))
        .route("/openapi.json", get(page::description))
        .route("/leader", get(role::leader))
        .route("/primary", get(role::leader))
        .route("/follower", get(role::follower))
        .route("/live", get(role::live))
        .route("/ready", get(role::ready))
        .route("/metrics", get(page::metrics))
        .route("/v1/elections", get(api::list))
        .route("/v1/elections/{*name}", any(api::one))
        .route("/v1/program", any(programs::bind))
        .route("/v1/events", get(events::follow_all))
        .route("/v1/evacuations", get(evacuations::list))
        .route("/v1/evacuations/{*name}", any(evacuations::one))
        .route("/v1/partitions", get(partition_routes::list))
        .route("/v1/partitions/{*name}", any(partition_routes::one))
        .route("/v1/locks", get(locks::list))
        .route("/v1/locks/{*name}", any(locks::one))
        .fallback(problem::no_such_path)
        .method_not_allowed_fallback(problem::no_such_method)
        .layer(DefaultBodyLimit::max(body::LARGEST))
        .layer(from_fn_with_state(Arc::new(auth), auth::check))
        .layer(map_response(answer::to_be_taken_as_it_is))
        .with_state(Arc::new(App { node }))
}

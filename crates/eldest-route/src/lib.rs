//! Sends each request to the leader of an election, or to the owner of a key's partition.
//!
//! [`RouteExt::route`] follows an election, also in a session that has no lease. [`Route`] names the present leader and
//! its address, and waits for a leader during a hand-over. [`Routed`] is a `tower` service that sends requests to that
//! address.
//!
//! ```no_run
//! # async fn example() -> Result<(), eldest::BoxError> {
//! use bytes::Bytes;
//! use eldest::{Session, SessionOptions};
//! use eldest_route::{Http, RouteExt, Routed};
//! use http_body_util::Full;
//! use tower::ServiceExt;
//!
//! let session = Session::connect(["http://10.0.0.1:2379"], SessionOptions::new("observer")).await?;
//! let route = session.election("billing/scheduler")?.route().await?;
//! let client = Routed::new(route, Http::new()); // clone it for each request
//!
//! let request = http::Request::post("/invoices").body(Full::new(Bytes::from_static(b"4711")))?;
//! let answer = client.oneshot(request).await?;
//! # let _ = answer;
//! # Ok(())
//! # }
//! ```
//!
//! **Guaranteed**: a request that may have been carried out is not sent again, unless it is idempotent. A request that
//! no node worked on is sent to the next leader, if one is found within [`Routed::wait`] and the body can be sent
//! again. [`Error::kind`] distinguishes the two.
//!
//! **Not guaranteed**: that a node which receives a request leads. The route may be old, so each node must check each
//! request by its own clock, and answer with the header [`NOT_LEADER`] if it does not lead.
//!
//! | feature | adds |
//! |---|---|
//! | `http` (default) | [`Http`]: HTTP/1.1 by hyper-util's pooled client |
//! | `tonic` | `Grpc`: a tonic channel for each address |
#![cfg_attr(docsrs, feature(doc_cfg))]
// Public enums and structs may grow without breaking users.
#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]

mod attempts;
mod body;
mod client;
mod destination;
mod error;
mod follow;
#[cfg(feature = "tonic")]
mod grpc;
#[cfg(feature = "http")]
mod http;
mod marks;
mod route;
mod routed;
mod sent;
#[cfg(test)]
mod tests;

pub use body::Body;
pub use client::MakeClient;
pub use destination::Destination;
pub use error::{Error, ErrorKind};
#[cfg(feature = "tonic")]
#[cfg_attr(docsrs, doc(cfg(feature = "tonic")))]
pub use grpc::{Grpc, GrpcClient};
pub use marks::{ANSWER_LOST, HOPS, Idempotent, NOT_LEADER, hops, not_leader};
pub use route::{PartitionRoutes, Route, RouteExt};
pub use routed::{ByKey, Direct, Routed};
pub use sent::NotSent;

#[cfg(feature = "http")]
#[cfg_attr(docsrs, doc(cfg(feature = "http")))]
pub use crate::http::{Http, HttpClient};

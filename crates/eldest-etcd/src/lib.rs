//! Makes all calls of `eldest` to etcd, by `etcd_client`: manages connections, failover, timeouts, paging and error
//! codes.
//!
//! Every call is a method on [`Pool`]. Each is sent once and ends within the request timeout. After a failure that
//! another endpoint may not have, the next call goes to another endpoint. A background task returns to a preferred
//! endpoint when that is well again, looks up endpoints that DNS names, and follows etcd's members. Callers retry
//! requests themselves.
//!
//! [`runtime`] abstracts the clock, timers, tasks, resolver and connections below the calls. It imports nothing of them.
//!
//! This crate is a part of the library `eldest` and follows its version; nothing here is covered by semver. `eldest`
//! re-exports what its users need.
#![cfg_attr(docsrs, feature(doc_cfg))]
// Types that users of `eldest` match and build may grow without breaking them; the others state their exemptions.
#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]
#![allow(
    clippy::missing_errors_doc,
    reason = "every call of the pool fails alike, as its `RequestError` says"
)]

mod access;
mod batch;
mod call;
#[cfg(test)]
#[path = "../../../tests/capture/mod.rs"]
mod capture;
mod direct;
mod endpoint;
mod endpoint_status;
mod failure;
mod follow;
mod fresh;
mod greeting;
mod guard;
mod join;
mod kv;
mod lane;
mod lease;
mod mark;
mod members;
mod metrics;
mod names;
mod nearest;
mod nearness;
mod operator;
mod pings;
mod places;
mod pool;
mod preferred;
mod relist;
pub mod runtime;
mod source;
mod switches;
mod transact;
mod txn;
mod url;
mod watch;

pub use access::{Access, Credentials};
#[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
pub use access::{InvalidTls, TlsOptions};
pub use endpoint::Endpoint;
pub use endpoint_status::EndpointStatus;
pub use join::Registered;
pub use lane::Lane;
pub use lease::{Ack, Granted, KeepAlive, LeaseTerm};
#[cfg(feature = "metrics")]
pub use metrics::describe as describe_metrics;
pub use nearness::EndpointReason;
pub use operator::{EtcdMember, EtcdMemberStatus, Permissions};
pub use pings::{PING_EVERY, PING_REMEDY};
pub use pool::Pool;
pub use preferred::preferred;
pub use txn::{Comparison, Condition, Fence, KeyValue, Op, OpResult, TxnOutcome};
pub use watch::{WatchMessage, WatchReceiver, WatchRequest, WatchSender};

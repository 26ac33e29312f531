//! Makes all calls to etcd by `etcd_client`: manages connections, failover, timeouts, paging and error codes.
//!
//! Everything is a method on [`Pool`]. Each call is sent once and ends within the request timeout. After a failure that
//! another endpoint may not have, the next call goes to another endpoint. A background task returns to a preferred
//! endpoint when that is well again, looks up endpoints that DNS names, and follows etcd's members. Callers retry
//! requests themselves.

mod access;
mod batch;
mod call;
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
mod names;
mod nearest;
mod nearness;
mod operator;
mod pings;
mod places;
mod pool;
mod preferred;
mod relist;
mod source;
mod switches;
#[cfg(test)]
mod tests;
mod transact;
mod txn;
mod url;
mod watch;

pub(crate) use access::Access;
pub use access::Credentials;
#[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
pub use access::TlsOptions;
pub use endpoint::Endpoint;
pub use endpoint_status::EndpointStatus;
pub(crate) use join::Registered;
pub(crate) use lane::Lane;
pub(crate) use lease::KeepAlive;
pub use nearness::EndpointReason;
pub use operator::{EtcdMember, EtcdMemberStatus, Permissions};
pub use pings::{PING_EVERY, PING_REMEDY};
pub(crate) use pool::Pool;
pub use preferred::preferred;
pub use txn::{Comparison, Condition, Fence, KeyValue, Op, OpResult, TxnOutcome};
pub(crate) use watch::{WatchMessage, WatchReceiver, WatchRequest};

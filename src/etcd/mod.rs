//! Makes all calls to etcd by `etcd_client`: manages connections, failover, timeouts, paging and error codes.
//!
//! Everything is a method on [`Pool`]. Each call is sent once and ends within the request timeout. After a failure that
//! another endpoint may not have, the next call goes to that endpoint. Callers repeat requests themselves.

mod access;
mod batch;
mod call;
mod direct;
mod endpoint;
mod failure;
mod guard;
mod join;
mod kv;
mod lease;
mod operator;
mod pool;
mod switches;
#[cfg(test)]
mod tests;
mod txn;
mod watch;

pub(crate) use access::Access;
pub use access::Credentials;
#[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
pub use access::TlsOptions;
pub(crate) use join::Registered;
pub(crate) use lease::KeepAlive;
pub use operator::{EtcdMember, EtcdMemberStatus, Permissions};
pub(crate) use pool::{Lane, Pool};
pub use txn::{Comparison, Condition, Fence, KeyValue, Op, OpResult, TxnOutcome};
pub(crate) use watch::{WatchMessage, WatchReceiver, WatchRequest};

//! Makes all calls to etcd by `etcd_client`: manages connections, failover, timeouts, paging and error codes.
//!
//! Everything is a method on [`Pool`]; each call is sent once, ends within the request timeout, and a failure
//! that another endpoint may not have makes the next call go there. Retrying is the caller's business.

mod access;
mod batch;
mod call;
mod direct;
mod endpoint;
mod failure;
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
pub use txn::{Comparison, Condition, Guard, KeyValue, Op, OpResult, TxnOutcome};
pub(crate) use watch::{WatchMessage, WatchReceiver, WatchRequest};

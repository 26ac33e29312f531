//! Makes all calls to etcd by `etcd_client`: manages connections, failover, timeouts, paging and error codes.
//!
//! Everything is a method on [`Pool`]; each call is sent once, ends within the request timeout, and a failure
//! that another endpoint may not have makes the next call go there. Retrying is the caller's business.

mod access;
mod batch;
mod call;
mod direct;
mod failure;
mod join;
mod kv;
mod lease;
mod operator;
mod pool;
mod switches;
#[cfg(test)]
mod tests;
mod watch;

pub(crate) use access::Access;
#[cfg(feature = "tls")]
pub use access::TlsFiles;
pub(crate) use failure::{Class, Failure};
#[cfg(test)]
pub(crate) use join::Joined;
pub(crate) use join::{Join, Registered, Unless};
pub(crate) use lease::KeepAlive;
pub use operator::{MemberInfo, MemberStatus, Permissions};
pub(crate) use pool::{Lane, Pool};
pub(crate) use watch::{WatchMessage, WatchReceiver, WatchRequest};

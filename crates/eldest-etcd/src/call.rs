//! Limits the time and the answer's size of every call to etcd, and reports why it failed.

use std::time::Duration;

use etcd_client::{Client, KvClient, ResponseHeader, WatchClient};

use super::failure;
use crate::runtime::Env;
use eldest_core::error::{Class, RequestError};
use eldest_core::kv::Header;

/// A page of large values, or the events of a large transaction, exceed the default of 4 MiB.
const MAX_MESSAGE: usize = 512 << 20;

/// The message to the user.
const REMEDY: &str = "this is etcd's gRPC proxy, which answers a renewal with the answer to an earlier one, so that no \
                      lease can be relied on; name the members of etcd themselves as endpoints";

/// Why a request failed, before it is known to which endpoint it went.
pub(super) enum CallError {
    /// The client's error.
    Client(etcd_client::Error),
    /// An answer that etcd never gives.
    Odd(&'static str),
    /// The request went to etcd's gRPC proxy.
    Proxy,
    /// The server has this version, whose linearizable reads may be stale.
    Outdated(String),
}

impl From<etcd_client::Error> for CallError {
    fn from(error: etcd_client::Error) -> Self {
        CallError::Client(error)
    }
}

impl CallError {
    pub(super) fn at(&self, endpoint: &str) -> RequestError {
        match self {
            CallError::Client(error) => failure::from_error(error, endpoint),
            CallError::Odd(what) => RequestError::new(Class::Retry, *what, endpoint),
            CallError::Outdated(version) => RequestError::new(
                Class::Outdated,
                format!(
                    "the version of etcd is {version}; sessions that allow challenges need 3.4.42, 3.5.28, 3.6.9 or a \
                     later one of these, or 3.7, because linearizable reads of others may be stale after a pause"
                ),
                endpoint,
            )
            .unsent(),
            CallError::Proxy => RequestError::new(Class::Proxy, REMEDY, endpoint).unsent(),
        }
    }
}

/// Runs `work`; returns `None` if the injected timer completes first.
pub(super) async fn timeout<T>(
    env: &dyn Env,
    limit: Duration,
    work: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        // No timer is created for work that is done at once, such as a request on an open stream.
        () = async { env.sleep(limit).await } => None,
    }
}

/// Runs a check of a new connection to that endpoint within the given time. Nothing was sent on the user's behalf.
pub(super) async fn within(
    env: &dyn Env,
    limit: Duration,
    endpoint: &str,
    check: impl Future<Output = Result<(), CallError>>,
) -> Result<(), RequestError> {
    let checked = match timeout(env, limit, check).await {
        Some(checked) => checked.map_err(|error| error.at(endpoint)),
        None => Err(unanswered(limit, endpoint)),
    };
    checked.map_err(RequestError::unsent)
}

/// Returns the failure of a request that the endpoint did not answer in time.
pub(super) fn unanswered(limit: Duration, endpoint: &str) -> RequestError {
    let message = format!("no answer within {limit:?}");
    RequestError::new(Class::Retry, message, endpoint)
}

/// The KV client of a connection.
pub(super) fn kv(client: &Client) -> KvClient {
    client.kv_client().max_decoding_message_size(MAX_MESSAGE)
}

/// The watch client of a connection.
pub(super) fn watch(client: &Client) -> WatchClient {
    client.watch_client().max_decoding_message_size(MAX_MESSAGE)
}

/// Takes over an answer's header.
pub(super) fn header(header: Option<&ResponseHeader>) -> Result<Header, CallError> {
    let header = header.ok_or(CallError::Odd("an answer without a header"))?;
    Ok(Header {
        cluster: header.cluster_id(),
        member: header.member_id(),
        revision: header.revision(),
        term: header.raft_term(),
    })
}

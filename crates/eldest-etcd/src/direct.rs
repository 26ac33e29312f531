//! Distinguishes a member of etcd from etcd's gRPC proxy, which is refused.
//!
//! The proxy renews leases on a stream of its own, and answers a renewal with the next answer on that stream. So the
//! answer may belong to an earlier renewal, and the time at which ours was sent plus the TTL is no lower bound of the
//! lease's end. The verifying read does not reveal this.

use etcd_client::{Client, Error};
use tonic::Code;

use super::call::{CallError, kv};

/// Every version of etcd refuses to read the empty key with this, as an invalid argument, before it looks at users,
/// leaders or keys. The proxy forwards the text and loses the code, in every configuration. Other signs of the proxy
/// depend on its options (a member list without ids), or need a permission (watches under other ids).
const REFUSAL: &str = "key is not provided";

/// Fails if the client's connection leads to a proxy, or if no server answers.
pub(super) async fn check(client: &Client) -> Result<(), CallError> {
    match kv(client).get("", None).await {
        Err(Error::GRpcStatus(status)) if status.message().contains(REFUSAL) => {
            if status.code() == Code::Unknown {
                Err(CallError::Proxy)
            } else {
                Ok(())
            }
        }
        Err(error) => Err(error.into()),
        Ok(_) => Err(CallError::Odd("a value of the empty key")),
    }
}

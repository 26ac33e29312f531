//! Makes the calls by which a session proves to its guard that a lease is its own, and passes the way to etcd on to a
//! guard's process.

use std::time::Duration;

use serde_json::{Value, json};

use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp};

use super::access::Access;
use super::endpoint::Endpoint;
use super::lane::Lane;
use super::pool::Pool;
use crate::runtime::SharedEnv;
use eldest_core::error::{Class, RequestError};

impl Pool {
    /// Puts an empty key under the lease, unless the key exists. Returns its create revision, or `None` if it exists.
    pub(crate) async fn put_proof(
        &self,
        key: &[u8],
        lease: i64,
    ) -> Result<Option<i64>, RequestError> {
        let absent = Compare::create_revision(key, CompareOp::Equal, 0);
        let put = TxnOp::put(key, "", Some(PutOptions::new().with_lease(lease)));
        let answer = self.txn(Txn::new().when([absent]).and_then([put])).await?;
        let revision = answer.header().map(etcd_client::ResponseHeader::revision);
        Ok(revision.filter(|_| answer.succeeded()))
    }

    /// Returns the lease that the key is bound to.
    pub(crate) async fn lease_of(&self, key: &[u8]) -> Result<Option<i64>, RequestError> {
        let (_, entry) = self.read(Lane::Lease, key).await?;
        Ok(entry.map(|entry| entry.lease).filter(|lease| *lease != 0))
    }

    /// Learns whether etcd answers over the connection that revokes leases, and keeps that connection open. A user without
    /// permission for the key is answered as well.
    pub(crate) async fn answers(&self, key: &[u8]) -> Result<(), RequestError> {
        match self.read(Lane::Lease, key).await {
            Err(failure) if failure.class == Class::Denied => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// Returns what another process needs in order to use the same endpoints: it contains the password.
    pub(crate) fn passed(&self) -> Result<Value, String> {
        let endpoints = self.in_order();
        let endpoints = endpoints
            .iter()
            .map(|one| json!([one.url, one.server_name]));
        Ok(json!({
            "endpoints": endpoints.collect::<Vec<_>>(),
            "access": self.access().passed()?,
            "request_timeout_ms": u64::try_from(self.request_timeout().as_millis()).unwrap_or(u64::MAX),
        }))
    }

    /// Makes a pool of what [`Pool::passed`] has returned in another process.
    pub(crate) fn from_passed(env: SharedEnv, passed: &Value) -> Result<Self, String> {
        let endpoints = passed["endpoints"].as_array().into_iter().flatten();
        let endpoint = |one: &Value| {
            Some(Endpoint {
                server_name: one[1].as_str().map(str::to_owned),
                ..Endpoint::new(one[0].as_str()?)
            })
        };
        let endpoints: Vec<Endpoint> = endpoints.filter_map(endpoint).collect();
        let timeout = passed["request_timeout_ms"].as_u64().unwrap_or_default();
        let access = Access::from_passed(&passed["access"]);
        Self::new(env, endpoints, access, Duration::from_millis(timeout))
    }
}

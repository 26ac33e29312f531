//! Makes the calls by which a session proves to its guard that a lease is its own, deletes the keys of a proven lease,
//! and passes the connection settings to a guard's process.

use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use serde_json::{Value, json};

use etcd_client::{Compare, CompareOp, LeaseTimeToLiveOptions, PutOptions, Txn, TxnOp};

use super::access::Access;
use super::call::kv;
use super::endpoint::Endpoint;
use super::lane::Lane;
use super::pool::Pool;
use crate::runtime::SharedEnv;
use eldest_core::error::{Class, RequestError};
use eldest_guard::{Extent, Proof, Release};

/// How many keys one transaction deletes. Each needs two comparisons beside the proof's two, and etcd allows 128
/// operations.
const MOST_AT_ONCE: usize = 64;
/// How many transactions run at a time: the next leaders of a thousand elections need not wait for each other.
const MOST_TOGETHER: usize = 8;

impl Pool {
    /// Puts an empty key under the lease, unless the key exists: `None` then.
    pub async fn put_proof(&self, key: String, lease: i64) -> Result<Option<Proof>, RequestError> {
        let absent = Compare::create_revision(&*key, CompareOp::Equal, 0);
        let put = TxnOp::put(&*key, "", Some(PutOptions::new().with_lease(lease)));
        let answer = self.txn(Txn::new().when([absent]).and_then([put])).await?;
        let revision = answer.header().map(etcd_client::ResponseHeader::revision);
        let put = revision.filter(|_| answer.succeeded());
        Ok(put.map(|create_revision| Proof {
            key,
            create_revision,
            lease,
        }))
    }

    /// Returns the proof if the key is bound to the lease.
    pub async fn proof(&self, key: &str, lease: i64) -> Result<Option<Proof>, RequestError> {
        let (_, entry) = self.read(Lane::Lease, key.as_bytes()).await?;
        Ok(entry
            .filter(|entry| entry.lease == lease)
            .map(|entry| Proof {
                key: key.to_owned(),
                create_revision: entry.create_revision,
                lease,
            }))
    }

    /// Deletes the keys that the lease has below `namespace`, each by a transaction that compares the proof and the key
    /// itself. The lease is not revoked: etcd compares nothing in a revocation, so a revocation based on an earlier
    /// read could delete keys that others have put under the lease since.
    ///
    /// A failure does not show that no key was deleted.
    pub async fn release_proven(
        &self,
        proof: &Proof,
        namespace: &str,
        extent: Extent,
    ) -> Result<Release, RequestError> {
        let (prefix, lease) = (namespace.as_bytes(), proof.lease);
        let Some((mut keys, outside)) = self.keys_of(lease, prefix).await? else {
            return Ok(Release::Gone);
        };
        keys.retain(|key| **key != *proof.key.as_bytes());
        let stands = match self.release_each(proof, &keys, MOST_AT_ONCE).await {
            // This etcd allows fewer operations (`--max-txn-ops`).
            Err(failure) if failure.class == Class::Invalid => {
                self.release_each(proof, &keys, 1).await?
            }
            other => other?,
        };
        // The proof goes last: without it no other key could be deleted.
        let last = match extent {
            Extent::AllButProof if !keys.is_empty() => return Ok(outcome(stands, outside)),
            Extent::AllButProof => Vec::new(),
            Extent::All => vec![Arc::from(proof.key.as_bytes())],
        };
        let stands = stands && self.release_some(proof, &last).await?;
        Ok(outcome(stands, outside))
    }

    /// Deletes the keys by transactions of the given size. Returns `false` if the proof is no longer bound to the
    /// lease.
    async fn release_each(
        &self,
        proof: &Proof,
        keys: &[Arc<[u8]>],
        at_once: usize,
    ) -> Result<bool, RequestError> {
        let parts: Vec<_> = keys.chunks(at_once).collect();
        for together in parts.chunks(MOST_TOGETHER) {
            let releases = together.iter().map(|part| self.release_some(proof, part));
            if try_join_all(releases).await?.contains(&false) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the keys of the lease below `prefix`, and how many others it has; `None` if the lease is gone.
    async fn keys_of(
        &self,
        lease: i64,
        prefix: &[u8],
    ) -> Result<Option<(Vec<Arc<[u8]>>, usize)>, RequestError> {
        let with_keys = Some(LeaseTimeToLiveOptions::new().with_keys());
        match self.time_to_live(Lane::Lease, lease, with_keys).await {
            Ok(None) => Ok(None),
            Ok(Some(answer)) => {
                let all = answer.keys();
                let below = all.iter().filter(|key| key.starts_with(prefix));
                let below: Vec<Arc<[u8]>> = below.map(|key| Arc::from(&**key)).collect();
                let outside = all.len() - below.len();
                Ok(Some((below, outside)))
            }
            // Too many keys for one answer, or one among them that this user may not read.
            Err(failure) if matches!(failure.class, Class::Invalid | Class::Denied) => {
                Ok(Some((self.bound(prefix, lease).await?, 0)))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Deletes those of the keys that did not change since they were read, if the proof still exists. Returns `false`
    /// if it does not.
    async fn release_some(&self, proof: &Proof, keys: &[Arc<[u8]>]) -> Result<bool, RequestError> {
        let found = match keys {
            [] => Vec::new(),
            keys => self.read_each(Lane::Lease, keys).await?.1,
        };
        let found = found.into_iter().flatten();
        let deletes = found
            .filter(|entry| entry.lease == proof.lease)
            .map(|entry| {
                let same = is_under(&entry.key, entry.create_revision, entry.lease);
                TxnOp::txn(
                    Txn::new()
                        .when(same)
                        .and_then([TxnOp::delete(&*entry.key, None)]),
                )
            });
        let txn = &Txn::new()
            .when(stands(proof))
            .and_then(deletes.collect::<Vec<_>>());
        self.call(Lane::Lease, |client| async move {
            Ok(kv(&client).txn(txn.clone()).await?.succeeded())
        })
        .await
    }

    /// Returns what another process needs in order to use the same endpoints, including the password.
    pub fn passed(&self) -> Result<Value, String> {
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

    /// Makes a pool from the value that [`Pool::passed`] returned in another process.
    pub fn from_passed(env: SharedEnv, passed: &Value) -> Result<Self, String> {
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

fn outcome(stands: bool, outside: usize) -> Release {
    if stands {
        Release::Released { outside }
    } else {
        Release::Unproven
    }
}

/// Holds while exactly the proof's key is bound to the lease.
fn stands(proof: &Proof) -> [Compare; 2] {
    is_under(proof.key.as_bytes(), proof.create_revision, proof.lease)
}

/// Holds while the key with that create revision is bound to the lease.
fn is_under(key: &[u8], create_revision: i64, lease: i64) -> [Compare; 2] {
    [
        Compare::create_revision(key, CompareOp::Equal, create_revision),
        Compare::lease(key, CompareOp::Equal, lease),
    ]
}

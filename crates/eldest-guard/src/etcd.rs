//! Defines the two calls by which a guard reaches etcd: one reads what proves a lease, the other deletes the keys of a
//! proven lease.

use std::fmt;
use std::time::Duration;

use eldest_core::error::RequestError;
use futures::future::BoxFuture;

/// A guard's way to etcd. Each call is sent once, and ends within a timeout.
pub trait Etcd: Send + Sync + 'static {
    /// Reads whether a claim holds now.
    ///
    /// # Errors
    ///
    /// The claim does not hold, or etcd did not say.
    fn prove<'a>(&'a self, claim: Claim<'a>) -> BoxFuture<'a, Result<Proven, Unproven>>;

    /// Deletes the keys that the lease has below `namespace`, each by a transaction that compares the proof and the key
    /// itself. The lease is not revoked: etcd compares nothing in a revocation, so a revocation based on an earlier read
    /// could delete keys that others have put under the lease since.
    ///
    /// # Errors
    ///
    /// A failure does not show that no key was deleted.
    fn revoke<'a>(
        &'a self,
        proof: &'a Proof,
        namespace: &'a str,
        extent: Extent,
    ) -> BoxFuture<'a, Result<Release, RequestError>>;

    /// Returns how long a request may take.
    fn request_timeout(&self) -> Duration;
}

/// A session's claim to a lease.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// The key that must be bound to the lease.
    pub key: &'a str,
    /// The lease.
    pub lease: i64,
    /// The prefix below which the guard must be allowed to delete keys; `None` if that is known.
    pub namespace: Option<&'a str>,
    /// True if the TTL of the lease is needed, too.
    pub with_ttl: bool,
}

impl<'a> Claim<'a> {
    /// Makes the claim that this key is bound to the lease.
    pub fn of(key: &'a str, lease: i64) -> Self {
        Self {
            key,
            lease,
            namespace: None,
            with_ttl: false,
        }
    }
}

/// A claim that holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proven {
    /// The proof of the lease.
    pub proof: Proof,
    /// The TTL that etcd granted, if the claim asked for it.
    pub granted: Option<Duration>,
}

/// Why a claim is not proven.
#[derive(Debug, Clone)]
pub enum Unproven {
    /// etcd shows that the claim does not hold, for this reason.
    Refused(String),
    /// etcd did not answer.
    Unknown {
        /// Says which fact is unknown, such as `the guard's permissions are unknown`.
        unknown: String,
        /// The failed request.
        failure: RequestError,
    },
}

impl fmt::Display for Unproven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unproven::Refused(reason) => f.write_str(reason),
            Unproven::Unknown { unknown, failure } => write!(f, "{unknown}: {failure}"),
        }
    }
}

/// A key bound to a lease. Only a user that may write the key's namespace can have put it there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// The key.
    pub key: String,
    /// The revision at which the key was created.
    pub create_revision: i64,
    /// The lease.
    pub lease: i64,
}

/// The outcome of the release of a lease's keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// The lease had ended.
    Gone,
    /// The proof is no longer bound to the lease: nothing was deleted.
    Unproven,
    /// No key of the lease is left in the namespace.
    Released {
        /// How many keys of the lease lie elsewhere and were not deleted.
        outside: usize,
    },
}

/// The extent of a release: with or without the proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// All keys but the proof.
    AllButProof,
    /// All keys. The proof goes last.
    All,
}

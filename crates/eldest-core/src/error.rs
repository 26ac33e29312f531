//! Defines the failures of requests to etcd. `etcd/` reports them, and the core decides by them.

use std::fmt;

/// The class of a failed request, which decides what follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Try again, at another endpoint: unreachable, timed out, without a leader, a learner, or an odd answer.
    Retry,
    /// The requested revision is compacted: list again.
    Compacted,
    /// The lease id is in use: choose another id.
    LeaseTaken,
    /// etcd's gRPC proxy answers at the endpoint: use another endpoint.
    Proxy,
    /// One side refused the other's certificate: use another endpoint.
    Certificate,
    /// The version of etcd does not suit the session: use another endpoint.
    Outdated,
    /// Try again later: etcd is overloaded.
    Backoff,
    /// Try again later: etcd is out of space. It still deletes, but puts nothing.
    Full,
    /// The lease does not exist (any more).
    LeaseGone,
    /// etcd does not accept the token (any more); a new connection authenticates again.
    Stale,
    /// etcd refused the credentials themselves.
    Auth,
    /// The user lacks a permission.
    Denied,
    /// The request can never succeed as it is.
    Invalid,
    /// Others use this semaphore with another capacity; only the core itself reports this.
    Mismatch,
    /// Others share these partitions under another count; only the core itself reports this.
    Miscount,
    /// An election has the name of this lock; only the core itself reports this.
    Elected,
}

impl Class {
    /// Returns `true` if a request that was sent may have been applied. The other classes are refusals.
    pub const fn leaves_open(self) -> bool {
        matches!(self, Class::Retry | Class::Compacted)
    }

    /// Returns `true` if another endpoint, or a new connection, may do better.
    pub const fn moves_on(self) -> bool {
        matches!(
            self,
            Class::Retry
                | Class::Stale
                | Class::Auth
                | Class::Proxy
                | Class::Certificate
                | Class::Outdated
        )
    }
}

/// A failed request. It never holds a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestError {
    /// The class, which decides what follows.
    pub class: Class,
    /// True if etcd may have applied the request. A refusal by etcd itself shows that it did not.
    pub ambiguous: bool,
    /// The text of etcd or of the connection.
    pub message: String,
    /// The endpoint of the request; empty if there was none.
    pub endpoint: String,
    /// The gRPC code of etcd's answer; `None` if etcd did not answer.
    pub code: Option<i32>,
}

impl RequestError {
    /// Makes the failure of a request that was sent. etcd may have applied it only if the remedy is another attempt:
    /// every other class is a refusal.
    pub fn new(class: Class, message: impl Into<String>, endpoint: &str) -> Self {
        Self {
            class,
            ambiguous: class.leaves_open(),
            message: message.into(),
            endpoint: endpoint.to_owned(),
            code: None,
        }
    }

    /// Adds the gRPC code of etcd's answer.
    #[must_use]
    pub fn with_code(mut self, code: i32) -> Self {
        self.code = Some(code);
        self
    }

    /// Marks the request as certainly not sent.
    #[must_use]
    pub fn unsent(mut self) -> Self {
        self.ambiguous = false;
        self
    }

    /// Marks an earlier part of the same operation as possibly applied, for a failure of any class.
    #[must_use]
    pub fn after_sending(mut self) -> Self {
        self.ambiguous = true;
        self
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.endpoint.is_empty() {
            write!(f, " (at {})", self.endpoint)?;
        }
        Ok(())
    }
}

impl std::error::Error for RequestError {}

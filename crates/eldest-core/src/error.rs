//! Says why a request to etcd failed, in the terms by which the core decides and in which `etcd/` answers.

use std::fmt;

/// What to do about a failed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Try again, at another endpoint: unreachable, timed out, without a leader, a learner, or an odd answer.
    Retry,
    /// The revision asked for is compacted: list again.
    Compacted,
    /// Somebody has a lease of that id: ask for another id.
    LeaseTaken,
    /// etcd's gRPC proxy answers there: use another endpoint.
    Proxy,
    /// One side refused the other's certificate: use another endpoint.
    Certificate,
    /// Try again later: etcd is overloaded or out of space.
    Backoff,
    /// The lease does not exist (any more).
    LeaseGone,
    /// The credentials or the token were refused; a fresh connection authenticates anew.
    Auth,
    /// The user may not do this.
    Denied,
    /// The request can never succeed as it is.
    Invalid,
    /// Others use this semaphore with another capacity; only the core itself says so.
    Mismatch,
    /// Others share these partitions under another count; only the core itself says so.
    Miscount,
}

impl Class {
    /// Whether a request that was sent may have been applied all the same. The other classes are refusals.
    pub const fn leaves_open(self) -> bool {
        matches!(self, Class::Retry | Class::Compacted)
    }

    /// Whether another endpoint, or a fresh connection, may do better.
    pub const fn moves_on(self) -> bool {
        matches!(
            self,
            Class::Retry | Class::Auth | Class::Proxy | Class::Certificate
        )
    }
}

/// A failed request. Never holds a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestError {
    /// What to do about it.
    pub class: Class,
    /// Whether etcd may have done what was asked. A refusal by etcd itself says that it did not.
    pub ambiguous: bool,
    /// What etcd or the connection said.
    pub message: String,
    /// The endpoint that was asked; empty if none was.
    pub endpoint: String,
    /// The gRPC code of etcd's answer; `None` if etcd did not answer.
    pub code: Option<i32>,
}

impl RequestError {
    /// The failure of a request that was sent. Only where another attempt is the remedy may etcd have done it: every
    /// other class is a refusal.
    pub fn new(class: Class, message: impl Into<String>, endpoint: &str) -> Self {
        Self {
            class,
            ambiguous: class.leaves_open(),
            message: message.into(),
            endpoint: endpoint.to_owned(),
            code: None,
        }
    }

    /// Says with which gRPC code etcd answered.
    #[must_use]
    pub fn with_code(mut self, code: i32) -> Self {
        self.code = Some(code);
        self
    }

    /// Says that the request has certainly not left us.
    #[must_use]
    pub fn unsent(mut self) -> Self {
        self.ambiguous = false;
        self
    }

    /// Says that an earlier part of the same operation may have been applied, whatever the class of this failure.
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

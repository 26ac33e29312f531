//! Defines the errors of this crate: each one says what its caller does next.

use std::fmt;
use std::sync::Arc;

use eldest_core::action::{Class, RequestError};
use eldest_core::reason::EndReason;

/// Any error of a user's own.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, and so what to do about it.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// An option, a name or a value breaks a rule; the message names both. Nothing was sent to etcd. Correct it.
    InvalidInput,
    /// etcd could not be reached or did not answer in time at any endpoint. Try again.
    Unavailable,
    /// The user may not do this. Grant the role `readwrite` on the namespace (`read` for onlookers).
    PermissionDenied,
    /// User, password or token were refused. Correct the credentials.
    Unauthenticated,
    /// etcd is overloaded or out of space. Back off; see to etcd's alarms.
    Overloaded,
    /// etcd will never accept this request, for example because it is too large. Change it.
    Rejected,
    /// The endpoint is etcd's gRPC proxy, which leases cannot rely on. Name the members of etcd themselves.
    Proxied,
    /// Others use this semaphore with another capacity; the message names both. Use theirs, or wait until none of
    /// them holds or awaits a permit.
    CapacityMismatch,
    /// Others share these partitions under another count; the message names both. Use theirs, or wait until none of
    /// them is there.
    CountMismatch,
    /// This session already stands in that election. Use the candidate it has, or another session.
    AlreadyCampaigning,
    /// The leadership is over, or was over before this call: stop the work.
    LeadershipLost,
    /// The fenced transaction was not applied because the key is no longer ours: stop the work.
    GuardLost,
    /// The fenced transaction was sent once and no answer came: it may or may not have been applied, or
    /// be applied later. Read back, and let the next write compare what it builds upon.
    Ambiguous,
    /// The candidacy has ended. Campaign again to stand anew.
    Ended,
    /// The session was closed, or its runtime shut down. Connect a new one.
    Closed,
    /// The work given to [`Election::run`](crate::Election::run) or [`Runner`](crate::Runner) failed; its error is the
    /// source.
    Work,
}

impl ErrorKind {
    const fn what(self) -> &'static str {
        match self {
            ErrorKind::InvalidInput => "invalid input",
            ErrorKind::Unavailable => "etcd is unavailable",
            ErrorKind::PermissionDenied => "permission denied",
            ErrorKind::Unauthenticated => "not authenticated",
            ErrorKind::Overloaded => "etcd is overloaded",
            ErrorKind::Rejected => "etcd rejects the request",
            ErrorKind::Proxied => "a proxy stands before etcd",
            ErrorKind::CapacityMismatch => "the semaphore has another capacity",
            ErrorKind::CountMismatch => "the partitions have another count",
            ErrorKind::AlreadyCampaigning => "already campaigning",
            ErrorKind::LeadershipLost => "leadership lost",
            ErrorKind::GuardLost => "guard lost",
            ErrorKind::Ambiguous => "outcome unknown",
            ErrorKind::Ended => "the candidacy has ended",
            ErrorKind::Closed => "the session is closed",
            ErrorKind::Work => "the work failed",
        }
    }
}

/// The one error of this crate. Never contains a password.
#[derive(Clone)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Arc<dyn std::error::Error + Send + Sync + 'static>>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    pub(crate) fn work(error: BoxError) -> Self {
        Self {
            kind: ErrorKind::Work,
            message: String::new(),
            source: Some(error.into()),
        }
    }

    pub(crate) fn closed() -> Self {
        Self::new(
            ErrorKind::Closed,
            "it was closed, or the runtime that drives it is gone",
        )
    }

    pub(crate) fn closed_by(reason: EndReason) -> Self {
        match reason {
            EndReason::SessionClosed => Self::closed(),
            EndReason::Left => Self::new(ErrorKind::Ended, "it left the election"),
            EndReason::Resigned => Self::new(ErrorKind::Ended, "it resigned"),
            EndReason::Shutdown => Self::new(ErrorKind::Ended, "it was shut down"),
            EndReason::Refused => Self::new(ErrorKind::Ended, "etcd refused it"),
            EndReason::Taken => Self::new(ErrorKind::Ended, "others stood already"),
            other => Self::new(ErrorKind::Ended, format!("it ended: {other}")),
        }
    }

    pub(crate) fn from_trouble(trouble: &RequestError) -> Self {
        Self::new(kind_of(trouble.class), trouble.message.clone())
    }

    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

pub(crate) fn kind_of(class: Class) -> ErrorKind {
    match class {
        Class::Retry | Class::LeaseGone => ErrorKind::Unavailable,
        Class::Backoff => ErrorKind::Overloaded,
        Class::Auth => ErrorKind::Unauthenticated,
        Class::Denied => ErrorKind::PermissionDenied,
        Class::Invalid => ErrorKind::Rejected,
        Class::Mismatch => ErrorKind::CapacityMismatch,
        Class::Miscount => ErrorKind::CountMismatch,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.what())?;
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        if let (ErrorKind::Work, Some(source)) = (self.kind, &self.source) {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.kind)
            .field("message", &self.message)
            .field("source", &self.source)
            .finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let source = self.source.as_ref()?;
        Some(&**source as &(dyn std::error::Error + 'static))
    }
}

//! Defines the error of a routed request: its kind says what the caller does next.

use std::fmt;
use std::sync::Arc;

use eldest::BoxError;

/// The outcome of a request, which decides what the caller does next.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// No node led, and served, within the wait. The request was not sent: send it again later.
    NoLeader,
    /// As many requests as may be [held](crate::Routed::held) wait already. No node worked on the request: send it again
    /// later.
    Full,
    /// The leader announces no address, or an invalid one. The request was not sent: correct the announcement of that
    /// node.
    NoAddress,
    /// The request names no partition: correct the caller, or the function that takes the key from the request.
    NoKey,
    /// No connection to the leader was made within the wait. The request was not sent: send it again later.
    Unreachable,
    /// Each node that received the request answered that it does not lead, so no node worked on it: send it again.
    NotLeading,
    /// The request was sent, and no answer came. It may have been carried out: check before you send it again.
    Lost,
    /// The request passed through as many nodes as allowed, so the nodes disagree about the leader. The request was not
    /// sent: send it again later.
    TooManyHops,
    /// The view of the election is gone: the session was closed, or etcd refuses to show the keys. The request was not
    /// sent. The source says which.
    NoView,
}

impl ErrorKind {
    fn what(self) -> &'static str {
        match self {
            Self::NoLeader => "nobody leads and serves",
            Self::Full => "too many requests wait",
            Self::NoAddress => "the leader has no address",
            Self::NoKey => "the request has no key",
            Self::Unreachable => "the leader cannot be reached",
            Self::NotLeading => "no node says that it leads",
            Self::Lost => "the request was sent, and no answer came",
            Self::TooManyHops => "the request was forwarded too often",
            Self::NoView => "the election cannot be observed",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what())
    }
}

/// The error of a routed request. `Display` says what happened and where; the text of the client or of etcd is the
/// [`source`](std::error::Error::source).
#[derive(Debug, Clone)]
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

    pub(crate) fn caused_by(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(source.into().into());
        self
    }

    /// Returns the kind, which tells the caller what to do next.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns `true` if a node may have carried the request out, although no answer came. Otherwise no node worked on
    /// it, and it is safe to send it again.
    pub fn may_have_been_carried_out(&self) -> bool {
        self.kind == ErrorKind::Lost
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let source = self.source.as_ref()?;
        Some(&**source as &(dyn std::error::Error + 'static))
    }
}

//! Defines the error of this crate. Its kind says what a test does about it; its text says what happened.

use std::fmt;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// gRPC's code for a server that could not be reached.
const UNAVAILABLE: i32 = 14;

/// Another error, as the cause of ours.
type Source = Box<dyn std::error::Error + Send + Sync + 'static>;

/// The kind of an error, which says what a test does about it.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// An argument breaks a rule; the message names it. Correct it.
    InvalidInput,
    /// The program of a server is not on this machine, or cannot run. Install it, or name another one.
    Missing,
    /// A server does not serve; the message quotes its log.
    NotServing,
    /// The awaited condition was not met before the deadline; the message says what was seen last.
    TimedOut,
    /// An event happened that the caller of [`one_leader_stays`](crate::one_leader_stays) ruled out.
    Contradicted,
    /// etcd or the Docker Engine does not answer. Check that it runs and that this machine reaches it.
    Unreachable,
    /// etcd or the Docker Engine refused; the source says why.
    Refused,
    /// This machine refused a folder, a file or a port; the source says why, if it is known.
    Machine,
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InvalidInput => "invalid input",
            Self::Missing => "a program is missing",
            Self::NotServing => "a server does not serve",
            Self::TimedOut => "the deadline passed",
            Self::Contradicted => "the opposite was seen",
            Self::Unreachable => "nobody answers",
            Self::Refused => "refused",
            Self::Machine => "the machine refuses",
        })
    }
}

/// The error type of this crate.
///
/// `Display` says what went wrong. The words of etcd, the Docker Engine or the machine are the
/// [`source`](std::error::Error::source), and are not repeated. `Debug` writes both as plain text, because a failed
/// test shows that.
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Source>,
}

impl Error {
    #[cfg_attr(not(feature = "etcd"), allow(dead_code, reason = "histories need few"))]
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    pub(crate) fn because(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl Into<Source>,
    ) -> Self {
        Self {
            source: Some(source.into()),
            ..Self::new(kind, message)
        }
    }

    /// Makes the error of a failed request to etcd, which has etcd's answer or says that none came.
    pub(crate) fn of_etcd(doing: &str, error: etcd_client::Error) -> Self {
        let answered = matches!(&error, etcd_client::Error::GRpcStatus(status)
            if status.code() as i32 != UNAVAILABLE);
        let kind = if answered {
            ErrorKind::Refused
        } else {
            ErrorKind::Unreachable
        };
        Self::because(kind, format!("cannot {doing}"), error)
    }

    /// Returns the kind, which says what a test does about the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        let mut source = std::error::Error::source(self);
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let source = self.source.as_ref()?;
        Some(&**source as &(dyn std::error::Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn display_leaves_the_source_out_and_debug_shows_all() {
        let source = std::io::Error::other("no room");
        let error = Error::because(ErrorKind::Machine, "cannot make a folder", source);
        assert_eq!(error.kind(), ErrorKind::Machine);
        assert_eq!(error.to_string(), "cannot make a folder");
        assert_eq!(error.kind().to_string(), "the machine refuses");
        assert_eq!(
            error.source().expect("the machine's").to_string(),
            "no room"
        );
        assert_eq!(format!("{error:?}"), "cannot make a folder: no room");
    }

    #[test]
    fn an_error_passes_through_a_boxed_one_and_back() {
        let error: eldest::BoxError = Error::new(ErrorKind::TimedOut, "etcd serves").into();
        let error = error.downcast::<Error>().expect("it is ours");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}

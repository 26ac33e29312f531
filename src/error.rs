//! Defines the errors of this crate. Each kind tells its caller what to do next.

use std::fmt;
use std::sync::Arc;

use eldest_core::action::{Class, RequestError};
use eldest_core::reason::EndReason;
use eldest_core::version::InvalidVersion;
#[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
use eldest_etcd::InvalidTls;

/// Any error of the user's own work.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error, which tells the caller what to do next.
///
/// [`Election::run`](crate::Election::run) continues after it has lost a leadership, and
/// [`Election::campaign`](crate::Election::campaign) continues while etcd cannot be reached: neither returns an error.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// An option, a name or a value breaks a rule; the message names both. Nothing was written to etcd. Correct the
    /// value.
    InvalidInput,
    /// No endpoint of etcd could be reached, or none answered in time. Try again. If the call should have deleted a
    /// key, the session continues to delete it in the background.
    Unavailable,
    /// The user lacks a permission. Grant the role `readwrite` on the namespace (`read` for observers).
    PermissionDenied,
    /// etcd refused the user or the password, or requires a user and received none. Correct the credentials.
    Unauthenticated,
    /// etcd is overloaded or out of space. Try again after a pause, and check etcd's alarms.
    Overloaded,
    /// etcd will never accept this request, for example because it is too large. Change the request.
    Rejected,
    /// The endpoint is etcd's gRPC proxy, which is not safe for leases. Name the members of etcd as endpoints.
    Proxied,
    /// This process refused etcd's certificate, or etcd refused ours; the source says which and why. Correct the
    /// authorities, the names in the certificate, or the files of [`SessionOptions::tls`](crate::SessionOptions). An
    /// existing session keeps trying.
    CertificateRefused,
    /// The guard that the session requires cannot be reached, or does not guard the session's lease; the message says
    /// why. Start the agent, or make the guard optional.
    Unguarded,
    /// Other sessions use this semaphore with another capacity; the message names both. Use their capacity, or wait
    /// until none of them holds or awaits a permit.
    CapacityMismatch,
    /// Other sessions share these partitions under another count; the message names both. Use their count, or wait
    /// until none of them is a member.
    CountMismatch,
    /// The name of a lock belongs to an election that has candidates. Use another name.
    NameInUse,
    /// This session is already a candidate in that election. Use that candidate, or another session.
    AlreadyCampaigning,
    /// An [order to step down](crate::Election::order_step_down) was not obeyed, or no leader could obey it; the
    /// message says why. It was withdrawn. Correct the cause, or repeat the call.
    NotObeyed,
    /// The leadership is over, or was over before this call. Nothing was sent. Stop the work.
    LeadershipLost,
    /// The fenced transaction was not applied because the key no longer belongs to this term. Stop the work.
    FenceLost,
    /// The fenced transaction was sent once and no answer came: etcd may have applied it, or may apply it later. Read
    /// back, and let the next write compare the value that it builds on.
    Ambiguous,
    /// The candidacy has ended. Campaign again to join the queue.
    Ended,
    /// The session was closed, or its runtime shut down. Connect a new session.
    Closed,
    /// The work given to [`Election::run`](crate::Election::run) or [`Runner`](crate::Runner) failed. Its error is the
    /// source.
    Work,
}

impl ErrorKind {
    const fn what(self) -> &'static str {
        match self {
            ErrorKind::InvalidInput => "invalid input",
            ErrorKind::Unavailable => "etcd is unavailable",
            ErrorKind::PermissionDenied => "permission denied",
            ErrorKind::Unauthenticated => "authentication failed",
            ErrorKind::Overloaded => "etcd is overloaded",
            ErrorKind::Rejected => "etcd rejects the request",
            ErrorKind::Proxied => "the endpoint is etcd's gRPC proxy",
            ErrorKind::CertificateRefused => "a certificate was refused",
            ErrorKind::Unguarded => "the session has no guard",
            ErrorKind::CapacityMismatch => "the semaphore has another capacity",
            ErrorKind::CountMismatch => "the partitions have another count",
            ErrorKind::NameInUse => "an election has the name",
            ErrorKind::AlreadyCampaigning => "already campaigning",
            ErrorKind::NotObeyed => "the order was not obeyed",
            ErrorKind::LeadershipLost => "leadership lost",
            ErrorKind::FenceLost => "the fence was lost",
            ErrorKind::Ambiguous => "outcome unknown",
            ErrorKind::Ended => "the candidacy has ended",
            ErrorKind::Closed => "the session is closed",
            ErrorKind::Work => "the work failed",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what())
    }
}

/// The error type of this crate. It never contains a password.
///
/// `Display` says what went wrong and at which endpoint. The text of etcd, of the connection or of your own work is the
/// [`source`](std::error::Error::source), and is not repeated. [`report`](Error::report) writes everything, and so does
/// `Debug`, which prints the error that `main` returns. `{:#?}` lists the fields.
#[derive(Clone)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    /// The endpoint at which it happened; empty if there is none.
    endpoint: String,
    code: Option<i32>,
    source: Option<Arc<dyn std::error::Error + Send + Sync + 'static>>,
}

/// The text of etcd or of the connection.
#[derive(Debug)]
struct Said(String);

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Said {}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            endpoint: String::new(),
            code: None,
            source: None,
        }
    }

    pub(crate) fn work(error: BoxError) -> Self {
        Self {
            source: Some(error.into()),
            ..Self::new(ErrorKind::Work, "")
        }
    }

    pub(crate) fn closed() -> Self {
        Self::new(
            ErrorKind::Closed,
            "it was closed, or its runtime has shut down",
        )
    }

    pub(crate) fn closed_by(reason: EndReason) -> Self {
        match reason {
            EndReason::SessionClosed => Self::closed(),
            EndReason::Left => Self::new(ErrorKind::Ended, "the candidate left the election"),
            EndReason::Resigned => Self::new(ErrorKind::Ended, "the leader resigned"),
            EndReason::WorkFailed => Self::new(ErrorKind::Ended, "the work failed"),
            EndReason::Shutdown => Self::new(ErrorKind::Ended, "the run was shut down"),
            EndReason::Refused => Self::new(ErrorKind::Ended, "etcd refused the candidate's key"),
            EndReason::Taken => Self::new(ErrorKind::Ended, "others were in the queue already"),
            other => Self::new(ErrorKind::Ended, format!("its reason: {other}")),
        }
    }

    pub(crate) fn from_request(error: &RequestError) -> Self {
        Self::of_request(kind_of(error.class), "", error)
    }

    /// Makes the error of a failed request whose meaning is narrower than its class.
    pub(crate) fn of_request(
        kind: ErrorKind,
        message: impl Into<String>,
        error: &RequestError,
    ) -> Self {
        if error.endpoint.is_empty() {
            // The core's own text.
            return Self::new(kind, error.message.clone());
        }
        Self {
            endpoint: error.endpoint.clone(),
            code: error.code,
            source: Some(Arc::new(Said(error.message.clone()))),
            ..Self::new(kind, message)
        }
    }

    /// Returns the kind, which tells the caller what to do next.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns `true` if the same call may succeed later without a change by the caller: for [`ErrorKind::Unavailable`]
    /// and [`ErrorKind::Overloaded`].
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, ErrorKind::Unavailable | ErrorKind::Overloaded)
    }

    /// Returns the gRPC status code of etcd's answer, or `None` if the failure is not an answer of etcd. 7 is
    /// "permission denied", 8 "resource exhausted", and 16 "unauthenticated".
    pub fn etcd_code(&self) -> Option<i32> {
        self.code
    }

    /// Returns the error and its sources on one line, for logs and terminals.
    ///
    /// ```
    /// # fn example(error: &eldest::Error) {
    /// eprintln!("{}", error.report()); // permission denied (at http://10.0.0.1:2379): etcdserver: permission denied
    /// # }
    /// ```
    pub fn report(&self) -> impl fmt::Display + '_ {
        Report(self)
    }
}

struct Report<'a>(&'a Error);

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = std::error::Error::source(self.0);
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

fn kind_of(class: Class) -> ErrorKind {
    match class {
        Class::Retry | Class::Stale | Class::Compacted | Class::LeaseTaken | Class::LeaseGone => {
            ErrorKind::Unavailable
        }
        Class::Proxy => ErrorKind::Proxied,
        Class::Certificate => ErrorKind::CertificateRefused,
        Class::Backoff | Class::Full => ErrorKind::Overloaded,
        Class::Auth => ErrorKind::Unauthenticated,
        Class::Denied => ErrorKind::PermissionDenied,
        Class::Invalid | Class::Outdated => ErrorKind::Rejected,
        Class::Mismatch => ErrorKind::CapacityMismatch,
        Class::Miscount => ErrorKind::CountMismatch,
        Class::Elected => ErrorKind::NameInUse,
    }
}

impl From<InvalidVersion> for Error {
    fn from(invalid: InvalidVersion) -> Self {
        Self::new(ErrorKind::InvalidInput, invalid.to_string())
    }
}

#[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
impl From<InvalidTls> for Error {
    fn from(invalid: InvalidTls) -> Self {
        Self::new(ErrorKind::InvalidInput, invalid.to_string())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.what())?;
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        if !self.endpoint.is_empty() {
            write!(f, " (at {})", self.endpoint)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return fmt::Display::fmt(&Report(self), f);
        }
        f.debug_struct("Error")
            .field("kind", &self.kind)
            .field("message", &self.message)
            .field("endpoint", &self.endpoint)
            .field("code", &self.code)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn page_of_errors_explains_every_kind() {
        let (source, page) = (include_str!("error.rs"), include_str!("../docs/errors.md"));
        let (_, kinds) = source.split_once("pub enum ErrorKind {").expect("kinds");
        let (kinds, _) = kinds.split_once("\n}").expect("their end");
        let kinds = kinds
            .lines()
            .filter_map(|line| line.trim().strip_suffix(','));
        let kinds: Vec<&str> = kinds.filter(|line| !line.starts_with("//")).collect();
        assert!(kinds.contains(&"Unavailable"), "{kinds:?}");
        let rows = page.lines().filter(|line| line.starts_with("| `"));
        let first = rows.filter_map(|row| row.split('|').nth(1));
        let explained: Vec<&str> = first
            .flat_map(|cell| cell.split('`').skip(1).step_by(2))
            .collect();
        for kind in kinds {
            assert!(explained.contains(&kind), "docs/errors.md lacks {kind}");
        }
    }

    #[test]
    fn display_says_where_and_the_source_says_what_etcd_said() {
        let failed =
            RequestError::new(Class::Denied, "etcdserver: permission denied", "http://a:1");
        let error = Error::from_request(&failed.with_code(7));
        assert_eq!(error.to_string(), "permission denied (at http://a:1)");
        let source = error.source().expect("etcd said something");
        assert_eq!(source.to_string(), "etcdserver: permission denied");
        let report = "permission denied (at http://a:1): etcdserver: permission denied";
        assert_eq!(error.report().to_string(), report);
        let returned_by_main: BoxError = error.clone().into();
        assert_eq!(format!("{returned_by_main:?}"), report);
        assert!(format!("{error:#?}").contains("kind: PermissionDenied"));
        assert_eq!((error.etcd_code(), error.is_transient()), (Some(7), false));
    }

    #[test]
    fn core_error_text_is_the_message_and_work_error_the_source() {
        let own = RequestError::new(Class::Mismatch, "it is used with 3", "");
        let error = Error::from_request(&own);
        assert_eq!(
            error.to_string(),
            "the semaphore has another capacity: it is used with 3"
        );
        assert!(error.source().is_none());
        let error = Error::work("broken".into());
        assert_eq!(error.to_string(), "the work failed");
        assert_eq!(error.report().to_string(), "the work failed: broken");
        assert_eq!(error.kind().to_string(), "the work failed");
    }

    #[test]
    fn only_errors_that_may_pass_by_themselves_are_transient() {
        for (class, transient) in [
            (Class::Retry, true),
            (Class::Backoff, true),
            (Class::Full, true),
            (Class::Certificate, false),
            (Class::Auth, false),
            (Class::Invalid, false),
        ] {
            let error = Error::from_request(&RequestError::new(class, "m", "e"));
            assert_eq!(error.is_transient(), transient, "{class:?}");
        }
    }
}

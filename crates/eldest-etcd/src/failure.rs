//! Classifies failed calls, by etcd's error codes, by the caller's next step.

use std::error::Error as StdError;

use tonic::Code;

use eldest_core::error::{Class, RequestError};

/// etcd's answer to an authentication while it has authentication disabled.
const AUTHENTICATION_DISABLED: &str = "authentication is not enabled";

/// Returns `true` if an attempt to connect failed because authentication is disabled.
pub(super) fn is_without_users(error: &etcd_client::Error) -> bool {
    matches!(error, etcd_client::Error::GRpcStatus(status) if status.message().contains(AUTHENTICATION_DISABLED))
}

/// Classifies an error of the client.
pub(super) fn from_error(error: &etcd_client::Error, endpoint: &str) -> RequestError {
    use etcd_client::Error as E;
    match error {
        E::GRpcStatus(status) => from_status(status, endpoint),
        E::LeaseKeepAliveError(message) => {
            RequestError::new(classify(Code::Unknown, message), message, endpoint)
        }
        E::TransportError(error) => {
            let message = chain(error);
            RequestError::new(class_here(&message), message, endpoint)
        }
        // Errors that the client itself makes, before anything is sent.
        E::InvalidArgs(_)
        | E::InvalidUri(_)
        | E::Utf8Error(_)
        | E::InvalidMetadataValue(_)
        | E::EndpointsNotManaged => RequestError::new(Class::Invalid, chain(error), endpoint),
        // Connections that broke, and streams and channels that ended.
        _ => RequestError::new(Class::Retry, chain(error), endpoint),
    }
}

fn from_status(status: &tonic::Status, endpoint: &str) -> RequestError {
    let class = classify(status.code(), status.message());
    // tonic refuses the answer here; etcd did not refuse the request.
    let answer_refused = status
        .message()
        .contains("decoded message length too large");
    if connect_failed(status) {
        // The status repeats only the outermost cause ("tcp connect error"); its sources say why.
        let message = status.source().map_or_else(String::new, chain);
        return RequestError::new(class_here(&message), message, endpoint).unsent();
    }
    let mut message = if status.message().is_empty() {
        status.code().to_string()
    } else {
        status.message().to_owned()
    };
    // Only local failures have causes; these explain "transport error", for example by a refused certificate.
    let Some(source) = status.source() else {
        let failure = RequestError::new(class, message, endpoint);
        if answer_refused {
            return failure.after_sending();
        }
        return failure.with_code(status.code().into());
    };
    for cause in causes(source).map(ToString::to_string) {
        if !message.contains(&cause) {
            message = format!("{message}: {cause}");
        }
    }
    if class_here(&message) == Class::Certificate {
        return RequestError::new(Class::Certificate, message, endpoint);
    }
    let failure = RequestError::new(class, message, endpoint);
    if answer_refused {
        return failure.after_sending();
    }
    failure
}

/// Classifies a watch that etcd refused to create, by the reason in etcd's message.
pub(super) fn from_watch_refusal(reason: &str, endpoint: &str) -> RequestError {
    let message = if reason.is_empty() {
        "the watch was refused without a reason"
    } else {
        reason
    };
    RequestError::new(classify(Code::Unknown, reason), message, endpoint)
}

/// Classifies by the message first, because etcd's codes mislead: an old auth store is an "invalid argument", a broken
/// connection "unknown", and a missing lease has the same code as a missing key.
fn classify(code: Code, message: &str) -> Class {
    const BY_MESSAGE: &[(&str, Class)] = &[
        // tonic gives these the code of the HTTP/2 reason, even "permission denied".
        ("h2 protocol error", Class::Retry),
        ("transport error", Class::Retry),
        ("lease not found", Class::LeaseGone),
        ("lease already exists", Class::LeaseTaken),
        ("has been compacted", Class::Compacted),
        ("future revision", Class::Retry),
        ("too many requests", Class::Backoff),
        ("database space exceeded", Class::Full),
        // Users or roles have changed since the token was made.
        ("auth store is old", Class::Stale),
        // The token has expired, or its user's password has changed.
        ("invalid auth token", Class::Stale),
        // The request had no token: authentication was enabled after the connection was made.
        ("user name is empty", Class::Stale),
        ("authentication failed", Class::Auth),
        (AUTHENTICATION_DISABLED, Class::Auth),
        ("permission denied", Class::Denied),
        ("not supported for learner", Class::Retry),
        ("not leader", Class::Retry),
        ("no leader", Class::Retry),
        ("request is too large", Class::Invalid),
        ("message larger than max", Class::Invalid),
        ("message length too large", Class::Invalid),
        ("duplicate watch ID", Class::Invalid),
    ];
    if let Some((_, class)) = BY_MESSAGE.iter().find(|(part, _)| message.contains(part)) {
        return *class;
    }
    match code {
        Code::ResourceExhausted => Class::Backoff,
        Code::Unauthenticated => Class::Auth,
        Code::PermissionDenied => Class::Denied,
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::OutOfRange
        | Code::Unimplemented => Class::Invalid,
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss => Class::Retry,
    }
}

/// Returns the class of a local failure: a connection that broke, or a certificate that one of the two sides refused.
///
/// rustls names the certificate that we refuse, and the alert by which etcd refuses ours. The error's type would show
/// this as well, but h2 hides it.
fn class_here(message: &str) -> Class {
    const REFUSED: &[&str] = &[
        "invalid peer certificate",
        "received fatal alert: BadCertificate",
        "received fatal alert: UnsupportedCertificate",
        "received fatal alert: CertificateRevoked",
        "received fatal alert: CertificateExpired",
        "received fatal alert: CertificateUnknown",
        "received fatal alert: CertificateRequired",
        "received fatal alert: UnknownCA",
        "received fatal alert: AccessDenied",
    ];
    if REFUSED.iter().any(|part| message.contains(part)) {
        Class::Certificate
    } else {
        Class::Retry
    }
}

/// Returns `true` if the connection was never made, so that no request was written.
fn connect_failed(status: &tonic::Status) -> bool {
    causes(status).any(<dyn StdError>::is::<tonic::ConnectError>)
}

fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// Joins the messages of an error and its causes, each once.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in causes(error) {
        let part = cause.to_string();
        if !parts.iter().any(|known| known.contains(&part)) {
            parts.push(part);
        }
    }
    parts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use etcd_client::Error;

    fn class(code: Code, message: &str) -> Class {
        from_error(&Error::GRpcStatus(tonic::Status::new(code, message)), "e").class
    }

    #[test]
    fn failures_that_another_endpoint_may_not_have_are_retried() {
        for (code, message) in [
            (Code::Unavailable, "etcdserver: no leader"),
            (Code::Unavailable, "etcdserver: leader changed"),
            (Code::Unavailable, "etcdserver: request timed out"),
            (Code::Unavailable, "etcdserver: not capable"),
            (
                Code::Unknown,
                "h2 protocol error: error reading a body from connection",
            ),
            (Code::Unknown, "transport error"),
            (Code::PermissionDenied, "h2 protocol error: http2 error"),
            (Code::ResourceExhausted, "h2 protocol error: http2 error"),
            (Code::Cancelled, "Timeout expired"),
            (Code::Cancelled, "operation was canceled"),
            (Code::DeadlineExceeded, "context deadline exceeded"),
            (Code::FailedPrecondition, "etcdserver: not leader"),
            (
                Code::FailedPrecondition,
                "etcdserver: rpc not supported for learner",
            ),
            (
                Code::Unavailable,
                "etcdserver: rpc not supported for learner",
            ),
            (
                Code::OutOfRange,
                "etcdserver: mvcc: required revision is a future revision",
            ),
            (
                Code::Internal,
                "protocol error: received message with invalid compression flag",
            ),
        ] {
            assert_eq!(class(code, message), Class::Retry, "{code:?} {message}");
        }
        let closed = Error::WatchError("channel closed".to_owned());
        assert_eq!(from_error(&closed, "e").class, Class::Retry);
        let closed = Error::LeaseKeepAliveError("channel closed".to_owned());
        assert_eq!(from_error(&closed, "e").class, Class::Retry);
    }

    #[test]
    fn an_overloaded_or_full_etcd_is_given_time() {
        for (code, message) in [
            (Code::ResourceExhausted, "etcdserver: too many requests"),
            (Code::Unknown, "etcdserver: too many requests"),
        ] {
            assert_eq!(class(code, message), Class::Backoff, "{code:?} {message}");
        }
        let full = "etcdserver: mvcc: database space exceeded";
        assert_eq!(class(Code::ResourceExhausted, full), Class::Full);
    }

    #[test]
    fn a_missing_lease_is_distinguished_from_other_things_not_found() {
        let gone = "etcdserver: requested lease not found";
        assert_eq!(class(Code::NotFound, gone), Class::LeaseGone);
        assert_eq!(
            class(Code::NotFound, "etcdserver: member not found"),
            Class::Invalid
        );
        let gone = Error::LeaseKeepAliveError("lease not found".to_owned());
        assert_eq!(from_error(&gone, "e").class, Class::LeaseGone);
    }

    #[test]
    fn a_taken_lease_id_is_a_refusal() {
        let message = "etcdserver: lease already exists";
        let taken = class(Code::FailedPrecondition, message);
        assert_eq!(taken, Class::LeaseTaken);
        assert!(!taken.leaves_open());
        assert!(!taken.moves_on(), "another endpoint says the same");
    }

    #[test]
    fn a_compacted_revision_requires_a_new_list() {
        let message = "etcdserver: mvcc: required revision has been compacted";
        assert_eq!(class(Code::OutOfRange, message), Class::Compacted);
    }

    #[test]
    fn a_rejected_token_is_distinguished_from_refused_credentials() {
        for (code, message) in [
            (Code::Unauthenticated, "etcdserver: invalid auth token"),
            (Code::Unknown, "etcdserver: invalid auth token"),
            (
                Code::InvalidArgument,
                "etcdserver: revision of auth store is old",
            ),
            (Code::InvalidArgument, "etcdserver: user name is empty"),
        ] {
            let class = class(code, message);
            assert_eq!(class, Class::Stale, "{code:?} {message}");
            assert!(!class.leaves_open(), "nothing was applied");
        }
        for (code, message) in [
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
            ),
            (
                Code::FailedPrecondition,
                "etcdserver: authentication is not enabled",
            ),
        ] {
            assert_eq!(class(code, message), Class::Auth, "{code:?} {message}");
        }
    }

    #[test]
    fn permanent_failures_are_not_retried() {
        assert_eq!(
            class(Code::PermissionDenied, "etcdserver: permission denied"),
            Class::Denied
        );
        for (code, message) in [
            (Code::InvalidArgument, "etcdserver: key is not provided"),
            (Code::InvalidArgument, "etcdserver: request is too large"),
            (
                Code::InvalidArgument,
                "etcdserver: too many operations in txn request",
            ),
            (
                Code::ResourceExhausted,
                "grpc: received message larger than max (3000000 vs. 2097152)",
            ),
            (
                Code::OutOfRange,
                "Error, decoded message length too large: found 5 bytes",
            ),
            (Code::Unimplemented, "unknown service etcdserverpb.KV"),
        ] {
            assert_eq!(class(code, message), Class::Invalid, "{code:?} {message}");
        }
    }

    #[test]
    fn a_refused_watch_is_classified_by_its_reason() {
        let class = |reason| from_watch_refusal(reason, "e").class;
        assert_eq!(class("etcdserver: permission denied"), Class::Denied);
        assert_eq!(
            class("rpc error: code = PermissionDenied desc = etcdserver: permission denied"),
            Class::Denied
        );
        assert_eq!(
            class("rpc error: code = Unauthenticated desc = etcdserver: invalid auth token"),
            Class::Stale
        );
        assert_eq!(class(""), Class::Retry);
    }

    #[test]
    fn refusal_by_etcd_says_that_nothing_was_applied() {
        let ambiguous = |code, message| {
            let status = tonic::Status::new(code, message);
            from_error(&Error::GRpcStatus(status), "e").ambiguous
        };
        for (code, message) in [
            (Code::PermissionDenied, "etcdserver: permission denied"),
            (Code::InvalidArgument, "etcdserver: request is too large"),
            (Code::Unauthenticated, "etcdserver: invalid auth token"),
            (Code::NotFound, "etcdserver: requested lease not found"),
            (Code::ResourceExhausted, "etcdserver: too many requests"),
        ] {
            assert!(!ambiguous(code, message), "{message}");
        }
        // The request was answered, and this side refused the answer.
        let message = "Error, decoded message length too large: found 5000000 bytes, the limit is: 4194304 bytes";
        assert!(ambiguous(Code::OutOfRange, message));
    }

    #[test]
    fn failure_of_any_class_in_a_later_part_is_ambiguous() {
        let status = tonic::Status::permission_denied("etcdserver: permission denied");
        let later = from_error(&Error::GRpcStatus(status), "e").after_sending();
        assert_eq!((later.class, later.ambiguous), (Class::Denied, true));
    }

    #[test]
    fn only_a_failed_connect_is_certainly_unsent() {
        let lost = Error::GRpcStatus(tonic::Status::unavailable("etcdserver: request timed out"));
        assert!(from_error(&lost, "e").ambiguous);
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let refused = tonic::Status::from_error(Box::new(tonic::ConnectError(Box::new(refused))));
        let refused = from_error(&Error::GRpcStatus(refused), "http://a:1");
        assert!(!refused.ambiguous);
        assert_eq!(refused.class, Class::Retry);
        assert_eq!(refused.to_string(), "connection refused (at http://a:1)");
    }
}

//! Distinguishes a request that did not leave this process from one whose answer was lost.

use std::error::Error as StdError;
use std::fmt;

use eldest::BoxError;

/// An error that shows that the request did not leave this process, so that it is safe to send it again. A client of
/// your own wraps its errors in it.
///
/// Errors of hyper's, hyper-util's, reqwest's and tonic's connections need no wrapping: those are recognised, if this
/// crate's features `http` and `tonic` are on.
#[derive(Debug)]
pub struct NotSent(BoxError);

impl NotSent {
    /// Wraps the reason.
    pub fn new(reason: impl Into<BoxError>) -> Self {
        Self(reason.into())
    }
}

impl fmt::Display for NotSent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request was not sent")
    }
}

impl StdError for NotSent {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}

/// Returns true if the error, or one of its causes, shows that the request was not sent.
pub(crate) fn was_not_sent(error: &(dyn StdError + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if says_not_sent(error) {
            return true;
        }
        cause = error.source();
    }
    false
}

fn says_not_sent(error: &(dyn StdError + 'static)) -> bool {
    if error.is::<NotSent>() {
        return true;
    }
    // hyper returns this for requests that it still holds when their connection ends.
    #[cfg(any(feature = "http", feature = "tonic"))]
    if error
        .downcast_ref::<hyper::Error>()
        .is_some_and(hyper::Error::is_canceled)
    {
        return true;
    }
    #[cfg(feature = "tonic")]
    if error.is::<tonic::ConnectError>() {
        return true;
    }
    #[cfg(feature = "http")]
    if let Some(error) = error.downcast_ref::<hyper_util::client::legacy::Error>() {
        return error.is_connect();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_says_that_a_request_was_not_sent() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        assert!(
            !was_not_sent(&refused),
            "by itself it does not say who was refused"
        );
        let error = eldest_error(NotSent::new(refused));
        assert!(was_not_sent(&*error));
        assert!(!was_not_sent(&*eldest_error(std::fmt::Error)));
    }

    fn eldest_error(cause: impl Into<BoxError>) -> BoxError {
        Box::new(crate::Error::new(crate::ErrorKind::Lost, "").caused_by(cause))
    }
}

//! Sets how often connections are pinged, and explains how to configure an etcd that cuts them for it.

use std::time::Duration;

use eldest_core::error::RequestError;

/// The time between pings. At less than 5 s, an etcd with default settings cuts the connection. Pings are only a
/// backstop: every call has its timeout.
pub const PING_EVERY: Duration = Duration::from_secs(6);
pub(super) const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// etcd's message before it cuts a connection. Only requests that begin between the message and the end receive it.
const REASON: &str = "too_many_pings";
/// The error that open streams receive: the connection has ended.
const ENDED: &str = "broken pipe";
/// The remedy for an etcd that cuts connections because of their pings.
pub const PING_REMEDY: &str =
    "start etcd with --grpc-keepalive-min-time of 5s, the default, or less";

/// Adds the cause and the remedy to the failure of a connection, if etcd cut it for its pings. `quiet`: how long etcd
/// had sent nothing on it.
///
/// etcd counts pings from its last answer on. It cuts the connection at the fourth, and closes it a second later. A
/// connection that breaks for another reason seldom has exactly that age: a dead connection is dropped after an
/// unanswered ping.
pub(super) fn explain(failure: &mut RequestError, quiet: Option<Duration>) {
    let message = &failure.message;
    let fourth = PING_EVERY * 4;
    let suspected = fourth..fourth + PING_TIMEOUT;
    let is_cut = quiet.is_some_and(|quiet| suspected.contains(&quiet)) && message.contains(ENDED);
    if message.contains(REASON) {
        failure.message = format!(
            "{message}: etcd takes a ping every {PING_EVERY:?} for too many: {PING_REMEDY}"
        );
    } else if is_cut {
        failure.message = format!(
            "{message}: etcd ended the connection after four pings, so it probably takes a ping every {PING_EVERY:?} for too many: \
             {PING_REMEDY}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eldest_core::error::Class;

    #[test]
    fn only_a_connection_that_ends_after_the_fourth_ping_is_suspected() {
        let explained = |message: &str, quiet: Option<u64>| {
            let mut failure = RequestError::new(Class::Retry, message, "e");
            explain(&mut failure, quiet.map(Duration::from_secs));
            failure.message.contains("--grpc-keepalive-min-time")
        };
        let ended = "stream closed because of a broken pipe";
        for (message, quiet, is_suspected) in [
            (ended, Some(25), true),
            (ended, Some(23), false),
            (ended, Some(27), false),
            (ended, None, false),
            ("connection reset by peer", Some(25), false),
            ("http2 error: too_many_pings", None, true),
        ] {
            assert_eq!(
                explained(message, quiet),
                is_suspected,
                "{message} {quiet:?}"
            );
        }
    }
}

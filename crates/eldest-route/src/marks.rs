//! Names the marks that travel with requests and answers: whether a node does not lead, whether it lost the leader's
//! answer, how often a request was forwarded, and whether it may be applied twice.

use eldest::internal;
use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

/// The header by which a node reports that it does not lead, and did not work on the request. Its value is the
/// [name](not_leader) of the election. `OnlyWhileLeader` of `eldest-http` sends it with its 503.
pub const NOT_LEADER: HeaderName = HeaderName::from_static("eldest-not-leader");

/// The header by which a node reports that it passed a request on and lost the answer: the request may have been
/// carried out. Its value is that of [`NOT_LEADER`]. `ForwardToLeader` of `eldest-http` sends it with its 502.
pub const ANSWER_LOST: HeaderName = HeaderName::from_static("eldest-answer-lost");

/// The header that counts how often a request was routed or forwarded.
pub const HOPS: HeaderName = HeaderName::from_static("eldest-hops");

/// Returns the value of [`NOT_LEADER`] for the election, or the partitions, with that name: the name, percent-encoded.
///
/// A handler that finds out by itself that its node does not lead answers 503 with this header, **if it did no work on
/// the request**. Then a [`Routed`](crate::Routed) client sends the request to the leader, whatever its method.
///
/// ```
/// let value = eldest_route::not_leader("billing/scheduler");
/// assert_eq!(value, "billing%2Fscheduler");
/// ```
pub fn not_leader(name: &str) -> HeaderValue {
    let encoded = utf8_percent_encode(name, NON_ALPHANUMERIC).to_string();
    HeaderValue::from_str(&encoded).unwrap_or(HeaderValue::from_static("-"))
}

/// Returns true if an answer with these headers says that the node does not lead that election.
pub(crate) fn says_not_leader(headers: &HeaderMap, name: &str) -> bool {
    says(headers, &NOT_LEADER, name)
}

/// Returns true if an answer with these headers says that the answer of that election's leader was lost.
pub(crate) fn says_answer_lost(headers: &HeaderMap, name: &str) -> bool {
    says(headers, &ANSWER_LOST, name)
}

fn says(headers: &HeaderMap, mark: &HeaderName, name: &str) -> bool {
    headers
        .get(mark)
        .is_some_and(|value| *value == not_leader(name))
}

/// Returns how often a request with these headers was routed or forwarded. A value that is no number counts as too
/// often.
pub fn hops(headers: &HeaderMap) -> u32 {
    let mut values = headers.get_all(HOPS).iter();
    let Some(value) = values.next() else {
        return 0;
    };
    let number = value.to_str().ok().and_then(internal::number);
    number
        .filter(|_| values.next().is_none())
        .unwrap_or(u32::MAX)
}

/// An extension of a request, which says whether carrying it out twice does the same as once. It takes precedence over
/// the method.
///
/// ```
/// use eldest_route::Idempotent;
/// let mut request = http::Request::post("/invoices/4711").body(())?;
/// request.extensions_mut().insert(Idempotent(true));
/// # Ok::<_, http::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "it says one thing")]
pub struct Idempotent(
    /// True if the request may be carried out twice.
    pub bool,
);

/// Returns true if a request may be carried out twice: by its extension, or by its method (RFC 9110, 9.2.2).
pub(crate) fn is_idempotent(parts: &http::request::Parts) -> bool {
    let said = parts.extensions.get::<Idempotent>();
    said.map_or_else(|| parts.method.is_idempotent(), |said| said.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(hops: &[&'static str]) -> HeaderMap {
        let values = hops.iter().map(|value| HeaderValue::from_static(value));
        values.map(|value| (HOPS, value)).collect()
    }

    #[test]
    fn hops_that_are_no_number_or_given_twice_are_too_many() {
        assert_eq!(hops(&with(&[])), 0);
        assert_eq!(hops(&with(&["2"])), 2);
        for wrong in [&["-1"][..], &["x"], &[""], &["+2"], &["02"], &["1", "0"]] {
            assert_eq!(hops(&with(wrong)), u32::MAX, "{wrong:?}");
        }
    }

    #[test]
    fn the_refusal_of_another_election_is_an_answer_like_any_other() {
        let headers = HeaderMap::from_iter([(NOT_LEADER, not_leader("billing/Jahresabschlüsse"))]);
        assert!(says_not_leader(&headers, "billing/Jahresabschlüsse"));
        assert!(!says_not_leader(&headers, "billing"));
        assert!(!says_not_leader(&HeaderMap::new(), "billing"));
    }

    #[test]
    fn method_decides_repetition_unless_the_request_is_marked() {
        let parts = |method: &str, said: Option<bool>| {
            let mut request = http::Request::builder().method(method).body(()).unwrap();
            said.map(|said| request.extensions_mut().insert(Idempotent(said)));
            request.into_parts().0
        };
        for (method, by_method) in [
            ("GET", true),
            ("PUT", true),
            ("DELETE", true),
            ("POST", false),
            ("PATCH", false),
        ] {
            assert_eq!(is_idempotent(&parts(method, None)), by_method, "{method}");
            assert!(is_idempotent(&parts(method, Some(true))), "{method}");
            assert!(!is_idempotent(&parts(method, Some(false))), "{method}");
        }
    }
}

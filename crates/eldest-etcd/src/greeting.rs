//! Finds out which protocol a port speaks once connections to it have failed, because their errors do not say ("broken
//! pipe", "handshake eof").

use std::time::Duration;

use super::pool::Pool;
use super::url::Url;
use crate::runtime::{Env, timeout};

/// The longest time that a port may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// A record of TLS with a greeting that is too short: a server that speaks TLS answers with an alert.
const TLS: &[u8] = &[0x16, 3, 1, 0, 5, 1, 0, 0, 1, 0];
/// The first bytes of an alert, and of an answer to a greeting.
const ANSWERS_OF_TLS: [[u8; 2]; 2] = [[0x15, 3], [0x16, 3]];
/// The first bytes of a client of HTTP/2: its preface, and settings that set nothing.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// The kind of the frame that a server of HTTP/2 sends first; it follows three bytes of length.
const SETTINGS: u8 = 4;
const HTTP1: &[u8] = b"GET /version HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\r\n";
/// The first bytes of an HTTP/1 answer.
const ANSWER_OF_HTTP1: &[u8] = b"HTTP/1.";

impl Pool {
    /// Returns the correct URL scheme or port to name, if the port speaks another protocol than the URL names.
    pub async fn misnamed(&self, url: &str) -> Option<&'static str> {
        let url = Url::parse(url, false).ok()?;
        let env = &*self.env;
        if url.is_secure() {
            let answer = greeted(env, &url, HTTP2).await;
            let is_plain = is_http2(&answer) || answer.starts_with(ANSWER_OF_HTTP1);
            return is_plain.then_some("the server speaks no TLS: write http://");
        }
        // All three at once: a silent server that accepts connections costs one wait of `PATIENCE`, not three.
        let [tls, http2, http1] = [TLS, HTTP2, HTTP1].map(|greeting| greeted(env, &url, greeting));
        let (tls, http2, http1) = tokio::join!(tls, http2, http1);
        if ANSWERS_OF_TLS.iter().any(|begin| tls.starts_with(begin)) {
            return Some("the server speaks TLS: write https://");
        }
        let speaks_http1_alone = !is_http2(&http2) && http1.starts_with(ANSWER_OF_HTTP1);
        speaks_http1_alone.then_some(
            "the port speaks HTTP/1 alone: name one of etcd's --listen-client-urls, whose port is 2379 by default",
        )
    }
}

fn is_http2(answer: &[u8]) -> bool {
    answer.get(3) == Some(&SETTINGS)
}

/// Returns the first bytes of the answer: none if no server listens, or if no answer arrives in time.
async fn greeted(env: &dyn Env, url: &Url, greeting: &'static [u8]) -> Vec<u8> {
    let answer = timeout(env, PATIENCE, env.greet(url.place(), greeting)).await;
    answer.and_then(Result::ok).unwrap_or_default()
}

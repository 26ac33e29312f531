//! Defines the URL of a member, which is dialled exactly as it was parsed.

use std::fmt;

use http::Uri;
use http::uri::{Authority, Scheme};

/// Scheme, host and port of a member. Two URLs are equal if they lead to the same place, however they were written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Url {
    secure: bool,
    authority: Authority,
}

impl Url {
    /// Reads a URL. Without a scheme it is `https` if `secure`, else `http`.
    ///
    /// # Errors
    ///
    /// Says which rule the text breaks, without quoting it.
    pub(super) fn parse(text: &str, secure: bool) -> Result<Self, String> {
        // Other programs accept several endpoints in one text.
        if text.contains(',') {
            return Err("it contains a comma; pass each endpoint separately".to_owned());
        }
        if text.is_empty() {
            return Err("it is empty".to_owned());
        }
        let scheme = if secure { "https" } else { "http" };
        let parsed = if text.contains("://") {
            text.parse()
        } else {
            format!("{scheme}://{text}").parse()
        };
        let uri: Uri = parsed.map_err(|error| format!("{error}"))?;
        let secure = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) if *scheme == Scheme::HTTP => false,
            _ => return Err("the scheme must be http or https".to_owned()),
        };
        if uri.path() != "/" || uri.query().is_some() {
            return Err("only scheme, host and port are used".to_owned());
        }
        let Some(authority) = uri.into_parts().authority else {
            return Err("the host is missing".to_owned());
        };
        if authority.as_str().contains('@') {
            return Err("set user and password by SessionOptions::credentials".to_owned());
        }
        if authority.host().is_empty() {
            return Err("the host is missing".to_owned());
        }
        // The parser accepts anything after the colon, and reports "no port" if it is no number.
        if authority.as_str() != authority.host() && authority.port_u16().is_none() {
            return Err("the port is not a number up to 65535".to_owned());
        }
        Ok(Self { secure, authority })
    }

    /// Returns `true` if the URL is `https`.
    pub(super) fn is_secure(&self) -> bool {
        self.secure
    }

    /// Returns the host, without the brackets of an address.
    pub(super) fn host(&self) -> &str {
        let host = self.authority.host();
        let inner = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        inner.unwrap_or(host)
    }

    /// Returns the host and the port, for a connection without TLS.
    pub(super) fn place(&self) -> (String, u16) {
        let usual = if self.secure { 443 } else { 80 };
        let port = self.authority.port_u16().unwrap_or(usual);
        (self.host().to_owned(), port)
    }

    /// Returns a URL with the same scheme and port at another host.
    pub(super) fn at(&self, host: impl fmt::Display) -> String {
        let scheme = self.scheme();
        match self.authority.port_u16() {
            Some(port) => format!("{scheme}://{host}:{port}"),
            None => format!("{scheme}://{host}"),
        }
    }

    fn scheme(&self) -> &'static str {
        if self.secure { "https" } else { "http" }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme(), self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_scheme_in_any_case_is_that_scheme() {
        for (text, whole) in [
            ("HTTPS://etcd:2379", "https://etcd:2379"),
            ("hTTp://etcd/", "http://etcd"),
            ("etcd:2379", "http://etcd:2379"),
            ("https:2379", "http://https:2379"),
            ("[::1]:1", "http://[::1]:1"),
        ] {
            let parsed = Url::parse(text, false).map(|url| url.to_string());
            assert_eq!(parsed.as_deref(), Ok(whole), "{text}");
        }
        let same = |one, other| Url::parse(one, false) == Url::parse(other, false);
        assert!(same("http://ETCD:1/", "etcd:1"));
        assert!(!same("https://etcd:1", "etcd:1"));
    }

    proptest! {
        /// The client decides by the beginning of the text whether it dials with TLS, and parses the rest itself.
        #[test]
        fn dialled_address_is_the_parsed_one(
            scheme in prop_oneof!["", "(?i)https?://", "[a-zA-Z]{1,6}://", "(?i)https?:/{0,3}"],
            user in prop_oneof![Just(String::new()), "[a-z%:@]{1,6}@"],
            host in prop_oneof!["(?i)https?", "[a-zA-Z0-9.-]{1,9}", "\\[[0-9a-f:]{2,9}\\]", "\\PC{0,6}"],
            rest in prop_oneof![Just(String::new()), ":[0-9]{1,6}", "/{1,2}", "[:/?#@\\\\][a-z0-9]{0,4}"],
            secure in any::<bool>(),
        ) {
            let text = format!("{scheme}{user}{host}{rest}");
            let Ok(url) = Url::parse(&text, secure) else { return Ok(()) };
            let dialled = url.to_string();
            let uri: Uri = dialled.parse().expect("it is a URL");
            prop_assert_eq!(dialled.starts_with("https://"), url.is_secure());
            prop_assert_eq!(uri.scheme_str(), Some(if url.is_secure() { "https" } else { "http" }));
            prop_assert_eq!(uri.authority(), Some(&url.authority));
            prop_assert_eq!(Url::parse(&dialled, !secure), Ok(url.clone()));
            prop_assert!(!dialled.contains('@'));
            // The text as it was written: with its scheme if there was one, and the host.
            let named = text.to_ascii_lowercase();
            let scheme = named.split_once("://").map(|(scheme, _)| scheme == "https");
            prop_assert_eq!(url.is_secure(), scheme.unwrap_or(secure));
            prop_assert!(named.contains(&url.host().to_ascii_lowercase()));
        }
    }
}

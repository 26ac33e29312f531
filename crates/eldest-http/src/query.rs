//! Reads the parameters of a request's address.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use http::request::Parts;
use http::{StatusCode, Uri};
use percent_encoding::percent_decode;

use super::problem::{Problem, shortened};

/// The names and values of a request's parameters. They need not be UTF-8.
#[derive(Debug)]
pub(super) struct Asked(Vec<(Vec<u8>, Vec<u8>)>);

impl Asked {
    pub(super) fn of(uri: &Uri) -> Self {
        let decode = |text: &str| percent_decode(text.replace('+', " ").as_bytes()).collect();
        let query = uri.query().unwrap_or_default();
        let pairs = query.split('&').map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        });
        Self(pairs.collect())
    }

    /// Refuses parameters other than these. A request that changes something must not ignore a misspelt condition.
    pub(super) fn has_only(&self, known: &[&str]) -> Result<(), Problem> {
        let is_known = |name: &[u8]| known.iter().any(|known| known.as_bytes() == name);
        let mut names = self.0.iter().map(|(name, _)| &**name);
        let Some(unknown) = names.find(|name| !name.is_empty() && !is_known(name)) else {
            return Ok(());
        };
        let unknown = String::from_utf8_lossy(unknown);
        let unknown = shortened(&unknown);
        let takes = match known {
            [] => "none".to_owned(),
            known => format!("`{}`", known.join("`, `")),
        };
        let detail = format!("there is no parameter {unknown:?}; this request takes {takes}");
        Err(bad_query(detail))
    }

    /// Returns the bytes of `?name=`, if present.
    pub(super) fn bytes(&self, name: &str) -> Result<Option<&[u8]>, Problem> {
        let mut values = self.0.iter().filter(|(key, _)| key == name.as_bytes());
        let value = values.next().map(|(_, value)| &**value);
        if values.next().is_some() {
            return Err(bad_query(format!("`{name}` is given twice")));
        }
        Ok(value)
    }
}

impl<S: Sync> FromRequestParts<S> for Asked {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(&parts.uri))
    }
}

pub(super) fn bad_query(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "bad_query", detail.into())
}

/// Returns the value of `?name=`, if present.
pub(super) fn parameter(asked: &Asked, name: &str) -> Result<Option<String>, Problem> {
    let Some(bytes) = asked.bytes(name)? else {
        return Ok(None);
    };
    let text = String::from_utf8(bytes.to_vec());
    text.map(Some)
        .map_err(|_| bad_query(format!("`{name}` is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(query: &str) -> Asked {
        Asked::of(&format!("/?{query}").parse().expect(query))
    }

    #[test]
    fn the_bytes_of_a_parameter_are_kept_as_they_are() {
        for (query, key) in [
            ("key=a", &b"a"[..]),
            ("x=1&key=a%2Fb+c", b"a/b c"),
            ("key=%ff%00", b"\xff\0"),
            ("key=", b""),
            ("key", b""),
            ("k%65y=a%3Db=c", b"a=b=c"),
        ] {
            assert_eq!(asked(query).bytes("key").unwrap(), Some(key), "{query}");
        }
        for query in ["", "keys=a"] {
            assert_eq!(asked(query).bytes("key").unwrap(), None, "{query}");
        }
    }

    #[test]
    fn unknown_parameter_is_refused_by_its_name() {
        let refusal = |query, known: &[&str]| {
            let refused = asked(query).has_only(known).unwrap_err();
            (refused.code, refused.detail.into_owned())
        };
        for query in ["", "fencing_token=1", "fencing%5Ftoken=x", "&"] {
            asked(query).has_only(&["fencing_token"]).expect(query);
        }
        let said = "there is no parameter \"token\"; this request takes `fencing_token`";
        for query in ["token=1", "fencing_token=1&token=1", "token"] {
            assert_eq!(
                refusal(query, &["fencing_token"]),
                ("bad_query", said.to_owned())
            );
        }
        let said = "there is no parameter \"a\"; this request takes none";
        assert_eq!(refusal("a", &[]).1, said);
    }

    #[test]
    fn repeated_parameter_and_text_that_is_not_utf_8_are_refused() {
        assert!(asked("key=a&key=b").bytes("key").is_err());
        assert_eq!(
            parameter(&asked("e=%ff"), "e").unwrap_err().code,
            "bad_query"
        );
        assert_eq!(
            parameter(&asked("e=%C3%A4"), "e").unwrap(),
            Some("\u{e4}".to_owned())
        );
    }
}

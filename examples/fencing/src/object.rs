//! Fenced writes to one object of a store with conditional writes, as S3 has them: the object contains its writer's
//! token, and each write names the version that it replaces.
//!
//! Plain HTTP, without authentication: a client of your store signs its requests and sends the same two headers.

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::{ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use serde::{Deserialize, Serialize};

use crate::Refused;

/// The whole object. The token is in its content, because an `ETag` may be a hash of the content alone.
#[derive(Serialize, Deserialize)]
struct Content {
    token: i64,
    data: String,
}

/// An object that only the leader writes.
#[derive(Clone)]
pub struct Object {
    client: Client<HttpConnector, Full<Bytes>>,
    uri: Uri,
}

/// An object that a leader has marked with its token.
pub struct Claimed {
    object: Object,
    token: i64,
    etag: String,
    data: String,
}

impl Object {
    /// Makes the object at this address. Sends nothing yet.
    pub fn at(uri: Uri) -> Self {
        Self {
            client: Client::builder(TokioExecutor::new()).build_http(),
            uri,
        }
    }

    /// Writes the token into the object, which shuts out all earlier leaders, and returns what the object contains.
    ///
    /// # Errors
    ///
    /// [`Refused`] if a later leader has claimed the object; otherwise those of the store.
    pub async fn claim(&self, token: i64) -> Result<Claimed> {
        loop {
            let (condition, data) = match self.read().await? {
                Some((_, found)) if found.token > token => bail!(Refused { token }),
                Some((etag, found)) => ((IF_MATCH, etag), found.data),
                None => ((IF_NONE_MATCH, "*".to_owned()), String::new()),
            };
            // `None`: the object changed since it was read, perhaps because two leaders claim it at once.
            if let Some(etag) = self.put(condition, token, &data).await? {
                return Ok(Claimed {
                    object: self.clone(),
                    token,
                    etag,
                    data,
                });
            }
        }
    }

    async fn read(&self) -> Result<Option<(String, Content)>> {
        let answer = self.client.get(self.uri.clone()).await?;
        if answer.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        anyhow::ensure!(answer.status().is_success(), "{}", answer.status());
        let etag = etag(&answer)?;
        let body = answer.into_body().collect().await?.to_bytes();
        Ok(Some((etag, serde_json::from_slice(&body)?)))
    }

    /// Returns the new version's `ETag`; `None` if the condition does not hold.
    async fn put(
        &self,
        (header, value): (HeaderName, String),
        token: i64,
        data: &str,
    ) -> Result<Option<String>> {
        let data = data.to_owned();
        let body = serde_json::to_vec(&Content { token, data })?;
        let request = Request::put(&self.uri).header(header, value);
        let request = request.body(Full::new(body.into()))?;
        let answer = self.client.request(request).await?;
        match answer.status() {
            // S3 returns CONFLICT if another write is in flight.
            StatusCode::PRECONDITION_FAILED | StatusCode::CONFLICT => Ok(None),
            status if status.is_success() => Ok(Some(etag(&answer)?)),
            status => bail!("{status}"),
        }
    }
}

impl Claimed {
    /// Returns the content of the object, without the token.
    pub fn data(&self) -> &str {
        &self.data
    }

    /// Replaces the version that was read or written last. After any error, claim the object again.
    ///
    /// # Errors
    ///
    /// [`Refused`] if the object has changed; otherwise those of the store.
    pub async fn write(&mut self, data: &str) -> Result<()> {
        let condition = (IF_MATCH, self.etag.clone());
        let written = self.object.put(condition, self.token, data).await?;
        self.etag = written.ok_or(Refused { token: self.token })?;
        data.clone_into(&mut self.data);
        Ok(())
    }
}

fn etag<B>(answer: &Response<B>) -> Result<String> {
    let etag = answer.headers().get(ETAG);
    let etag = etag.context("the store names no version: it has no ETag")?;
    Ok(etag.to_str()?.to_owned())
}

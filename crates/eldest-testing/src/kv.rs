//! Reads, writes and deletes single keys within a time limit, as an operator would in a test.
#![allow(clippy::disallowed_methods)] // tests run in the runtime's time

use std::time::Duration;

use etcd_client::Client;

use crate::error::{Error, ErrorKind, Result};

/// The time limit of one request.
const LIMIT: Duration = Duration::from_secs(5);

pub(crate) async fn get(mut client: Client, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let found = asked("get a key", client.get(key, None)).await?;
    Ok(found.kvs().first().map(|kv| kv.value().to_vec()))
}

pub(crate) async fn put(mut client: Client, key: &[u8], value: &[u8]) -> Result<()> {
    asked("put a key", client.put(key, value, None))
        .await
        .map(drop)
}

pub(crate) async fn delete(mut client: Client, key: &[u8]) -> Result<bool> {
    let deleted = asked("delete a key", client.delete(key, None)).await?;
    Ok(deleted.deleted() > 0)
}

async fn asked<T>(
    doing: &str,
    request: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T> {
    match tokio::time::timeout(LIMIT, request).await {
        Ok(answer) => answer.map_err(|error| Error::of_etcd(doing, error)),
        Err(_) => Err(Error::new(
            ErrorKind::Unreachable,
            format!("cannot {doing}: no answer in {LIMIT:?}"),
        )),
    }
}

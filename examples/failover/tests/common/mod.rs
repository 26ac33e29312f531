//! Sends requests to an instance, without depending on an HTTP client.

use std::io::{Error, Result};
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Returns true if the instance at that address reports that it leads.
pub(crate) async fn says_that_it_leads(address: SocketAddr) -> Result<bool> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /leader HTTP/1.0\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    match answer.split(' ').nth(1) {
        Some("200") => Ok(true),
        Some("503") => Ok(false),
        _ => Err(Error::other(format!("no answer: {answer:?}"))),
    }
}

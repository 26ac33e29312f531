//! Sends HTTP requests to a node and parses the answers.

use std::net::SocketAddr;

use serde_json::Value;

use crate::stage::{Result, SOON};
use eldest_fixtures::hang::{closed, idle};

/// The answer, read until the node closed the connection.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Returns the stable code of a refusal.
    pub(crate) fn problem(&self) -> String {
        let code = &self.json()["code"];
        code.as_str()
            .unwrap_or_else(|| panic!("{self:?}"))
            .to_owned()
    }
}

/// Sends exactly these bytes and expects an answer.
pub(crate) async fn exactly(at: SocketAddr, request: &str) -> Result<Answer> {
    let text = closed(idle(at, request).await?, SOON).await?;
    let (head, body) = text
        .split_once("\r\n\r\n")
        .ok_or_else(|| format!("no head: {text:?}"))?;
    let status = head.split(' ').nth(1).ok_or("no status")?.parse()?;
    Ok(Answer {
        status,
        body: body.to_owned(),
    })
}

/// Sends a request of HTTP/1.1 with these headers and the text that follows them.
pub(crate) async fn ask(at: SocketAddr, method: &str, path: &str, rest: &str) -> Result<Answer> {
    let begin = format!("{method} {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n");
    exactly(at, &format!("{begin}{rest}\r\n")).await
}

/// Sends a JSON body.
pub(crate) async fn send(at: SocketAddr, method: &str, path: &str, body: &str) -> Result<Answer> {
    let length = body.len();
    let head = format!("Content-Type: application/json\r\nContent-Length: {length}\r\n");
    ask(at, method, path, &format!("{head}\r\n{body}")).await
}

pub(crate) async fn get(at: SocketAddr, path: &str) -> Result<Answer> {
    ask(at, "GET", path, "").await
}

pub(crate) async fn post(at: SocketAddr, path: &str) -> Result<Answer> {
    ask(at, "POST", path, "Content-Length: 0\r\n").await
}

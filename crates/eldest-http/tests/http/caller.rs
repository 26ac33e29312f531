//! Sends requests whose answers must match the description, and follows events.

use std::net::SocketAddr;

use eldest_fixtures::http::{self, EMPTY, json};
pub(crate) use eldest_fixtures::http::{Answer, exactly, raw};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::contract;
use crate::stage::{Result, SOON};

/// Sends a request whose headers continue with this text, and checks the answer against the description.
pub(crate) async fn ask(at: SocketAddr, method: &str, path: &str, rest: &str) -> Result<Answer> {
    let answer = http::ask(at, method, path, rest).await?;
    contract::check(method, path, &answer);
    Ok(answer)
}

pub(crate) async fn get(at: SocketAddr, path: &str) -> Result<Answer> {
    ask(at, "GET", path, "").await
}

pub(crate) async fn post(at: SocketAddr, path: &str) -> Result<Answer> {
    ask(at, "POST", path, EMPTY).await
}

/// Sends a JSON body.
pub(crate) async fn send(at: SocketAddr, method: &str, path: &str, body: &str) -> Result<Answer> {
    ask(at, method, path, &json(body)).await
}

/// A stream of server-sent events.
pub(crate) struct Events {
    stream: BufReader<TcpStream>,
    /// The schema of each event's data.
    schema: &'static str,
}

impl Events {
    /// Opens a stream, in HTTP/1.0 so that it is not divided into chunks.
    pub(crate) async fn follow(at: SocketAddr, path: &str) -> Result<Self> {
        Self::follow_as(at, path, "ElectionState").await
    }

    pub(crate) async fn follow_as(
        at: SocketAddr,
        path: &str,
        schema: &'static str,
    ) -> Result<Self> {
        let mut stream = BufReader::new(TcpStream::connect(at).await?);
        let request = format!("GET {path} HTTP/1.0\r\nHost: {at}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut events = Self { stream, schema };
        let status = events.line().await?.ok_or("no answer")?;
        assert!(status.contains(" 200 "), "{status}");
        let mut kind = None;
        while let Some(line) = events.line().await?.filter(|line| !line.is_empty()) {
            let line = line.to_ascii_lowercase();
            if let Some(found) = line.strip_prefix("content-type: ") {
                kind = Some(found.to_owned());
            }
        }
        assert_eq!(kind.as_deref(), Some("text/event-stream"));
        Ok(events)
    }

    async fn line(&mut self) -> Result<Option<String>> {
        let mut line = String::new();
        let read = timeout(SOON, self.stream.read_line(&mut line)).await;
        let read = read.map_err(|_| "no line")?.unwrap_or(0);
        Ok((read > 0).then(|| line.trim_end().to_owned()))
    }

    /// Returns the data of the next event `state`, or `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Result<Option<Value>> {
        let mut is_state = false;
        while let Some(line) = self.line().await? {
            if let Some(kind) = line.strip_prefix("event: ") {
                assert!(["state", "alive"].contains(&kind), "{kind}");
                is_state = kind == "state";
            }
            if let Some(data) = line.strip_prefix("data: ").filter(|_| is_state) {
                let state = serde_json::from_str(data)?;
                contract::holds(self.schema, &state, data);
                return Ok(Some(state));
            }
        }
        Ok(None)
    }

    /// Waits for a sign of life of the node; other events are skipped.
    pub(crate) async fn alive(&mut self) -> Result {
        loop {
            match self.line().await?.as_deref() {
                Some("event: alive") => return Ok(()),
                Some(_) => {}
                None => return Err("the stream ended".into()),
            }
        }
    }

    /// Returns the first state from now on that satisfies the condition.
    pub(crate) async fn until(
        &mut self,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let found = async {
            while let Some(state) = self.next().await? {
                if wanted(&state) {
                    return Ok(state);
                }
            }
            Err(format!("the stream ended before {what}").into())
        };
        let found = timeout(SOON, found).await;
        found.unwrap_or_else(|_| Err(format!("not within {SOON:?}: {what}").into()))
    }
}

/// A connection that carries several requests.
pub(crate) struct Kept(BufReader<TcpStream>);

impl Kept {
    pub(crate) async fn open(at: SocketAddr) -> Result<Self> {
        Ok(Self(BufReader::new(TcpStream::connect(at).await?)))
    }

    pub(crate) async fn send(&mut self, path: &str) -> Result {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        Ok(self.0.write_all(request.as_bytes()).await?)
    }

    pub(crate) async fn answer(&mut self) -> Result<Answer> {
        let answer = async {
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if self.0.read_line(&mut head).await? == 0 {
                    return Err("closed".into());
                }
            }
            let mut answer = Answer::parse(&head)?;
            let length = answer.header("content-length").ok_or("no length")?;
            let mut body = vec![0; length.parse()?];
            self.0.read_exact(&mut body).await?;
            answer.body = String::from_utf8(body)?;
            Ok(answer)
        };
        timeout(SOON, answer).await.map_err(|_| "no answer")?
    }
}

//! Sends hand-written HTTP requests, including malformed ones that no client library would send, and parses the
//! answers.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::contract;
use crate::stage::{Result, SOON};

/// The answer that the server sent before it closed the connection.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The request, for messages.
    pub(crate) asked: String,
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let (head, body) = text
            .split_once("\r\n\r\n")
            .ok_or_else(|| format!("no head: {text:?}"))?;
        let status = head.split(' ').nth(1).ok_or("no status")?.parse()?;
        Ok(Self {
            asked: String::new(),
            status,
            head: head.to_ascii_lowercase(),
            body: body.to_owned(),
        })
    }

    /// Returns a header, if present.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self
            .head
            .lines()
            .skip(1)
            .filter_map(|line| line.split_once(':'));
        lines
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.trim())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Returns the stable code of a refusal, after checking the common parts of problem details.
    pub(crate) fn problem(&self) -> String {
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json"),
            "{self:?}"
        );
        let body = self.json();
        assert_eq!(body["status"], self.status, "{self:?}");
        assert!(
            body["title"].is_string() && body["detail"].is_string(),
            "{self:?}"
        );
        body["code"].as_str().expect("a code").to_owned()
    }

    /// Asserts that the request was refused with that status and code.
    #[track_caller]
    pub(crate) fn refused(&self, status: u16, code: &str) {
        assert_eq!(
            (self.status, &*self.problem()),
            (status, code),
            "{}: {self:?}",
            self.asked
        );
    }
}

/// Sends those bytes and reads to the end. If a reset cuts the answer off, the received part is returned.
pub(crate) async fn raw(at: SocketAddr, bytes: impl AsRef<[u8]>) -> Result<String> {
    let mut text = Vec::new();
    let exchange = async {
        let mut stream = TcpStream::connect(at).await?;
        let _ = stream.write_all(bytes.as_ref()).await;
        let _ = stream.read_to_end(&mut text).await;
        Ok::<_, std::io::Error>(())
    };
    timeout(SOON, exchange).await.map_err(|_| "no end")??;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Sends a request of HTTP/1.1 that begins with these headers after `Host` and `Connection`, and checks the answer
/// against the description.
pub(crate) async fn ask(at: SocketAddr, method: &str, path: &str, rest: &str) -> Result<Answer> {
    let request =
        format!("{method} {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n{rest}\r\n");
    let answer = exactly(at, &request).await?;
    contract::check(method, path, &answer);
    Ok(answer)
}

pub(crate) async fn get(at: SocketAddr, path: &str) -> Result<Answer> {
    ask(at, "GET", path, "").await
}

pub(crate) async fn post(at: SocketAddr, path: &str) -> Result<Answer> {
    ask(at, "POST", path, "Content-Length: 0\r\n").await
}

/// Sends a JSON body.
pub(crate) async fn send(at: SocketAddr, method: &str, path: &str, body: &str) -> Result<Answer> {
    let head = format!(
        "Content-Type: application/json\r\nContent-Length: {}\r\n",
        body.len()
    );
    ask(at, method, path, &format!("{head}\r\n{body}")).await
}

/// Sends exactly these bytes and expects an answer.
pub(crate) async fn exactly(at: SocketAddr, request: &str) -> Result<Answer> {
    let asked = request.to_owned();
    let answer = Answer::parse(&raw(at, request).await?)?;
    Ok(Answer { asked, ..answer })
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

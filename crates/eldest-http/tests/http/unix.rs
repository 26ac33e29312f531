//! Serves nodes over a Unix socket, and sends requests to it from this process and from others.

use std::path::PathBuf;

use eldest::CancellationToken;
use eldest_fixtures::http::json;
use eldest_http::{Auth, Limits, Node, bind_unix, router, serve_unix};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::caller::Answer;
use crate::contract;
use crate::stage::{Result, SOON};

/// A server at a Unix socket.
pub(crate) struct Local {
    folder: TempDir,
}

impl Local {
    pub(crate) fn start(node: Node, auth: Auth) -> Result<Self> {
        Self::within(node, auth, Limits::default())
    }

    pub(crate) fn within(node: Node, auth: Auth, limits: Limits) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let listener = bind_unix(folder.path().join("socket"), 0o600)?;
        let (app, never) = (router(node, auth), CancellationToken::new());
        tokio::spawn(serve_unix(listener, app, limits, never));
        Ok(Self { folder })
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// Sends a request of this process, and checks the answer against the description.
    pub(crate) async fn ask(&self, method: &str, path: &str, body: &str) -> Result<Answer> {
        let answer = self.exactly(method, path, &json(body)).await?;
        contract::check(method, path, &answer);
        Ok(answer)
    }

    /// Sends a request without the header `host`.
    pub(crate) async fn exactly(&self, method: &str, path: &str, rest: &str) -> Result<Answer> {
        let mut stream = UnixStream::connect(self.path()).await?;
        let request = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n{rest}");
        stream.write_all(request.as_bytes()).await?;
        let mut text = String::new();
        timeout(SOON, stream.read_to_string(&mut text)).await??;
        let mut answer = Answer::parse(&text)?;
        answer.asked = request;
        Ok(answer)
    }
}

#[tokio::test]
async fn unix_socket_checks_no_host_name_and_a_token_only_if_set() -> Result {
    let beyond_loopback = || Auth::at(([0, 0, 0, 0], 80).into());
    let server = Local::start(Node::new(), beyond_loopback())?;
    for host in ["", "Host: \r\n", "Host: evil.example\r\n"] {
        let answer = server
            .exactly("GET", "/live", &format!("{host}\r\n"))
            .await?;
        assert_eq!(answer.status, 200, "{host:?}: {answer:?}");
    }
    // The request passes the checks of access and fails only because there is nothing to change.
    let answer = server.ask("POST", "/v1/program", "{}").await?;
    assert_eq!(answer.problem(), "not_on_behalf");
    let foreign = "Host: node\r\nOrigin: http://evil.example\r\n\r\n";
    let answer = server.exactly("POST", "/v1/program", foreign).await?;
    assert_eq!(answer.problem(), "foreign_origin");

    let server = Local::start(Node::new(), Auth::at_unix_socket().token("secret"))?;
    let answer = server.ask("POST", "/v1/program", "{}").await?;
    assert_eq!(answer.problem(), "token_needed");
    let right = "Authorization: Bearer secret\r\n\r\n";
    let answer = server.exactly("POST", "/v1/program", right).await?;
    assert_eq!(answer.problem(), "not_on_behalf");
    Ok(())
}

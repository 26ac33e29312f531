//! Runs the user's health check: a command that must succeed, or a URL that must answer with 2xx.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use eldest::BoxError;
use http::Uri;
use hyper_util::rt::TokioIo;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::contain::ChildRegistry;
use crate::variables::SECRETS;

/// The options of the health check, which decides whether the node may lead.
#[derive(Debug, clap::Args)]
#[group(id = "health")]
pub(crate) struct Args {
    /// Lead only while this command, run with /bin/sh, succeeds
    #[arg(long = "health-cmd", value_name = "COMMAND", conflicts_with = "url", help_heading = HEADING)]
    command: Option<String>,

    /// Lead only while a GET of this URL returns a status from 200 to 299; http only
    #[arg(long = "health-url", id = "url", value_name = "URL", value_parser = url, help_heading = HEADING)]
    url: Option<Uri>,

    /// The pause between an answer and the next check
    #[arg(
        long = "health-every", value_name = "DURATION", value_parser = crate::connection::duration,
        default_value = "2s", help_heading = HEADING
    )]
    every: Duration,

    /// How long a leader may continue without a good answer
    #[arg(
        long = "health-limit", value_name = "DURATION", value_parser = crate::connection::duration,
        default_value = "10s", help_heading = HEADING
    )]
    limit: Duration,
}

const HEADING: &str = "Health";

/// A check that can be asked again and again.
#[derive(Clone)]
pub(crate) struct Check {
    what: What,
    pub(crate) every: Duration,
    pub(crate) limit: Duration,
}

#[derive(Clone)]
enum What {
    Command(String, Arc<ChildRegistry>),
    Url(Uri),
}

impl Args {
    /// `None`: the node is always fit.
    pub(crate) fn check(&self, child_registry: &Arc<ChildRegistry>) -> Option<Check> {
        let what = match (&self.command, &self.url) {
            (Some(command), _) => What::Command(command.clone(), Arc::clone(child_registry)),
            (None, Some(url)) => What::Url(url.clone()),
            (None, None) => return None,
        };
        Some(Check {
            what,
            every: self.every,
            limit: self.limit,
        })
    }
}

impl Check {
    /// Asks once. Dropped midway, a command is killed.
    pub(crate) async fn ask(self) -> Result<(), BoxError> {
        match &self.what {
            What::Command(command, child_registry) => run(command, child_registry).await?,
            What::Url(url) => get(url).await?,
        }
        Ok(())
    }
}

async fn run(command: &str, child_registry: &Arc<ChildRegistry>) -> Result<()> {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", command]).process_group(0);
    shell.stdin(Stdio::null()).stdout(Stdio::null());
    // As little as the program.
    for secret in SECRETS {
        shell.env_remove(secret);
    }
    let child = child_registry.spawn(&mut shell).context("/bin/sh")?;
    let mut running = Running {
        group: child.id().and_then(|id| Pid::from_raw(id.cast_signed())),
        child,
        child_registry: Arc::clone(child_registry),
    };
    let status = running.child.wait().await?;
    ensure!(status.success(), "the health command failed: {status}");
    Ok(())
}

/// Ends with its process group.
struct Running {
    group: Option<Pid>,
    child: Child,
    child_registry: Arc<ChildRegistry>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            // Not once it was waited for: the number might be another's.
            if self.child.id().is_some() {
                let _ = kill_process_group(group, Signal::KILL);
            }
        }
        self.child_registry.reap();
    }
}

async fn get(url: &Uri) -> Result<()> {
    let authority = url.authority().context("the URL names no host")?;
    let host = authority.host().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, authority.port_u16().unwrap_or(80))).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    let request = http::Request::get(path)
        .header(http::header::HOST, authority.as_str())
        .body(String::new())?;
    // Ends with the sender, at the end of this function.
    tokio::spawn(connection);
    let status = sender.send_request(request).await?.status();
    ensure!(status.is_success(), "{url} answered {status}");
    Ok(())
}

fn url(text: &str) -> Result<Uri, String> {
    let url: Uri = text.parse().map_err(|error| format!("{error}"))?;
    match (url.scheme_str(), url.authority()) {
        (Some("http"), Some(_)) => Ok(url),
        (Some("https"), _) => Err(
            "https is not supported; use --health-cmd with a program that supports it".to_owned(),
        ),
        _ => Err("write it as http://host:port/path".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::url;

    #[test]
    fn only_plain_http_is_taken() {
        assert!(url("http://127.0.0.1:8080/live").is_ok());
        assert!(url("https://a/").unwrap_err().contains("--health-cmd"));
        assert!(url("/live").unwrap_err().contains("http://"));
    }
}

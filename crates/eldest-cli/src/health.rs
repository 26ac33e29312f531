//! Runs the user's health check: a command that must succeed, or a URL that must answer with 2xx.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use eldest::BoxError;
use http::Uri;
use http::uri::Scheme;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Child;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::RootCertStore;

use crate::contain::ChildRegistry;
use crate::executable;
use crate::exit::{Code, fault};
use crate::trust;
use crate::web;

/// The options of the health check, which decides whether the node may lead.
#[derive(Debug, clap::Args)]
#[group(id = "health")]
pub(crate) struct Args {
    /// Lead only while this command, run with /bin/sh, succeeds
    #[arg(
        long = "health-cmd", value_name = "COMMAND", value_parser = command, group = "checked", help_heading = HEADING
    )]
    command: Option<String>,

    /// Lead only while a GET of this http or https URL returns a status from 200 to 299
    #[arg(long = "health-url", id = "url", value_name = "URL", value_parser = url, group = "checked", help_heading = HEADING)]
    url: Option<Uri>,

    /// The PEM file of the authorities that --health-url trusts for https [default: those of the system]
    #[arg(long = "health-ca", value_name = "FILE", requires = "url", help_heading = HEADING)]
    ca: Option<PathBuf>,

    /// The pause between an answer and the next check
    #[arg(
        long = "health-every", value_name = "DURATION", value_parser = crate::connection::duration,
        default_value = "2s", requires = "checked", help_heading = HEADING
    )]
    every: Duration,

    /// How long a leader may continue without a good answer
    #[arg(
        long = "health-limit", value_name = "DURATION", value_parser = crate::connection::duration,
        default_value = "10s", requires = "checked", help_heading = HEADING
    )]
    limit: Duration,
}

const HEADING: &str = "Health";

/// Parses a command for /bin/sh. The shell succeeds at once with an empty one, such as that of an unset variable.
pub(crate) fn command(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("the command is empty".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

/// A check that can run repeatedly.
#[derive(Clone)]
pub(crate) struct Check {
    probe: Probe,
    pub(crate) every: Duration,
    pub(crate) limit: Duration,
}

/// A question about the program: a command that must succeed, or a URL that must answer with 2xx.
#[derive(Clone)]
pub(crate) enum Probe {
    Command(String),
    /// The URL, and the connector that encrypts if it is https.
    Url(Uri, Option<TlsConnector>),
}

impl Args {
    /// Returns the check. `None` means that the node is always fit.
    pub(crate) fn check(&self) -> Result<Option<Check>> {
        let probe = match (&self.command, &self.url) {
            (Some(command), _) => Probe::Command(command.clone()),
            (None, Some(url)) => Probe::Url(url.clone(), self.connector(url)?),
            (None, None) => return Ok(None),
        };
        Ok(Some(Check {
            probe,
            every: self.every,
            limit: self.limit,
        }))
    }

    fn connector(&self, url: &Uri) -> Result<Option<TlsConnector>> {
        if url.scheme() != Some(&Scheme::HTTPS) {
            return match &self.ca {
                Some(_) => Err(fault(
                    Code::Usage,
                    format!("--health-ca: {url} is not an https URL"),
                )),
                None => Ok(None),
            };
        }
        encrypting("--health-url", url, self.ca.as_deref()).map(Some)
    }
}

/// Returns the connector for that https URL of an option.
fn encrypting(option: &str, url: &Uri, ca: Option<&Path>) -> Result<TlsConnector> {
    connector(ca).map_err(|error| fault(Code::Usage, format!("{option} {url}: {error:#}")))
}

/// Returns a connector that trusts servers with certificates of these authorities.
fn connector(ca: Option<&Path>) -> Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    if let Some(file) = ca {
        trust::add_file(&mut roots, "--health-ca", file)?;
    } else {
        trust::add_system(&mut roots);
        ensure!(
            !roots.is_empty(),
            "this system has no certificate authorities; name some with --health-ca"
        );
    }
    trust::connector(roots)
}

impl Check {
    /// Runs the check once. If the future is dropped, a running command is killed.
    pub(crate) async fn ask(self, child_registry: Arc<ChildRegistry>) -> Result<(), BoxError> {
        Ok(self.probe.ask(&child_registry).await?)
    }
}

impl Probe {
    /// Returns the probe of that URL of an option; for https, it trusts the authorities of the system.
    pub(crate) fn url(option: &str, url: &Uri) -> Result<Self> {
        let is_https = url.scheme() == Some(&Scheme::HTTPS);
        let connector = is_https.then(|| encrypting(option, url, None));
        Ok(Self::Url(url.clone(), connector.transpose()?))
    }

    /// Asks once. If the future is dropped, a running command is killed.
    pub(crate) async fn ask(&self, child_registry: &Arc<ChildRegistry>) -> Result<()> {
        match self {
            Probe::Command(command) => run(command, child_registry).await,
            Probe::Url(url, connector) => get(url, connector.as_ref()).await,
        }
    }
}

async fn run(command: &str, child_registry: &Arc<ChildRegistry>) -> Result<()> {
    let mut shell = executable::shell(&["-c", command]);
    shell.process_group(0);
    shell.stdin(Stdio::null()).stdout(Stdio::null());
    let child = child_registry.spawn(&mut shell).context("/bin/sh")?;
    let mut running = Running {
        group: child.id().and_then(|id| Pid::from_raw(id.cast_signed())),
        child,
        child_registry: Arc::clone(child_registry),
    };
    let status = running.child.wait().await?;
    ensure!(status.success(), "the command failed: {status}");
    Ok(())
}

/// A running command. Dropping the value kills its process group.
struct Running {
    group: Option<Pid>,
    child: Child,
    child_registry: Arc<ChildRegistry>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            // After the child was waited for, another process may have its id.
            if self.child.id().is_some() {
                let _ = kill_process_group(group, Signal::KILL);
            }
        }
        self.child_registry.reap();
    }
}

async fn get(url: &Uri, connector: Option<&TlsConnector>) -> Result<()> {
    let request = http::Request::get(url).body(String::new())?;
    let status = web::send(request, connector).await?;
    ensure!(status.is_success(), "{url} answered {status}");
    Ok(())
}

pub(crate) fn url(text: &str) -> Result<Uri, String> {
    let url: Uri = text.parse().map_err(|error| format!("{error}"))?;
    match (url.scheme_str(), url.authority()) {
        (Some("http" | "https"), Some(_)) => Ok(url),
        _ => Err("write it as http://host:port/path or https://host:port/path".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::url;

    #[test]
    fn only_http_and_https_are_taken() {
        assert!(url("http://127.0.0.1:8080/live").is_ok());
        assert!(url("https://a/").is_ok());
        for other in ["/live", "ftp://a/", "a:80"] {
            let refused = url(other).unwrap_err();
            assert!(refused.contains("http://"), "{other}: {refused}");
        }
    }
}

//! Labels this node's own pod in Kubernetes while the node leads and serves, so that a Service can select the leader.
//!
//! The label follows the leadership and decides nothing: if the API server is away, the leader stays the same.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use eldest::internal::Pause;
use eldest::{Announcement, Election, Member, Status};
use futures::StreamExt;
use http::{Method, Request, StatusCode, Uri, header};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::RootCertStore;

use crate::exit::{Code, fault};
use crate::{member, trust, web};

const HEADING: &str = "Kubernetes";
/// The value of the label.
const LEADER: &str = "leader";
/// How long one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a leader sets its label again, in case somebody removed it.
const REPEAT: Duration = Duration::from_secs(30);
/// The keys of the metadata by which a pod is announced.
const POD: &str = "pod";
const NAMESPACE: &str = "pod_namespace";
/// Where Kubernetes mounts a pod's service account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The options of the label.
#[derive(Debug, clap::Args)]
#[group(id = "labels")]
pub(crate) struct Args {
    /// While this node leads and serves, give its own pod in Kubernetes this label with the value `leader`; a Service can then
    /// select the leader. The pod's service account needs `patch` on pods
    #[arg(
        long, value_name = "KEY", value_parser = key, env = "ELDEST_POD_LABEL", hide_env_values = true,
        help_heading = HEADING, conflicts_with = "observe"
    )]
    pod_label: Option<String>,

    /// The name of this node's own pod [default: the name of this machine]
    #[arg(
        long, value_name = "NAME", env = "ELDEST_POD", hide_env_values = true, help_heading = HEADING,
        requires = "pod_label"
    )]
    pod: Option<String>,

    /// The folder of the pod's service account
    #[arg(
        long, value_name = "FOLDER", env = "ELDEST_SERVICE_ACCOUNT", hide_env_values = true, help_heading = HEADING,
        requires = "pod_label", default_value = ACCOUNT
    )]
    service_account: PathBuf,
}

/// Accepts what Kubernetes accepts as the key of a label.
fn key(text: &str) -> Result<String, String> {
    let (prefix, name) = text.rsplit_once('/').unwrap_or(("eldest.dev", text));
    let part = |text: &str, longest: usize, other: &[char]| {
        let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        let inner = text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || other.contains(&c));
        text.len() <= longest && inner && edge(text.chars().next()) && edge(text.chars().last())
    };
    if part(name, 63, &['-', '_', '.']) && part(prefix, 253, &['-', '.']) {
        Ok(text.to_owned())
    } else {
        Err("write it as PREFIX/NAME, for example eldest.dev/role: letters, digits, `-`, `_` and `.`".to_owned())
    }
}

/// A pod, by its namespace and name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pod {
    namespace: String,
    name: String,
}

impl Pod {
    /// Returns the pod that a candidate announced. Another node wrote the names, so they are checked.
    fn of(member: &Member) -> Option<Self> {
        let item = |key| {
            let name = member.announcement().metadata(key)?;
            let allowed =
                |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
            (!name.is_empty() && name.len() <= 253 && name.chars().all(allowed))
                .then(|| name.to_owned())
        };
        Some(Self {
            namespace: item(NAMESPACE)?,
            name: item(POD)?,
        })
    }
}

/// The API server, and the account of this pod there.
struct Api {
    server: String,
    account: PathBuf,
    connector: TlsConnector,
    label: String,
}

/// A label that no task keeps up to date yet.
pub(crate) struct Label {
    api: Arc<Api>,
    own: Pod,
}

impl Args {
    /// Reads what this pod needs to label itself, and announces the pod. Returns `None` if no label is configured.
    pub(crate) fn label(
        &self,
        elections: &[String],
        announced: Announcement,
    ) -> Result<(Option<Label>, Announcement)> {
        let Some(key) = &self.pod_label else {
            return Ok((None, announced));
        };
        let usage = |error: anyhow::Error| fault(Code::Usage, format!("--pod-label: {error:#}"));
        if elections.len() != 1 {
            let rule = "--pod-label needs exactly one ELECTION, because a pod has one such label";
            return Err(fault(Code::Usage, rule));
        }
        let label = self.read(key).map_err(usage)?;
        let announced = announced
            .with_metadata(POD, &label.own.name)
            .with_metadata(NAMESPACE, &label.own.namespace);
        Ok((Some(label), announced))
    }

    fn read(&self, key: &str) -> Result<Label> {
        let variable = |name: &str| {
            let value = std::env::var(name);
            value.with_context(|| {
                format!("the variable {name} is not set: this is no pod of Kubernetes")
            })
        };
        let host = variable("KUBERNETES_SERVICE_HOST")?;
        let port = variable("KUBERNETES_SERVICE_PORT")?;
        let host = if host.contains(':') {
            format!("[{host}]")
        } else {
            host
        };
        let file = self.service_account.join("namespace");
        let namespace = std::fs::read_to_string(&file)
            .with_context(|| format!("{}: is automountServiceAccountToken set?", file.display()))?;
        let mut roots = RootCertStore::empty();
        trust::add_file(
            &mut roots,
            "the service account's",
            &self.service_account.join("ca.crt"),
        )?;
        let api = Api {
            server: format!("https://{host}:{port}"),
            account: self.service_account.clone(),
            connector: trust::connector(roots)?,
            label: key.to_owned(),
        };
        // The token is read for each request, because Kubernetes replaces it.
        api.token()?;
        let own = Pod {
            namespace: namespace.trim().to_owned(),
            name: self.pod.clone().unwrap_or_else(member::host_name),
        };
        Ok(Label {
            api: Arc::new(api),
            own,
        })
    }
}

impl Api {
    fn token(&self) -> Result<String> {
        let file = self.account.join("token");
        let token = std::fs::read_to_string(&file);
        let token = token.with_context(|| file.display().to_string())?;
        Ok(token.trim().to_owned())
    }

    /// Sets or removes the label of a pod. A pod that no longer exists has no label.
    async fn patch(&self, pod: &Pod, leads: bool) -> Result<()> {
        let Pod { namespace, name } = pod;
        let url = format!("{}/api/v1/namespaces/{namespace}/pods/{name}", self.server);
        let url: Uri = url.parse()?;
        let value = leads.then_some(LEADER);
        let body = serde_json::json!({"metadata": {"labels": {&self.label: value}}});
        let request = Request::builder()
            .method(Method::PATCH)
            .uri(&url)
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token()?))
            .header(header::CONTENT_TYPE, "application/merge-patch+json")
            .body(body.to_string())?;
        let sent = web::send(request, Some(&self.connector));
        let status = tokio::time::timeout(REQUEST_TIMEOUT, sent).await;
        let status = status.with_context(|| format!("no answer within {REQUEST_TIMEOUT:?}"))??;
        match status {
            StatusCode::NOT_FOUND if !leads => Ok(()),
            StatusCode::NOT_FOUND => Err(anyhow::anyhow!(
                "there is no pod {namespace}/{name}: set --pod"
            )),
            StatusCode::FORBIDDEN => Err(anyhow::anyhow!(
                "the pod's service account may not patch pods in {namespace}: grant it `patch` on `pods`"
            )),
            status => {
                ensure!(status.is_success(), "{url} answered {status}");
                Ok(())
            }
        }
    }
}

/// A label that a task keeps up to date until it is stopped.
pub(crate) struct Kept {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Label {
    /// Keeps the label up to date in a task.
    pub(crate) fn keep(self, election: Election) -> Kept {
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(keep(self, election, stopped));
        Kept { stop, task }
    }
}

impl Kept {
    /// Removes the label; returns after one attempt.
    pub(crate) async fn stop(self) {
        self.stop.send_replace(true);
        let _ = self.task.await;
    }
}

/// The labels that this node wants, and those that it knows to be set.
struct Labels {
    own: Pod,
    /// The leader before this node, whose label may still be set.
    former: Option<Pod>,
    /// The last value that the API server accepted for this node's own pod.
    stands: Option<bool>,
}

async fn keep(label: Label, election: Election, mut stopped: watch::Receiver<bool>) {
    let Label { api, own } = label;
    let mut labels = Labels {
        own,
        former: None,
        stands: None,
    };
    let mut status = election.subscribe();
    let mut queue = Box::pin(rosters(&election));
    let (mut pause, mut failed) = (Pause::default(), false);
    loop {
        let over = *stopped.borrow_and_update();
        let leads = !over && matches!(*status.borrow_and_update(), Status::Leading { .. });
        let serves = leads && election.term().is_some_and(|term| term.is_serving());
        let next = match labels.apply(&api, leads, serves).await {
            Ok(()) => {
                if std::mem::take(&mut failed) {
                    tracing::info!(election = election.name(), "the pod's label is kept again");
                }
                pause = Pause::default();
                REPEAT
            }
            Err(error) => {
                if !std::mem::replace(&mut failed, true) {
                    let error = format!("{error:#}");
                    tracing::warn!(
                        election = election.name(),
                        error,
                        "the pod's label cannot be kept"
                    );
                }
                pause.after(Duration::ZERO)
            }
        };
        if over {
            return;
        }
        tokio::select! {
            _ = status.changed() => {}
            _ = stopped.changed() => {}
            // The queue also shows that this node serves.
            Some(leader) = queue.next() => labels.led_by(leader),
            () = tokio::time::sleep(next) => labels.stands = labels.stands.filter(|_| !serves),
        }
    }
}

/// Returns the pods of the election's leaders, as the queue changes.
fn rosters(election: &Election) -> impl futures::Stream<Item = Pod> + use<> {
    let election = election.clone();
    let observer = async move { election.observe().await };
    let rosters = futures::stream::once(observer).filter_map(async |observer| observer.ok());
    let rosters = rosters.flatten();
    rosters.filter_map(async |roster| Pod::of(roster.ok()?.leader()?))
}

impl Labels {
    fn led_by(&mut self, leader: Pod) {
        if leader != self.own {
            self.former = Some(leader);
        }
    }

    /// Sets the labels as they should be. A new leader first removes the label of the one before it, and has its own once
    /// it serves.
    async fn apply(&mut self, api: &Api, leads: bool, serves: bool) -> Result<()> {
        if leads && let Some(former) = &self.former {
            api.patch(former, false).await?;
            self.former = None;
        }
        if self.stands != Some(serves) {
            api.patch(&self.own, serves).await?;
            self.stands = Some(serves);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_that_kubernetes_accepts_are_labels() {
        for good in ["role", "eldest.dev/role", "a-b.c/x_y.z"] {
            assert_eq!(key(good).as_deref(), Ok(good));
        }
        let long = "x".repeat(64);
        for bad in [
            "",
            "/role",
            "eldest.dev/",
            "a/b/c",
            "-role",
            "r\u{f6}le",
            "a b",
            &long,
        ] {
            assert!(key(bad).unwrap_err().contains("eldest.dev/role"), "{bad}");
        }
    }
}

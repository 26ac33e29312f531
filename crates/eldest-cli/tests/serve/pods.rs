//! Tests the label on a leader's pod, against a server that answers as the API server of Kubernetes does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::routing::patch;
use eldest::CancellationToken;
use eldest_fixtures::http::{answers, get, post};
use eldest_fixtures::tls::Authority;
use eldest_fixtures::wait::until;
use eldest_http::{Limits, ServerCertificate, serve_tls};
use eldest_testing::eventually;
use rustix::process::Signal;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::shared::{ELECTION, Node, Result, SOON, Stage};

const LABEL: &str = "eldest.dev/role";

/// The pods of an API server, and its answers.
#[derive(Default)]
struct Pods {
    /// The label of each pod that was ever patched.
    labels: BTreeMap<String, Option<String>>,
    /// The answer to every request, if it is refused.
    refuse: Option<StatusCode>,
}

/// An API server, and the service account of its pods.
struct Kubernetes<'a> {
    stage: &'a Stage,
    port: String,
    pods: Arc<Mutex<Pods>>,
    _server: AbortOnDropHandle<()>,
}

async fn patched(
    State(pods): State<Arc<Mutex<Pods>>>,
    Path((namespace, pod)): Path<(String, String)>,
    headers: HeaderMap,
    body: String,
) -> StatusCode {
    let patch: serde_json::Value = serde_json::from_str(&body).expect("a patch");
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    assert_eq!(text(header::AUTHORIZATION), Some("Bearer its-token"));
    assert_eq!(
        text(header::CONTENT_TYPE),
        Some("application/merge-patch+json")
    );
    assert_eq!(namespace, "billing");
    let mut pods = pods.lock().unwrap();
    if let Some(refused) = pods.refuse {
        return refused;
    }
    let label = &patch["metadata"]["labels"][LABEL];
    assert!(label.is_string() || label.is_null(), "{body}");
    let label = label.as_str().map(str::to_owned);
    pods.labels.insert(pod, label);
    StatusCode::OK
}

impl<'a> Kubernetes<'a> {
    async fn start(stage: &'a Stage) -> Result<Self> {
        let authority = Authority::new()?;
        let signed = authority.sign("127.0.0.1")?;
        let file = |name: &str| stage.path(name);
        std::fs::write(file("ca.crt"), authority.pem())?;
        std::fs::write(file("token"), "its-token\n")?;
        std::fs::write(file("namespace"), "billing")?;
        std::fs::write(file("api.pem"), signed.certificate)?;
        std::fs::write(file("api.key"), signed.key)?;
        let certificate = ServerCertificate::from_files(file("api.pem"), file("api.key"))?;
        let pods = Arc::new(Mutex::new(Pods::default()));
        let path = "/api/v1/namespaces/{namespace}/pods/{pod}";
        let app = Router::new().route(path, patch(patched));
        let app = app.with_state(Arc::clone(&pods));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port().to_string();
        let shutdown = CancellationToken::new();
        let server = tokio::spawn(async move {
            let served = serve_tls(listener, app, Limits::default(), certificate, shutdown);
            served.await.expect("the API server");
        });
        Ok(Self {
            stage,
            port,
            pods,
            _server: AbortOnDropHandle::new(server),
        })
    }

    /// Starts `eldest serve` in the pod of that name.
    async fn node(&self, name: &str, more: &[&str]) -> Result<Node> {
        let mut command = self.stage.serve("2s", name);
        command.args(["--grace", "200ms", "--pod-label", LABEL, "--pod", name]);
        command.args(more);
        command.arg("--service-account").arg(self.stage.folder());
        command.env("KUBERNETES_SERVICE_HOST", "127.0.0.1");
        command.env("KUBERNETES_SERVICE_PORT", &self.port);
        Node::listening(name, command).await
    }

    fn refuse(&self, status: Option<StatusCode>) {
        self.pods.lock().unwrap().refuse = status;
    }

    /// Waits until exactly that pod has the label, of all that were ever patched.
    async fn labelled(&self, leader: Option<&str>) -> Result {
        let what = format!("the label is on {leader:?}");
        Ok(eventually(SOON, what, async || {
            let pods = self.pods.lock().unwrap();
            let all = pods.labels.iter();
            let labelled = all.filter(|(_, label)| label.as_deref() == Some("leader"));
            let labelled: Vec<&str> = labelled.map(|(pod, _)| &**pod).collect();
            (labelled == leader.as_slice()).then_some(())
        })
        .await?)
    }
}

#[tokio::test]
async fn label_follows_the_leader_and_leaves_the_pod_of_a_dead_one() -> Result {
    let stage = Stage::new().await?;
    let kubernetes = Kubernetes::start(&stage).await?;
    let a = kubernetes.node("a", &[]).await?;
    kubernetes.labelled(Some("a")).await?;
    let b = kubernetes.node("b", &[]).await?;
    a.signal(Signal::KILL);
    answers(b.at, "/leader", 200).await?;
    kubernetes.labelled(Some("b")).await?;
    b.close().await?;
    kubernetes.labelled(None).await
}

#[tokio::test]
async fn label_waits_until_the_leader_serves() -> Result {
    let stage = Stage::new().await?;
    let kubernetes = Kubernetes::start(&stage).await?;
    let a = kubernetes.node("a", &["--serving-within", "60s"]).await?;
    let path = format!("/leader?election={ELECTION}");
    eventually(SOON, "it leads", async || {
        (get(a.at, &path).await.ok()?.json()["role"] == "leader").then_some(())
    })
    .await?;
    kubernetes.labelled(None).await?;
    let path = format!("/v1/elections/{ELECTION}/serving");
    assert_eq!(post(a.at, &path).await?.status, 200);
    kubernetes.labelled(Some("a")).await?;
    a.close().await?;
    kubernetes.labelled(None).await
}

#[tokio::test]
async fn an_api_server_that_refuses_changes_nothing_about_who_leads() -> Result {
    let stage = Stage::new().await?;
    let kubernetes = Kubernetes::start(&stage).await?;
    kubernetes.refuse(Some(StatusCode::FORBIDDEN));
    let a = kubernetes.node("a", &[]).await?;
    answers(a.at, "/leader", 200).await?;
    eventually(SOON, "it warns", async || {
        let log = a.log();
        let warned = log.contains("the pod's label cannot be kept");
        (warned && log.contains("grant it `patch`")).then_some(())
    })
    .await?;
    kubernetes.refuse(None);
    kubernetes.labelled(Some("a")).await?;
    let kept = "the pod's label is kept again";
    until(SOON, kept, async || a.log().contains(kept)).await?;
    Ok(())
}

//! Runs a copy of the demo in docker-compose.yml with either generation of Compose, reads its logs, and removes it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use eldest_testing::docker::owner_label;
use futures::TryStreamExt;
use tempfile::TempDir;
use testcontainers::bollard::Docker;
use testcontainers::bollard::query_parameters::LogsOptionsBuilder;

use crate::front::now;
use crate::images::{ETCD, etcd_tag, haproxy, node};
use crate::lab::Result;

pub(crate) const NODES: [&str; 3] = ["node1", "node2", "node3"];
/// The ports of a node and of its worker.
pub(crate) const NODE_PORT: u16 = 8470;
pub(crate) const WORKER_PORT: u16 = 8080;
/// The nodes of the profile `agent`.
pub(crate) const GUARDED: [&str; 2] = ["guarded1", "guarded2"];
pub(crate) const ETCDS: [&str; 3] = ["etcd1", "etcd2", ETCD_THAT_STAYS];
/// The member of etcd that no step of the page stops.
pub(crate) const ETCD_THAT_STAYS: &str = "etcd3";
pub(crate) const ETCD_PORT: u16 = 2379;

/// The log line of a node whose lease is over, and the reason: the lease was gone.
const LOST: &str = "lease lost";
const GONE: &str = "reason=\"lease_lost\"";

/// A log line of a worker.
#[derive(Clone)]
pub(crate) struct Line {
    pub(crate) text: String,
    /// The node that logged it.
    pub(crate) node: String,
    /// The time of the line, by the wall clock that all containers share.
    pub(crate) at: SystemTime,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl Line {
    /// Parses a line of a worker; all other lines in a node's log are the node's own.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let at = time(words.next()?)?;
        let node = words.next()?.strip_suffix(':')?.to_owned();
        let text = text.to_owned();
        NODES.contains(&&*node).then_some(Self { text, node, at })
    }

    pub(crate) fn token(&self) -> Option<i64> {
        let (_, rest) = self.text.split_once(" token ")?;
        rest.parse().ok()
    }
}

/// The output of nodes and workers.
#[derive(Debug, Default)]
pub(crate) struct Said {
    /// The workers' lines, in order of time.
    pub(crate) lines: Vec<Line>,
    /// The nodes that reported a lost lease, and whether the lease was gone from etcd.
    pub(crate) lost: Vec<(&'static str, bool)>,
}

/// Parses a time in RFC 3339, in UTC.
fn time(text: &str) -> Option<SystemTime> {
    Some(text.parse::<jiff::Timestamp>().ok()?.into())
}

/// One copy of the demo.
pub(crate) struct Composed {
    docker: Docker,
    compose: String,
    project: String,
    /// The id of each service's container, which it keeps.
    containers: BTreeMap<String, String>,
    /// The page's names, and the nodes that play these parts in this run: the page's node1 is the first leader.
    pub(crate) parts: BTreeMap<&'static str, String>,
    _folder: TempDir,
}

impl Composed {
    /// Prepares a copy without starting it.
    pub(crate) async fn new(program: &str, kind: &str) -> Result<Self> {
        let etcd = format!("{ETCD}:{}", etcd_tag());
        let node = node();
        for image in [&etcd, &node, &haproxy()] {
            let found = Command::new("docker")
                .args(["image", "inspect", image])
                .output()?;
            if !found.status.success() {
                let stderr = String::from_utf8_lossy(&found.stderr).into_owned();
                return Err(format!(
                    "no image {image}: `cargo xtask images` makes it ({})",
                    stderr.trim()
                )
                .into());
            }
        }
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("override.yml");
        std::fs::write(&file, additions(&etcd, &node))?;
        let main = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docker-compose.yml");
        let project = format!("eldest-walk-{kind}-{}", std::process::id());
        let compose = format!(
            "{program} -p {project} -f '{}' -f '{}'",
            main.display(),
            file.display()
        );
        Ok(Self {
            docker: Docker::connect_with_defaults()?.negotiate_version().await?,
            compose,
            project,
            containers: BTreeMap::new(),
            parts: BTreeMap::new(),
            _folder: folder,
        })
    }

    /// Adds a file of this repository to those that describe the demo.
    pub(crate) fn extend(&mut self, file: &str) {
        let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file);
        self.compose = format!("{} -f '{}'", self.compose, file.display());
    }

    /// Freezes the container of a service.
    pub(crate) fn freeze(&self, service: &str) -> Result {
        Self::docker(&["pause", self.container(service)]).map(drop)
    }

    /// Replaces each name of the page by the name of the node that plays its part.
    pub(crate) fn cast(&self, text: &str) -> String {
        // In two steps, because inserted names must not be replaced again.
        let mut cast = text.to_owned();
        for (at, part) in self.parts.keys().enumerate() {
            cast = cast.replace(part, &format!("<node {at}>"));
            cast = cast.replace(&part.replace("node", "dc"), &format!("<dc {at}>"));
        }
        for (at, name) in self.parts.values().enumerate() {
            cast = cast.replace(&format!("<node {at}>"), name);
            cast = cast.replace(&format!("<dc {at}>"), &name.replace("node", "dc"));
        }
        cast
    }

    /// Runs a command as the page writes it.
    fn try_run(&self, command: &str) -> Result<Output> {
        let command = self.cast(command).replace("docker-compose", &self.compose);
        Ok(Command::new("sh").args(["-c", &command]).output()?)
    }

    pub(crate) fn run(&self, command: &str) -> Result<String> {
        let output = self.try_run(command)?;
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(out);
        }
        let err = String::from_utf8_lossy(&output.stderr);
        Err(format!("{command}: {}\n{out}{err}", output.status).into())
    }

    /// Runs a command of the engine itself, which takes a tenth of Compose's time.
    fn docker(args: &[&str]) -> Result<String> {
        let output = Command::new("docker").args(args).output()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let err = String::from_utf8_lossy(&output.stderr);
        Err(format!("docker {args:?}: {}\n{err}", output.status).into())
    }

    fn container(&self, service: &str) -> &str {
        &self.containers[service]
    }

    /// Finds the existing containers, and returns their services.
    pub(crate) fn find(&mut self) -> Result<Vec<&str>> {
        let filter = format!("label=com.docker.compose.project={}", self.project);
        let format = "{{.Label \"com.docker.compose.service\"}} {{.ID}}";
        let found = Self::docker(&["ps", "--all", "--filter", &filter, "--format", format])?;
        let found = found.lines().filter_map(|line| line.split_once(' '));
        self.containers = found
            .map(|(service, id)| (service.to_owned(), id.to_owned()))
            .collect();
        Ok(self.containers.keys().map(String::as_str).collect())
    }

    /// Returns the address at which this machine reaches a port of a service.
    pub(crate) fn port(&self, service: &str, port: u16) -> Result<SocketAddr> {
        let address = Self::docker(&["port", self.container(service), &port.to_string()])?;
        Ok(address.trim().parse()?)
    }

    /// Returns when the container of a service ended, by the name that the page gives it.
    pub(crate) fn ended(&self, service: &str) -> Result<SystemTime> {
        let id = self.container(&self.cast(service));
        let text = Self::docker(&["inspect", "--format", "{{.State.FinishedAt}}", id])?;
        time(text.trim()).ok_or_else(|| format!("{service} ended at {text}").into())
    }

    /// Returns all output of a node and its workers up to now. Called often, so it starts no process.
    async fn log(&self, node: &str) -> Result<String> {
        let options = LogsOptionsBuilder::new().stdout(true).stderr(true).build();
        let Some(container) = self.containers.get(node) else {
            return Ok(String::new()); // the container was never started
        };
        let parts = self.docker.logs(container, Some(options));
        let text = parts.try_fold(Vec::new(), async |mut text, part| {
            text.extend_from_slice(&part.into_bytes());
            Ok(text)
        });
        Ok(String::from_utf8_lossy(&text.await?).into_owned())
    }

    pub(crate) async fn said(&self) -> Result<Said> {
        let mut said = Said::default();
        for node in NODES {
            let log = self.log(node).await?;
            let lost = log.lines().filter(|line| line.contains(LOST));
            said.lost
                .extend(lost.map(|line| (node, line.contains(GONE))));
            said.lines.extend(log.lines().filter_map(Line::parse));
        }
        said.lines.sort_by_key(|line| line.at);
        Ok(said)
    }

    /// Returns the output of all containers, to find a fault.
    pub(crate) fn logs(&self) -> String {
        let logs = self.try_run("docker-compose logs --no-color --timestamps");
        logs.map(|logs| String::from_utf8_lossy(&logs.stdout).into_owned())
            .unwrap_or_default()
    }
}

impl Drop for Composed {
    fn drop(&mut self) {
        let _ = self.try_run("docker-compose --profile agent down --volumes --timeout 1");
    }
}

/// Converts a time of the wall clock to one since boot.
pub(crate) fn since_boot(at: SystemTime) -> Duration {
    let ago = SystemTime::now().duration_since(at).unwrap_or_default();
    now().saturating_sub(ago)
}

/// Makes the test's own additions to docker-compose.yml.
fn additions(etcd: &str, node: &str) -> String {
    let (label, owner) = owner_label();
    let labels = format!("labels: {{ {label}: \"{owner}\" }}");
    let of = |names: &[&str], rest: &str| -> String {
        let lines = names
            .iter()
            .map(|name| format!("  {name}: {{ {rest}{labels} }}"));
        lines.collect::<Vec<_>>().join("\n")
    };
    let port = |port: u16| format!("ports: [\"127.0.0.1:0:{port}\"], ");
    format!(
        "services:\n{}\n{}\n{}\n{}\nnetworks:\n{}\nvolumes:\n{}\n",
        // Publishes etcd's port, so that the test can reach it without the nodes.
        of(&ETCDS, &format!("image: \"{etcd}\", {}", port(ETCD_PORT))),
        // Publishes the worker's port too, so that the test can reach it without the front.
        of(
            &NODES,
            &format!(
                "image: \"{node}\", environment: {{ ELDEST_LOG: warn }}, {}",
                port(WORKER_PORT)
            ),
        ),
        of(&["front"], ""),
        of(
            &[&["agent"], &GUARDED[..]].concat(),
            &format!("image: \"{node}\", profiles: [agent], "),
        ),
        of(&["peers", "clients"], ""),
        of(&[&ETCDS[..], &["agent"]].concat(), ""),
    )
}

/// Returns the program of that major version: the one that the variable names, or the one in the PATH.
pub(crate) fn compose(major: char) -> Result<String> {
    let variable = format!("ELDEST_COMPOSE_V{major}");
    if let Ok(program) = std::env::var(&variable) {
        return Ok(program);
    }
    for program in ["docker-compose", "docker compose"] {
        let asked = Command::new("sh")
            .args(["-c", &format!("{program} version --short")])
            .output()?;
        let version = String::from_utf8_lossy(&asked.stdout).into_owned();
        if asked.status.success() && version.trim().trim_start_matches('v').starts_with(major) {
            return Ok(program.to_owned());
        }
    }
    Err(format!(
        "there is no docker-compose {major}: install it (Debian 12's package docker-compose is version 1, that of \
         Debian 13 version 2), or name the program in {variable}"
    )
    .into())
}

//! Freezes, kills and cuts containers of a test, and records this in a history (feature `docker`).
//!
//! Any tool may have started a container: testcontainers, docker-compose or `docker run`. It is found by its id or its
//! name.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use eldest_testing::docker::Container;
//! use eldest_testing::history::Recorder;
//!
//! let recorder = Recorder::boottime();
//! let node = Container::find("billing-1").await?.recorded(&recorder, "billing-1");
//! node.freeze().await?; // every process in it stands still
//! node.thaw().await?;
//! node.cut("backend").await?; // from that network, others stay
//! node.heal().await?; // back under the same names
//! node.kill().await?; // SIGKILL; on return it is dead
//! node.start().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What is left behind
//!
//! A test that is killed cannot tidy up. Give everything that the test makes the label [`owner_label`], and let the
//! next run call [`sweep`]: it removes everything whose process no longer runs.
//!
//! # The engine
//!
//! `DOCKER_HOST` names the engine, as for the command `docker`; by default it is the local socket. Histories need the
//! containers to run on this machine: events of different clocks cannot be compared.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::{
    ContainerInspectResponse, EndpointSettings, NetworkConnectRequest, NetworkDisconnectRequest,
};
use bollard::query_parameters::{
    KillContainerOptionsBuilder, StopContainerOptionsBuilder, WaitContainerOptionsBuilder,
};
use futures::StreamExt as _;

use super::error::{Error as TestError, ErrorKind};
use super::history::{Recorder, What};
use record::{Record, Step};

mod engine;
mod network;
mod owner;
mod record;

#[cfg(test)]
mod tests;

pub use network::Network;
pub use owner::{OWNER_LABEL, owner_label, sweep};

/// A running container, with the faults that a test may cause in it.
///
/// Dropping this value neither stops nor removes the container.
pub struct Container {
    docker: Docker,
    id: String,
    name: String,
    record: Option<Record>,
    /// The networks that the container was cut from and is not yet connected to again, with its former connection.
    cuts: Mutex<Vec<(String, EndpointSettings)>>,
}

impl Container {
    /// Finds the container with that id (or the beginning of one) or name.
    ///
    /// # Errors
    ///
    /// The engine cannot be reached; there is no such container.
    pub async fn find(id_or_name: impl AsRef<str>) -> Result<Self, TestError> {
        Self::find_by(engine::connect().await?, id_or_name.as_ref()).await
    }

    async fn find_by(docker: Docker, id_or_name: &str) -> Result<Self, TestError> {
        let found = docker.inspect_container(id_or_name, None).await;
        let found = found.map_err(|error| engine::failed("find container", id_or_name, &error))?;
        let id = found.id.unwrap_or_else(|| id_or_name.to_owned());
        let name = found.name.unwrap_or_else(|| id.clone());
        Ok(Self {
            docker,
            id,
            name: name.trim_start_matches('/').to_owned(),
            record: None,
            cuts: Mutex::default(),
        })
    }

    /// Records every later action on the container as an event of that node: [`What::Paused`] and [`What::Resumed`],
    /// [`What::Killed`], and a [`What::Fault`] for each network that the container is cut from. The events are stamped
    /// as [`What`] requires, so no leadership is hidden or invented. An action that the engine refused is not recorded.
    pub fn recorded(mut self, recorder: &Recorder, node: impl Into<String>) -> Self {
        self.record = Some(Record::of(recorder, Some(node.into())));
        self
    }

    /// Records every later action on the container as a fault that hits every node. Use it for a container of etcd. The
    /// fault of a kill ends once the container has been [started](Self::start) again, a moment before etcd serves
    /// again.
    pub fn recorded_for_all(mut self, recorder: &Recorder) -> Self {
        self.record = Some(Record::of(recorder, None));
        self
    }

    /// Returns the container's full id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the container's name, as `docker ps` shows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the address at which this machine reaches a published TCP port of the container. Ask again after every
    /// start, kill or cut: a port that the engine chose changes then.
    ///
    /// # Errors
    ///
    /// The port is not published, or the container does not run.
    pub async fn address(&self, port: u16) -> Result<SocketAddr, TestError> {
        let ports = self.inspect().await?.network_settings;
        let ports = ports
            .and_then(|settings| settings.ports)
            .unwrap_or_default();
        let bindings = ports.get(&format!("{port}/tcp")).cloned().flatten();
        let published = bindings.into_iter().flatten().find_map(|binding| {
            let ip = binding.host_ip.filter(|ip| !ip.is_empty());
            let ip = ip.unwrap_or_else(|| "0.0.0.0".to_owned());
            let mut address = SocketAddr::new(ip.parse().ok()?, binding.host_port?.parse().ok()?);
            if address.ip().is_unspecified() {
                address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
            }
            Some(address)
        });
        published.ok_or_else(|| refused(format!("{self} does not publish port {port} now")))
    }

    /// Returns the names of the networks that the container is connected to.
    ///
    /// # Errors
    ///
    /// The engine did not answer.
    pub async fn networks(&self) -> Result<Vec<String>, TestError> {
        let mut names: Vec<String> = self.endpoints().await?.into_keys().collect();
        names.sort();
        Ok(names)
    }

    /// Stops every process in the container, as `docker pause` does. On return none of them runs, and none of them
    /// notices until [`thaw`](Self::thaw). Its published ports still accept connections, which then hang.
    ///
    /// # Errors
    ///
    /// The engine refused: the container does not run, or is frozen already.
    pub async fn freeze(&self) -> Result<(), TestError> {
        let frozen = self.breaks_all("frozen");
        let done = self.docker.pause_container(&self.id).await;
        self.accepted("freeze", frozen, done)?.made();
        self.happened(What::Paused);
        Ok(())
    }

    /// Continues a frozen container.
    ///
    /// # Errors
    ///
    /// The engine refused: the container is not frozen.
    pub async fn thaw(&self) -> Result<(), TestError> {
        let resumed = (!self.hits_all()).then_some(What::Resumed);
        let resumed = Step::begin(self.record.as_ref(), resumed);
        let done = self.docker.unpause_container(&self.id).await;
        self.accepted("thaw", resumed, done)?.made();
        self.healed_for_all("frozen");
        Ok(())
    }

    /// Kills the container (SIGKILL), even while it is frozen: then nothing in it runs again. On return, it is dead.
    ///
    /// # Errors
    ///
    /// The engine refused: the container does not run.
    pub async fn kill(&self) -> Result<(), TestError> {
        let down = self.breaks_all("down");
        let signal = KillContainerOptionsBuilder::new().signal("SIGKILL").build();
        let done = self.docker.kill_container(&self.id, Some(signal)).await;
        let down = self.accepted("kill", down, done)?;
        if self.is_frozen().await? {
            // Not every engine unpauses before a kill, and frozen processes do not die. If the engine already did it,
            // this request is refused.
            drop(self.docker.unpause_container(&self.id).await);
        }
        let until = WaitContainerOptionsBuilder::new()
            .condition("not-running")
            .build();
        match self
            .docker
            .wait_container(&self.id, Some(until))
            .next()
            .await
        {
            // This client reports the exit status as an error; the container has ended, as wanted.
            Some(Ok(_) | Err(Error::DockerContainerWaitError { .. })) => {}
            Some(Err(error)) => return Err(self.failed("await the end of", &error)),
            None => {
                let text = format!("{self} was killed, and nobody says that it ended");
                return Err(refused(text));
            }
        }
        down.made();
        self.happened(What::Killed);
        // Frozen processes that were killed are dead, too.
        self.healed_for_all("frozen");
        Ok(())
    }

    /// Asks the container to end (SIGTERM, or the signal that its image names) and kills it after `grace`, which is
    /// rounded up to seconds. On return it has ended. A frozen container is [thawed](Self::thaw) first, because it
    /// could not react otherwise; that is recorded too.
    ///
    /// A recorder receives [`What::Killed`] after the end, because the process is dead then. If a test measures how
    /// fast a node hands over, the node records [`What::Left`] itself before it shuts down.
    ///
    /// # Errors
    ///
    /// The engine refused.
    pub async fn stop(&self, grace: Duration) -> Result<(), TestError> {
        if self.is_frozen().await? {
            self.thaw().await?;
        }
        let down = self.breaks_all("down");
        let seconds = grace.as_secs() + u64::from(grace.subsec_nanos() > 0);
        let seconds = i32::try_from(seconds).unwrap_or(i32::MAX);
        let options = StopContainerOptionsBuilder::new().t(seconds).build();
        let docker = self.docker.clone();
        // The client's own time limit must be longer than the grace period.
        let docker = docker.with_timeout(grace + engine::PATIENCE);
        let done = docker.stop_container(&self.id, Some(options)).await;
        self.accepted("stop", down, done)?.made();
        self.happened(What::Killed);
        Ok(())
    }

    /// Starts the container again after it has ended. It keeps its files. A published port may have changed
    /// ([`address`](Self::address)). It stays cut from the same networks.
    ///
    /// # Errors
    ///
    /// The engine refused.
    pub async fn start(&self) -> Result<(), TestError> {
        let done = self.docker.start_container(&self.id, None).await;
        done.map_err(|error| self.failed("start", &error))?;
        self.healed_for_all("down");
        Ok(())
    }

    /// Cuts the container from one network, by the name that the engine uses (compose prepends the project:
    /// `shop_backend`).
    ///
    /// The engine removes the container's interface. Requests of the container there fail at once, unlike with a broken
    /// cable, and packets to it are lost. Its published ports disappear with the network that they belong to. A
    /// [`Proxy`](super::Proxy) breaks single connections, and one direction of them.
    ///
    /// # Errors
    ///
    /// It is not connected to that network (the text lists its networks); the engine refused.
    pub async fn cut(&self, network: &str) -> Result<(), TestError> {
        let mut endpoints = self.endpoints().await?;
        let Some(endpoint) = endpoints.remove(network) else {
            let mut others: Vec<String> = endpoints.into_keys().collect();
            others.sort();
            let text = format!("{self} is not connected to {network}, but to {others:?}");
            return Err(TestError::new(ErrorKind::InvalidInput, text));
        };
        self.disconnect(network, endpoint).await
    }

    /// Cuts the container from every network that it is connected to.
    ///
    /// # Errors
    ///
    /// It is connected to no network; the engine refused.
    pub async fn cut_all(&self) -> Result<(), TestError> {
        let endpoints = self.endpoints().await?;
        if endpoints.is_empty() {
            let text = format!("{self} is not connected to any network");
            return Err(TestError::new(ErrorKind::InvalidInput, text));
        }
        for (network, endpoint) in endpoints {
            self.disconnect(&network, endpoint).await?;
        }
        Ok(())
    }

    /// Connects the container again to all networks that this value cut it from, with its aliases and fixed addresses
    /// there. (A plain `docker network connect` would lose the names that docker-compose gave.) An address that the
    /// engine chose may change.
    ///
    /// # Errors
    ///
    /// The engine refused; the rest can be tried again.
    pub async fn heal(&self) -> Result<(), TestError> {
        loop {
            let next = self.cuts().last().cloned();
            let Some((network, endpoint)) = next else {
                return Ok(());
            };
            let request = NetworkConnectRequest {
                container: self.id.clone(),
                endpoint_config: Some(endpoint),
            };
            let done = self.docker.connect_network(&network, request).await;
            done.map_err(|error| self.failed(&format!("connect network {network} to"), &error))?;
            self.cuts().retain(|(other, _)| *other != network);
            self.healed(&cut_from(&network));
        }
    }

    async fn disconnect(&self, network: &str, endpoint: EndpointSettings) -> Result<(), TestError> {
        let request = NetworkDisconnectRequest {
            container: self.id.clone(),
            force: None,
        };
        let cut = self.breaks(&cut_from(network));
        // The cut is noted before the request, so that a caller that drops this future halfway can still heal.
        let endpoint = asked_for(endpoint, &self.id);
        self.cuts().push((network.to_owned(), endpoint));
        let done = self.docker.disconnect_network(network, request).await;
        if let Err(Error::DockerResponseServerError { .. }) = &done {
            // The engine refused, so the container is connected as before.
            self.cuts().retain(|(other, _)| other != network);
        }
        let doing = format!("disconnect network {network} from");
        self.accepted(&doing, cut, done)?.made();
        Ok(())
    }

    fn cuts(&self) -> std::sync::MutexGuard<'_, Vec<(String, EndpointSettings)>> {
        self.cuts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn inspect(&self) -> Result<ContainerInspectResponse, TestError> {
        let found = self.docker.inspect_container(&self.id, None).await;
        found.map_err(|error| self.failed("inspect", &error))
    }

    async fn endpoints(&self) -> Result<HashMap<String, EndpointSettings>, TestError> {
        let settings = self.inspect().await?.network_settings;
        Ok(settings
            .and_then(|settings| settings.networks)
            .unwrap_or_default())
    }

    async fn is_frozen(&self) -> Result<bool, TestError> {
        let state = self.inspect().await?.state;
        Ok(state.and_then(|state| state.paused).unwrap_or(false))
    }

    /// Records an event of the node's process.
    fn happened(&self, what: What) {
        if let Some(record) = self.record.as_ref().filter(|record| !record.hits_all()) {
            record.now(what);
        }
    }

    fn hits_all(&self) -> bool {
        self.record.as_ref().is_some_and(Record::hits_all)
    }

    fn breaks(&self, state: &str) -> Step<'_> {
        let name = self.fault(state);
        Step::begin(self.record.as_ref(), Some(What::Fault { name }))
    }

    /// Begins a fault for all nodes. The container of a single node records events of its process instead.
    fn breaks_all(&self, state: &str) -> Step<'_> {
        let all = self.record.as_ref().filter(|record| record.hits_all());
        let name = self.fault(state);
        Step::begin(all, Some(What::Fault { name }))
    }

    fn healed(&self, state: &str) {
        if let Some(record) = &self.record {
            let name = self.fault(state);
            record.now(What::Healed { name });
        }
    }

    fn healed_for_all(&self, state: &str) {
        if self.hits_all() {
            self.healed(state);
        }
    }

    fn fault(&self, state: &str) -> String {
        format!("{} {state}", self.name)
    }

    /// Ends a step as the engine's answer says: refused, or made. Without an answer it may have been made, and stays
    /// open.
    fn accepted<'a>(
        &self,
        doing: &str,
        step: Step<'a>,
        done: Result<(), Error>,
    ) -> Result<Step<'a>, TestError> {
        match done {
            Ok(()) => Ok(step),
            Err(error) => {
                if let Error::DockerResponseServerError { .. } = &error {
                    step.refused();
                }
                Err(self.failed(doing, &error))
            }
        }
    }

    fn failed(&self, doing: &str, error: &Error) -> TestError {
        engine::failed(doing, &self.to_string(), error)
    }
}

fn refused(text: String) -> TestError {
    TestError::new(ErrorKind::Refused, text)
}

fn cut_from(network: &str) -> String {
    format!("cut from {network}")
}

/// Returns the requested part of a container's connection; the rest is the engine's answer.
fn asked_for(endpoint: EndpointSettings, id: &str) -> EndpointSettings {
    // Engines before 26 show the short id as an alias, and add it by themselves.
    let aliases = endpoint.aliases.map(|mut aliases| {
        aliases.retain(|alias| !id.starts_with(alias.as_str()));
        aliases
    });
    EndpointSettings {
        aliases,
        ipam_config: endpoint.ipam_config,
        links: endpoint.links,
        driver_opts: endpoint.driver_opts,
        gw_priority: endpoint.gw_priority,
        ..EndpointSettings::default()
    }
}

impl fmt::Display for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = self.id.get(..12).unwrap_or(&self.id);
        write!(f, "container {} ({short})", self.name)
    }
}

impl fmt::Debug for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Container")
            .field("id", &self.id)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

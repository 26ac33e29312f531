//! Starts and restarts one etcd server, confirms that this server answers, and removes its folder at the end.
#![allow(clippy::disallowed_methods)] // tests run in real time

mod builder;
mod joining;
mod setup;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use etcd_client::Client;
use tempfile::TempDir;

use super::error::{Error, ErrorKind, Result};
use super::http;
use super::kv;
use super::ports::Port;
use super::process::Process;
pub use builder::EtcdBuilder;
use setup::{Setup, Version, new_folder};

/// How long a server may take until it serves.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// How long to wait for a page.
const PAGE: Duration = Duration::from_secs(5);

/// The text that etcd logs when another process has its port.
const PORT_TAKEN: &str = "address already in use";

/// etcd's own ports for clients and for peers, at addresses where no other process uses them.
const PORTS: [u16; 2] = [2379, 2380];

/// An etcd server on the loopback interface, in its own process. Dropping it kills the process and removes its folder;
/// if this process is killed, both go too (on Unix).
#[derive(Debug)]
pub struct Etcd {
    // Before the folder, so that the process is gone when the folder is removed.
    process: Option<Process>,
    setup: Setup,
    /// The member's id, once its own peer port reported it.
    member: Option<u64>,
    folder: TempDir,
}

/// The reason why a server does not serve.
enum Failure {
    PortTaken(String),
    Other(Error),
}

impl Etcd {
    /// Starts a server with default settings.
    ///
    /// The binary is the one that the variable `ELDEST_ETCD_BIN` names, else the vendored one.
    ///
    /// # Errors
    ///
    /// [`Missing`](ErrorKind::Missing): there is no binary. [`NotServing`](ErrorKind::NotServing): it does not serve within
    /// 20 s; the message quotes its log. [`Machine`](ErrorKind::Machine): there is no folder or no port for it.
    pub async fn start() -> Result<Self> {
        Self::builder().start().await
    }

    /// Returns a builder for a server or a cluster with other settings.
    pub fn builder() -> EtcdBuilder {
        EtcdBuilder::default()
    }

    /// Returns `http://127.0.0.1:PORT`, for clients.
    pub fn endpoint(&self) -> String {
        self.setup.client.url()
    }

    /// Returns `127.0.0.1:PORT`, for [`Proxy::start`](super::Proxy::start).
    pub fn address(&self) -> String {
        self.setup.client.address()
    }

    /// Returns `https://127.0.0.1:PORT`, for clients by TLS; `None` without [`EtcdBuilder::tls`].
    pub fn tls_endpoint(&self) -> Option<String> {
        self.setup.tls_url()
    }

    /// Returns a new client with default options, connected to this server alone (feature `etcd-client`). Without the
    /// feature, [`get`](Self::get), [`put`](Self::put) and [`delete`](Self::delete) do what most tests need.
    ///
    /// # Panics
    ///
    /// Never: without a user, a client does no I/O before its first call.
    #[cfg(feature = "etcd-client")]
    pub async fn client(&self) -> Client {
        self.connect().await
    }

    /// Reads the value of a key; `None` if there is no such key.
    ///
    /// # Errors
    ///
    /// [`Unreachable`](ErrorKind::Unreachable): the server does not answer within 5 s. [`Refused`](ErrorKind::Refused):
    /// it answers with an error.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        kv::get(self.connect().await, key.as_ref()).await
    }

    /// Writes a key, as an operator or another program would.
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get); it may have been written.
    pub async fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        kv::put(self.connect().await, key.as_ref(), value.as_ref()).await
    }

    /// Deletes a key, as an operator would: a leader's, for example. Returns `false` if there was no such key.
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get); it may have been deleted.
    pub async fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        kv::delete(self.connect().await, key.as_ref()).await
    }

    pub(super) async fn connect(&self) -> Client {
        let client = Client::connect([self.endpoint()], None).await;
        client.expect("the endpoint is a valid address, and nothing is sent yet")
    }

    /// Returns the member's name, unique to this server.
    pub fn name(&self) -> &str {
        &self.setup.name
    }

    /// Returns the server's version, such as `3.7.2`.
    pub fn version(&self) -> &str {
        &self.setup.version.text
    }

    /// Returns the server's process id, unless it was killed.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    /// Returns the folder of the server's data.
    pub fn data_dir(&self) -> &Path {
        &self.setup.data
    }

    /// Returns everything that the server has logged so far, over all starts.
    pub fn log(&self) -> String {
        let log = std::fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Stops the process (SIGSTOP): connections stay open, and nothing answers. On return, the process no longer runs.
    /// On a killed server, the call does nothing.
    #[cfg(unix)]
    pub fn pause(&self) {
        if let Some(process) = &self.process {
            process.pause();
        }
    }

    /// Continues a paused process (SIGCONT).
    #[cfg(unix)]
    pub fn resume(&self) {
        if let Some(process) = &self.process {
            process.resume();
        }
    }

    /// Kills the process (SIGKILL), even a paused one. On return, it is gone; its data and its ports are kept.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Ends the server as an operator would (SIGTERM), and waits until it has ended. If it leads a cluster, it hands
    /// the leadership over first. Its data and its ports are kept. If it does not run, the call does nothing.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](ErrorKind::TimedOut): it did not end within 20 s, and was killed.
    #[cfg(unix)]
    pub async fn stop(&mut self) -> Result<()> {
        let Some(process) = &mut self.process else {
            return Ok(());
        };
        process.terminate();
        let deadline = Instant::now() + START_DEADLINE;
        // This loop does not use `eventually`, for the reason given in `served`.
        while process.exited().is_none() {
            if Instant::now() >= deadline {
                self.kill();
                let text = format!("etcd has not ended within {START_DEADLINE:?}");
                return Err(Error::new(ErrorKind::TimedOut, text));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.kill();
        Ok(())
    }

    /// Starts the server again, killing it first if need be, with the same ports and data, and waits until it serves.
    ///
    /// A cluster's member does not serve before a quorum runs: to restart several at once,
    /// see [`EtcdCluster::restart`](crate::EtcdCluster::restart).
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub async fn restart(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            self.kill();
            match self.launch().await {
                Ok(()) => return Ok(()),
                // The port is ours, so this passes soon; perhaps a connection of the old process still has it.
                Err(Failure::PortTaken(_)) if Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(failure) => return Err(failure.into()),
            }
        }
    }

    /// Uses another binary from the next restart on, as an upgrade does.
    ///
    /// # Errors
    ///
    /// [`Missing`](ErrorKind::Missing): it does not report its version.
    pub fn set_binary(&mut self, binary: impl Into<PathBuf>) -> Result<()> {
        let binary = binary.into();
        self.setup.version = Version::of(&binary)?;
        self.setup.binary = binary;
        Ok(())
    }

    /// Adds an argument from the next restart on, such as `--force-new-cluster`.
    pub fn add_arg(&mut self, arg: impl Into<OsString>) {
        self.setup.options.args.push(arg.into());
    }

    /// Reads a metric: the sum over all samples with that name and at least the given labels, or zero if there is none.
    /// For example `etcd_mvcc_put_total` or `grpc_server_handled_total{grpc_method="Put",grpc_code="OK"}`.
    ///
    /// # Panics
    ///
    /// The server does not answer within 5 s, or `query` is no metric; see [`try_metric`](Self::try_metric).
    pub async fn metric(&self, query: &str) -> f64 {
        match self.try_metric(query).await {
            Ok(value) => value,
            Err(error) => panic!("no metric `{query}`: {error:?}"),
        }
    }

    /// Reads a metric as [`metric`](Self::metric) does, for servers that may be down.
    ///
    /// # Errors
    ///
    /// [`Unreachable`](ErrorKind::Unreachable): the server does not answer within 5 s.
    /// [`InvalidInput`](ErrorKind::InvalidInput): `query` is no metric.
    pub async fn try_metric(&self, query: &str) -> Result<f64> {
        let page = http::get(&self.address(), "/metrics", PAGE).await?;
        http::sum(&page, query)
    }

    /// Starts the process and waits until it serves.
    async fn launch(&mut self) -> Result<(), Failure> {
        let log_before = self.log().len();
        let log = self.open_log().map_err(Failure::of_log)?;
        let mut command = self.setup.command();
        let copy = log.try_clone().map_err(Failure::of_log)?;
        command.stdin(Stdio::null()).stdout(copy);
        command.stderr(log);
        let spawned = Process::spawn(&mut command, self.folder.path()).map_err(|error| {
            let text = format!("cannot run {}", self.setup.binary.display());
            Failure::Other(Error::because(ErrorKind::Missing, text, error))
        })?;
        self.process = Some(spawned);
        let mut missing = String::new();
        let served = tokio::time::timeout(START_DEADLINE, self.served(&mut missing));
        let problem = match served.await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(status)) => format!("etcd ended ({status})"),
            Err(_) => format!("etcd does not serve within {START_DEADLINE:?} ({missing})"),
        };
        self.kill();
        let log = self.log();
        let log = log.get(log_before..).unwrap_or(&log);
        let binary = self.setup.binary.display();
        let text = format!(
            "{problem}: {binary} {}; its log:\n{log}",
            self.setup.version.text
        );
        Err(if log.contains(PORT_TAKEN) {
            Failure::PortTaken(text)
        } else {
            Failure::Other(Error::new(ErrorKind::NotServing, text))
        })
    }

    /// Waits until the server serves, or has ended. Reports what is missing so far.
    async fn served(&mut self, missing: &mut String) -> Result<(), ExitStatus> {
        // This loop does not use `eventually`, because the compiler could not see that the future is `Send`.
        loop {
            if let Some(status) = self.process.as_mut().and_then(Process::exited) {
                return Err(status);
            }
            match self.serves().await {
                Ok(()) => return Ok(()),
                Err(error) => *missing = format!("{error:?}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Checks that the server is ours and answers linearizable reads.
    async fn serves(&mut self) -> Result<()> {
        // An alarm that a test set does not count as a failure.
        let path = "/health?exclude=NOSPACE&exclude=CORRUPT";
        let page = http::get(&self.address(), path, Duration::from_secs(1)).await?;
        let health: serde_json::Value = serde_json::from_str(&page).unwrap_or_default();
        if health["health"] != "true" {
            return Err(not_serving(format!("unhealthy: {page}")));
        }
        // This check comes last, because it reads all metrics and so costs more than the rest.
        self.recognise().await
    }

    /// Checks that the server behind the client port is ours: it must have the id that the peer port reports for our
    /// name. Both pages need no authentication, so this works with every configuration of the server.
    async fn recognise(&mut self) -> Result<()> {
        let limit = Duration::from_secs(1);
        let member = if let Some(member) = self.member {
            member
        } else {
            let page = http::get(&self.setup.peer.address(), "/members", limit).await?;
            let members: serde_json::Value = serde_json::from_str(&page).unwrap_or_default();
            let mut members = members.as_array().into_iter().flatten();
            let own = members.find(|member| member["name"] == self.setup.name);
            let id = own.and_then(|own| own["id"].as_u64());
            *self
                .member
                .insert(id.ok_or_else(|| not_serving("not yet a member by its name"))?)
        };
        let page = http::get(&self.address(), "/metrics", limit).await?;
        let own = format!(r#"etcd_server_id{{server_id="{member:x}"}}"#);
        if http::sum(&page, &own)? > 0.0 {
            Ok(())
        } else {
            Err(not_serving(format!("{} is not its port", self.address())))
        }
    }

    fn open_log(&self) -> std::io::Result<std::fs::File> {
        let mut options = std::fs::File::options();
        options.create(true).append(true).open(self.log_path())
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("etcd.log")
    }

    /// Prepares `count` members of one new cluster, without starting them.
    fn prepare(options: &EtcdBuilder, count: usize) -> Result<Vec<Self>> {
        let binary = options.find_binary()?;
        let version = Version::of(&binary)?;
        let token = format!("eldest-{}-{:08x}", std::process::id(), fastrand::u32(..));
        let parts = (1..=count)
            .map(|number| {
                let place = options.places.get(number - 1);
                let (client, peer) = match place {
                    None => (Port::free()?, Port::free()?),
                    Some(place) => PORTS
                        .map(|port| Port::elsewhere(place.address, port))
                        .into(),
                };
                let has_tls = options.certificate.is_some() && place.is_none();
                let tls = has_tls.then(Port::free).transpose()?;
                let through = place.map(|place| place.command.clone());
                let name = format!("{token}-{number}");
                Ok((name, through.unwrap_or_default(), client, tls, peer))
            })
            .collect::<Result<Vec<_>>>()?;
        let members: Vec<String> = parts
            .iter()
            .map(|(name, _, _, _, peer)| format!("{name}={}", peer.url()))
            .collect();
        let members = members.join(",");
        parts
            .into_iter()
            .map(|(name, through, client, tls, peer)| {
                let folder = new_folder()?;
                let data = match &options.data_dir {
                    None => folder.path().join("data"),
                    Some(data) if count == 1 => data.clone(),
                    Some(data) => data.join(&name),
                };
                Ok(Self {
                    process: None,
                    setup: Setup {
                        options: options.clone(),
                        through,
                        binary: binary.clone(),
                        version: version.clone(),
                        name,
                        data,
                        client,
                        tls,
                        peer,
                        members: members.clone(),
                        joins: false,
                        token: token.clone(),
                    },
                    member: None,
                    folder,
                })
            })
            .collect()
    }
}

/// Starts all members that do not run, at the same time, and waits until all serve.
pub(super) async fn restart_stopped(members: &mut [Etcd]) -> Result<()> {
    let stopped = members.iter_mut().filter(|member| member.process.is_none());
    futures::future::try_join_all(stopped.map(Etcd::restart)).await?;
    Ok(())
}

async fn launch_all(members: &mut [Etcd]) -> Result<(), Failure> {
    futures::future::try_join_all(members.iter_mut().map(Etcd::launch)).await?;
    Ok(())
}

fn not_serving(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::NotServing, text)
}

impl Failure {
    fn of_log(error: std::io::Error) -> Self {
        let text = "cannot open etcd's log";
        Self::Other(Error::because(ErrorKind::Machine, text, error))
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::PortTaken(text) => not_serving(text),
            Failure::Other(error) => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_taken_port_is_distinguished_from_other_failures_and_goes_by()
    -> Result<(), eldest::BoxError> {
        let mut members = Etcd::prepare(&EtcdBuilder::default(), 1)?;
        let etcd = &mut members[0];
        let taken = std::net::TcpListener::bind(etcd.setup.peer.address())?;
        let failure = etcd.launch().await;
        assert!(matches!(failure, Err(Failure::PortTaken(_))));
        drop(taken);
        etcd.restart().await?;
        Ok(())
    }

    #[tokio::test]
    async fn server_of_another_cluster_on_the_port_is_recognised() -> Result<(), eldest::BoxError> {
        let mut etcd = Etcd::start().await?;
        etcd.recognise().await?;
        let other = Etcd::start().await?;
        etcd.kill();
        etcd.setup.client = other.setup.client;
        let error = etcd.serves().await.expect_err("another server");
        assert!(error.to_string().contains("not its port"), "{error}");
        Ok(())
    }

    /// The loopback interface has many addresses, and no other process uses these.
    #[tokio::test]
    #[cfg(target_os = "linux")]
    async fn members_run_where_their_command_places_them() -> Result<(), eldest::BoxError> {
        let mut builder = Etcd::builder();
        let (a, b) = (fastrand::u8(1..=250), fastrand::u8(1..=250));
        for number in 1..=3 {
            let address = std::net::Ipv4Addr::new(127, a, b, number);
            builder = builder.member_at(address.into(), ["env", "ELDEST_PLACE=here"]);
        }
        let cluster = builder.start_cluster(3).await?;
        let endpoints = [1, 2, 3].map(|number| format!("http://127.{a}.{b}.{number}:2379"));
        assert_eq!(cluster.endpoints(), endpoints);
        for member in cluster.members() {
            let pid = member.pid().ok_or("it runs")?;
            let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}"));
            assert!(read("environ")?.contains("ELDEST_PLACE=here"));
            // The command became etcd, so killing the command kills etcd.
            assert!(
                read("cmdline")?.contains(member.name()) && !read("cmdline")?.starts_with("env")
            );
        }
        Ok(())
    }
}

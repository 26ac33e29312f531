//! Configures servers before they start, and starts them.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::{Etcd, Failure, launch_all};
use crate::error::{Error, ErrorKind, Result};

/// The variable that names the binary to use instead of the vendored one.
const BINARY_VARIABLE: &str = "ELDEST_ETCD_BIN";

/// Configures an [`Etcd`] or an [`EtcdCluster`](crate::EtcdCluster) before it starts.
#[must_use = "a builder does nothing until it starts an etcd"]
#[derive(Debug, Clone, Default)]
pub struct EtcdBuilder {
    pub(super) binary: Option<PathBuf>,
    pub(super) heartbeat: Option<Duration>,
    pub(super) election_timeout: Option<Duration>,
    pub(super) args: Vec<OsString>,
    pub(super) env: Vec<(OsString, OsString)>,
    pub(super) data_dir: Option<PathBuf>,
    pub(super) places: Vec<Place>,
    /// The certificate and its key, if the members serve TLS.
    pub(super) certificate: Option<[PathBuf; 2]>,
}

/// The place where a member runs, if not on the loopback interface.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) address: IpAddr,
    /// The command that starts it there.
    pub(super) command: Vec<OsString>,
}

impl EtcdBuilder {
    /// Sets etcd's heartbeat interval, in whole milliseconds; 100 ms by default.
    pub fn heartbeat(mut self, interval: Duration) -> Self {
        self.heartbeat = Some(interval);
        self
    }

    /// Sets etcd's election timeout, in whole milliseconds; 1 s by default, and at least five heartbeats. The shortest
    /// TTL of a lease is 1.5 times this, rounded up to seconds.
    pub fn election_timeout(mut self, timeout: Duration) -> Self {
        self.election_timeout = Some(timeout);
        self
    }

    /// Adds an argument, such as `--quota-backend-bytes=20000000`.
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds an environment variable. Variables of this process reach the server too, except etcd's own (`ETCD_...`).
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Keeps the data in this folder, which is then not removed; each member of a cluster has its own folder below it.
    /// The default is a temporary folder.
    pub fn data_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.data_dir = Some(folder.into());
        self
    }

    /// Sets where the next member of a cluster runs, beginning with the first: at an address other than the loopback
    /// interface's. etcd's own command line is appended to `command`, which must run it, for example `["nsenter",
    /// "--net=/run/netns/a"]`. The member serves clients at port 2379 and its peers at port 2380. Both ports must be
    /// free there, and reachable from here.
    pub fn member_at(
        mut self,
        address: IpAddr,
        command: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Self {
        let command = command.into_iter().map(Into::into).collect();
        self.places.push(Place { address, command });
        self
    }

    /// Serves clients by TLS too, at a port of its own ([`Etcd::tls_endpoint`]), with the certificate and the key in these
    /// files (PEM). etcd reads them for each connection. To demand certificates from clients, add the arguments
    /// `--client-cert-auth` and `--trusted-ca-file=FILE`. A member at an address of its own
    /// ([`member_at`](Self::member_at)) serves no TLS.
    pub fn tls(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.certificate = Some([certificate.into(), key.into()]);
        self
    }

    /// Sets the binary, which takes precedence over the variable `ELDEST_ETCD_BIN` and the vendored binary.
    pub fn binary(mut self, binary: impl Into<PathBuf>) -> Self {
        self.binary = Some(binary.into());
        self
    }

    /// Starts one server.
    ///
    /// # Errors
    ///
    /// As for [`Etcd::start`].
    pub async fn start(self) -> Result<Etcd> {
        let mut members = self.start_members(1).await?;
        members
            .pop()
            .ok_or_else(|| Error::new(ErrorKind::InvalidInput, "no member"))
    }

    pub(crate) async fn start_members(self, count: usize) -> Result<Vec<Etcd>> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let mut members = Etcd::prepare(&self, count)?;
            match launch_all(&mut members).await {
                Ok(()) => return Ok(members),
                // Another process took a port after we chose it and before the server used it; the next attempt uses
                // other ports.
                Err(Failure::PortTaken(_)) if attempts < 5 => {}
                Err(failure) => return Err(failure.into()),
            }
        }
    }

    pub(super) fn find_binary(&self) -> Result<PathBuf> {
        if let Some(binary) = &self.binary {
            return Ok(binary.clone());
        }
        if let Some(binary) = std::env::var_os(BINARY_VARIABLE) {
            return Ok(binary.into());
        }
        let vendored =
            etcd_bin_vendored::etcd_bin_path().map_err(|error| missing(&error.to_string()))?;
        if vendored.exists() {
            Ok(vendored.to_owned())
        } else {
            let path = vendored.display();
            Err(missing(&format!("{path} is not on this machine")))
        }
    }
}

fn missing(problem: &str) -> Error {
    let text = format!("{problem}; name a binary by {BINARY_VARIABLE}");
    Error::new(ErrorKind::Missing, text)
}

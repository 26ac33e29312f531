//! Holds everything that is needed to start a server repeatedly: its command line, its version and a folder for it.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};

use tempfile::TempDir;

use super::builder::EtcdBuilder;
use crate::error::{Error, ErrorKind, Result};
use crate::ports::Port;

/// Everything that is needed to start the server repeatedly.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) options: EtcdBuilder,
    /// The program and arguments that precede the binary.
    pub(super) through: Vec<OsString>,
    pub(super) binary: PathBuf,
    pub(super) version: Version,
    pub(super) name: String,
    pub(super) data: PathBuf,
    pub(super) client: Port,
    /// The port for clients over TLS, if the server has one.
    pub(super) tls: Option<Port>,
    pub(super) peer: Port,
    /// `name=peer url` of every member.
    pub(super) members: String,
    /// True if the member joins a cluster that already exists.
    pub(super) joins: bool,
    /// The token that separates clusters which reach each other by accident.
    pub(super) token: String,
}

impl Setup {
    /// Returns this member's entry in the list of members.
    pub(super) fn entry(&self) -> String {
        format!("{}={}", self.name, self.peer.url())
    }

    /// Returns the URL for clients over TLS, if the server has one.
    pub(super) fn tls_url(&self) -> Option<String> {
        let port = self.tls.as_ref()?;
        Some(format!("https://{}", port.address()))
    }

    pub(super) fn command(&self) -> Command {
        let binary = self.binary.as_os_str().to_owned();
        let words: Vec<OsString> = self.through.iter().cloned().chain([binary]).collect();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        let inherited = std::env::vars_os().map(|(name, _)| name);
        for name in inherited.filter(|name| is_etcd_s(name)) {
            command.env_remove(name); // each would count as an argument
        }
        let mut flag = |name: &str, value: &dyn AsRef<OsStr>| {
            command.arg(format!("--{name}")).arg(value.as_ref());
        };
        flag("name", &self.name);
        flag("data-dir", &self.data);
        let (mut listen, mut advertise) = (self.client.url(), self.client.url());
        if let Some((url, [certificate, key])) =
            self.tls_url().zip(self.options.certificate.as_ref())
        {
            flag("cert-file", certificate);
            flag("key-file", key);
            listen = format!("{listen},{url}");
            advertise = url;
        }
        flag("listen-client-urls", &listen);
        flag("advertise-client-urls", &advertise);
        flag("listen-peer-urls", &self.peer.url());
        flag("initial-advertise-peer-urls", &self.peer.url());
        flag("initial-cluster", &self.members);
        flag("initial-cluster-token", &self.token);
        if self.joins {
            flag("initial-cluster-state", &"existing");
        }
        flag("log-level", &"error");
        if let Some(interval) = self.options.heartbeat {
            flag("heartbeat-interval", &interval.as_millis().to_string());
        }
        if let Some(timeout) = self.options.election_timeout {
            flag("election-timeout", &timeout.as_millis().to_string());
        }
        if self.version.number >= (3, 5) {
            command.arg("--unsafe-no-fsync"); // what is tested is never the loss of power
        } else {
            command.args(["--logger", "zap"]); // the only one later, and the only one with levels
        }
        command.args(&self.options.args);
        command.envs(self.options.env.iter().map(|(name, value)| (name, value)));
        command
    }
}

fn is_etcd_s(variable: &OsStr) -> bool {
    variable.to_string_lossy().starts_with("ETCD_")
}

/// Creates a temporary folder.
///
/// The folder is on the disk, not in `/dev/shm`: there, the 128 MB that etcd allocates ahead for its log are pages that
/// the kernel clears, which takes most of the processor's time of a start.
pub(super) fn new_folder() -> Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("eldest-etcd-").tempdir().map_err(|error| {
        Error::because(ErrorKind::Machine, "cannot make a temporary folder", error)
    })
}

/// The version that a binary names.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Version {
    pub(super) text: String,
    number: (u32, u32),
}

impl Version {
    /// Asks the binary for its version, once per process.
    pub(super) fn of(binary: &Path) -> Result<Self> {
        static KNOWN: LazyLock<Mutex<HashMap<PathBuf, Version>>> = LazyLock::new(Mutex::default);
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(version) = known.get(binary) {
            return Ok(version.clone());
        }
        let output = Command::new(binary)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .map_err(|error| {
                let text = format!("cannot run {}", binary.display());
                Error::because(ErrorKind::Missing, text, error)
            })?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = Self::parse(&text).ok_or_else(|| {
            let text = format!("{} --version: no version in `{text}`", binary.display());
            Error::new(ErrorKind::Missing, text)
        })?;
        known.insert(binary.to_owned(), version.clone());
        Ok(version)
    }

    fn parse(output: &str) -> Option<Self> {
        let text = output
            .lines()
            .find_map(|line| line.strip_prefix("etcd Version: "))?
            .trim();
        let mut numbers = text.split('.').map(str::parse);
        let number = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        Some(Self {
            text: text.to_owned(),
            number,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Version;

    #[test]
    fn the_version_is_read_from_what_etcd_prints() {
        let version = Version::parse("etcd Version: 3.10.2\nGit SHA: 0abc\n").expect("a version");
        assert_eq!((version.number, version.text.as_str()), ((3, 10), "3.10.2"));
        assert_eq!(Version::parse("zsh: not found"), None);
    }
}

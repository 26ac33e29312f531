//! Makes the certificates of etcd, the nodes and the agent, and replaces them by right and by wrong ones.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use eldest_fixtures::tls::{self, Authority, HOST, Signed};
use eldest_testing::EtcdBuilder;

use crate::Result;

/// The name of the files of all members of etcd.
pub(crate) const ETCD: &str = "etcd";
/// The name of the agent's files.
pub(crate) const AGENT: &str = "agent";
/// The name of the files of the second process under the first node's identity.
pub(crate) const TWIN: &str = "n1-twin";
/// The variables that name a program's files (`eldest_node::tls`): authorities, certificate, private key.
const FILES: [&str; 3] = ["ETCD_CACERT", "ETCD_CERT", "ETCD_KEY"];
/// The file of the authorities that all trust.
const AUTHORITIES: &str = "ca.pem";

/// The files of etcd, the agent and the nodes, in one folder.
pub(crate) struct Certificates {
    folder: PathBuf,
    /// All names to which a certificate was issued.
    names: Vec<String>,
    authority: RefCell<Authority>,
}

/// The reason why a certificate is refused.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wrong {
    Expired,
    /// The authority that signed it is not trusted.
    Unknown,
}

impl Certificates {
    /// Issues certificates to etcd, the agent and that many nodes, in a folder below this one.
    pub(crate) fn new(folder: &Path, nodes: usize) -> Result<Self> {
        let folder = folder.join("certificates");
        std::fs::create_dir(&folder)?;
        let nodes = (1..=nodes).map(|number| format!("n{number}"));
        let certificates = Self {
            folder,
            names: nodes
                .chain([ETCD, AGENT, TWIN].map(str::to_owned))
                .collect(),
            authority: RefCell::new(Authority::new()?),
        };
        certificates.trust(&[])?;
        certificates.issue_all()?;
        Ok(certificates)
    }

    /// Lets etcd serve TLS and demand certificates.
    pub(crate) fn demanded(&self, etcd: EtcdBuilder) -> EtcdBuilder {
        let [authorities, certificate, key] = self.files(ETCD);
        tls::demanding(etcd.tls(certificate, key), &authorities)
    }

    /// Returns the environment by which a program finds its files.
    pub(crate) fn environment(&self, name: &str) -> Vec<(&'static str, PathBuf)> {
        FILES.into_iter().zip(self.files(name)).collect()
    }

    /// Makes etcd, the agent and all nodes trust the present authority and these. etcd notices when it starts, the
    /// others when they connect.
    pub(crate) fn trust(&self, others: &[&Authority]) -> Result {
        let others: String = others.iter().map(|other| other.pem()).collect();
        let all = others + self.authority.borrow().pem();
        tls::replace(&self.folder, AUTHORITIES, &all)
    }

    /// Replaces all certificates by ones of this authority.
    pub(crate) fn issue_by(&self, authority: Authority) -> Result {
        self.authority.replace(authority);
        self.issue_all()
    }

    /// Replaces all certificates and keys.
    pub(crate) fn issue_all(&self) -> Result {
        self.names.iter().try_for_each(|name| self.issue(name))
    }

    /// Replaces the certificate and key of that name.
    pub(crate) fn issue(&self, name: &str) -> Result {
        self.put(name, &self.authority.borrow().sign(HOST)?)
    }

    /// Replaces the files of that name by some that are refused.
    pub(crate) fn spoil(&self, name: &str, wrong: Wrong) -> Result {
        let signed = match wrong {
            Wrong::Expired => {
                let past = tls::now().saturating_sub(Duration::from_secs(1));
                self.authority.borrow().sign_until(HOST, past)?
            }
            Wrong::Unknown => Authority::new()?.sign(HOST)?,
        };
        self.put(name, &signed)
    }

    fn put(&self, name: &str, signed: &Signed) -> Result {
        tls::identify(&self.folder, name, signed)
    }

    fn files(&self, name: &str) -> [PathBuf; 3] {
        let file = |name: &str| self.folder.join(name);
        [
            file(AUTHORITIES),
            file(&format!("{name}.pem")),
            file(&format!("{name}.key")),
        ]
    }
}

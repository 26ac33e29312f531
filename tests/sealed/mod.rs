//! Creates certificates, and starts an etcd that serves TLS and requires client certificates.
#![allow(dead_code)] // each test file uses its own part

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use eldest::BoxError;
use eldest_testing::eventually;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

type Result<T = ()> = std::result::Result<T, BoxError>;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Who signs certificates.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate and its key, in PEM.
pub(crate) struct Signed {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        // Each has a name of its own, by which its certificates are told from another's.
        let name = format!("authority {:x}", fastrand::u64(..));
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        let issuer = Issuer::new(params, key);
        Ok(Self { issuer, pem })
    }

    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    /// For that name or address, valid for decades.
    pub(crate) fn sign(&self, name: &str) -> Result<Signed> {
        self.signed(name, None)
    }

    /// Valid until that time since 1970, from long before.
    pub(crate) fn sign_until(&self, name: &str, end: Duration) -> Result<Signed> {
        self.signed(name, Some(end))
    }

    fn signed(&self, name: &str, end: Option<Duration>) -> Result<Signed> {
        let mut params = CertificateParams::new([name.to_owned()])?;
        if let Some(end) = end {
            params.not_after = date_time_ymd(1970, 1, 1) + end;
        }
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        let key = key.serialize_pem();
        Ok(Signed { certificate, key })
    }
}

/// Since 1970.
pub(crate) fn now() -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.expect("it is later")
}

/// An etcd that shows `server.pem` of its folder, and wants to see a certificate of an authority in `trusted.pem` as it
/// was at the start; and what it was given.
pub(crate) struct Sealed {
    pub(crate) endpoint: String,
    pub(crate) authority: Authority,
    _etcd: Child,
    folder: TempDir,
}

impl Sealed {
    /// With certificates of its authority for both sides: `ca.pem`, `client.pem` and `client.key`. It trusts those of
    /// `others` as well.
    pub(crate) async fn start(others: &[&Authority]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let authority = Authority::new()?;
        let trusted: String = { others.iter() }.map(|other| other.pem()).collect();
        replace(folder.path(), "trusted.pem", &(trusted + authority.pem()))?;
        replace(folder.path(), "ca.pem", authority.pem())?;
        for side in ["server", "client"] {
            identify(folder.path(), side, &authority.sign("127.0.0.1")?)?;
        }
        let mut attempts = 0;
        let (etcd, endpoint) = loop {
            attempts += 1;
            let (mut etcd, address) = launch(folder.path())?;
            let listens = eventually(PATIENCE, "it listens, or has ended", async || {
                match etcd.try_wait() {
                    Ok(None) => TcpStream::connect(&address).await.is_ok().then_some(true),
                    _ => Some(false),
                }
            });
            // Somebody may have taken a port between our look and the server's.
            if listens.await? && etcd.try_wait()?.is_none() {
                break (etcd, format!("https://{address}"));
            }
            assert!(attempts < 5, "etcd does not start");
        };
        Ok(Self {
            endpoint,
            authority,
            _etcd: etcd,
            folder,
        })
    }

    /// `host:port`.
    pub(crate) fn address(&self) -> &str {
        self.endpoint.trim_start_matches("https://")
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file anew, as one should: nobody sees half of it.
    pub(crate) fn replace(&self, name: &str, content: &str) -> Result {
        replace(self.folder.path(), name, content)
    }

    /// Replaces the certificate and the key of a side: `server`, which etcd reads for each connection, or another.
    pub(crate) fn identify(&self, side: &str, signed: &Signed) -> Result {
        identify(self.folder.path(), side, signed)
    }
}

fn identify(folder: &Path, side: &str, signed: &Signed) -> Result {
    replace(folder, &format!("{side}.pem"), &signed.certificate)?;
    replace(folder, &format!("{side}.key"), &signed.key)
}

fn replace(folder: &Path, name: &str, content: &str) -> Result {
    let new = folder.join(format!("{name}.new"));
    std::fs::write(&new, content)?;
    Ok(std::fs::rename(new, folder.join(name))?)
}

fn free_address() -> Result<String> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?.to_string())
}

/// The process, and where it will listen.
fn launch(folder: &Path) -> Result<(Child, String)> {
    let program = std::env::var_os("ELDEST_ETCD_BIN").map(PathBuf::from);
    let vendored = || etcd_bin_vendored::etcd_bin_path().map(Path::to_owned);
    let program = program.map_or_else(vendored, Ok)?;
    let address = free_address()?;
    let (client, peer) = (
        format!("https://{address}"),
        format!("http://{}", free_address()?),
    );
    let etcd = Command::new(program)
        .arg("--data-dir")
        .arg(folder.join("data"))
        .args(["--listen-client-urls", &client])
        .args(["--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer])
        .args(["--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}")])
        .args(["--log-level", "error", "--client-cert-auth"])
        .arg("--trusted-ca-file")
        .arg(folder.join("trusted.pem"))
        .arg("--cert-file")
        .arg(folder.join("server.pem"))
        .arg("--key-file")
        .arg(folder.join("server.key"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    Ok((etcd, address))
}

//! An etcd that shows a certificate and wants to see one.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use eldest::testing::eventually;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::common::{DONE, Result, SOON, UNAVAILABLE, eldest, run};

/// The etcd, its certificates and ours.
struct Sealed {
    endpoint: String,
    _etcd: Child,
    folder: TempDir,
}

fn free_port() -> Result<u16> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?.port())
}

/// An authority, and what it signed for both sides, as files.
fn certificates(folder: &Path) -> Result {
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    std::fs::write(folder.join("ca.pem"), authority.self_signed(&key)?.pem())?;
    let issuer = Issuer::new(authority, key);
    for side in ["server", "client"] {
        let key = KeyPair::generate()?;
        let signed = CertificateParams::new(["127.0.0.1".to_owned()])?.signed_by(&key, &issuer)?;
        std::fs::write(folder.join(format!("{side}.pem")), signed.pem())?;
        std::fs::write(folder.join(format!("{side}.key")), key.serialize_pem())?;
    }
    Ok(())
}

impl Sealed {
    fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        certificates(folder.path())?;
        let program = std::env::var_os("ELDEST_ETCD_BIN").map(PathBuf::from);
        let vendored = || etcd_bin_vendored::etcd_bin_path().map(Path::to_owned);
        let program = program.map_or_else(vendored, Ok)?;
        let endpoint = format!("https://127.0.0.1:{}", free_port()?);
        let peer = format!("http://127.0.0.1:{}", free_port()?);
        let file = |name: &str| folder.path().join(name);
        let etcd = Command::new(program)
            .arg("--data-dir")
            .arg(file("data"))
            .args(["--listen-client-urls", &endpoint])
            .args(["--advertise-client-urls", &endpoint])
            .args(["--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            .args(["--log-level", "error", "--client-cert-auth"])
            .arg("--trusted-ca-file")
            .arg(file("ca.pem"))
            .arg("--cert-file")
            .arg(file("server.pem"))
            .arg("--key-file")
            .arg(file("server.key"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self {
            endpoint,
            _etcd: etcd,
            folder,
        })
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }
}

#[tokio::test]
async fn certificates_are_shown_and_asked_for() -> Result {
    let sealed = Sealed::start()?;
    let (ca, cert, key) = (
        sealed.file("ca.pem"),
        sealed.file("client.pem"),
        sealed.file("client.key"),
    );
    let status = async |more: &[&str]| {
        let args = [
            "status",
            "--connect-timeout",
            "500ms",
            "--endpoints",
            &sealed.endpoint,
        ];
        run(eldest(&[&args, more].concat())).await
    };
    let all = ["--cacert", &ca, "--cert", &cert, "--key", &key];
    let shown = eventually(SOON, "it answers", async || {
        let shown = status(&all).await.ok()?;
        (shown.code == DONE).then_some(shown)
    })
    .await?;
    assert_eq!(shown.done().stdout, "nobody stands anywhere\n");
    // One without ours, and one that trusts this machine's authorities only.
    let unknown = status(&["--cacert", &ca]).await?;
    unknown.failed(UNAVAILABLE, &[&sealed.endpoint]);
    let untrusted = status(&["--cert", &cert, "--key", &key]).await?;
    untrusted.failed(UNAVAILABLE, &["invalid peer certificate"]);
    Ok(())
}

//! Tests the same answers by TLS, and a certificate that is replaced while the server runs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use eldest::{CancellationToken, Session};
use eldest_fixtures::hang::{closed, idle};
use eldest_fixtures::tls::{Authority, Signed};
use eldest_http::{Auth, Limits, Node, ServerCertificate, router, serve_tls};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::caller::raw;
use crate::limits::never_reads;
use crate::stage::{Result, SOON, options};

const REQUEST: &str = "GET /live HTTP/1.1\r\nHost: localhost\r\n";

/// A server, its files, and the authority that signs its certificate.
struct Stage {
    at: SocketAddr,
    authority: Authority,
    folder: TempDir,
}

impl Stage {
    async fn start(limits: Limits) -> Result<Self> {
        let authority = Authority::new()?;
        let folder = tempfile::tempdir()?;
        identify(folder.path(), &authority.sign("127.0.0.1")?)?;
        let certificate = ServerCertificate::from_files(
            folder.path().join("server.pem"),
            folder.path().join("server.key"),
        )?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let at = listener.local_addr()?;
        let session = Session::connect_lazy(["http://127.0.0.1:1"], options("a"))?;
        let node = Node::new().works_in(&session.election("e")?);
        let never = CancellationToken::new();
        let app = router(node, Auth::at(at));
        tokio::spawn(serve_tls(listener, app, limits, certificate, never));
        Ok(Self {
            at,
            authority,
            folder,
        })
    }

    /// Connects as a client that trusts the authority and no other.
    async fn connect(&self) -> Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(
            self.authority.pem().as_bytes(),
        )?)?;
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::from(self.at.ip());
        let stream = TcpStream::connect(self.at).await?;
        Ok(TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await?)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Replaces both files, the key first.
fn identify(folder: &Path, signed: &Signed) -> Result {
    for (name, content) in [
        ("server.key", &signed.key),
        ("server.pem", &signed.certificate),
    ] {
        let new = folder.join("new");
        std::fs::write(&new, content)?;
        std::fs::rename(new, folder.join(name))?;
    }
    Ok(())
}

/// Returns the certificate that the server showed.
fn shown(stream: &TlsStream<TcpStream>) -> Vec<u8> {
    let shown = stream.get_ref().1.peer_certificates();
    shown.expect("a certificate")[0].to_vec()
}

async fn is_answered(stream: &mut TlsStream<TcpStream>) -> Result {
    let request = format!("{REQUEST}\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut begin = [0; 12];
    tokio::time::timeout(SOON, stream.read_exact(&mut begin)).await??;
    assert_eq!(&begin, b"HTTP/1.1 200");
    Ok(())
}

#[tokio::test]
async fn node_serves_tls_and_shows_a_new_certificate_to_new_connections() -> Result {
    let stage = Stage::start(Limits::default()).await?;
    let mut first = stage.connect().await?;
    is_answered(&mut first).await?;
    let before = shown(&first);
    assert_eq!(shown(&stage.connect().await?), before);

    identify(stage.folder.path(), &stage.authority.sign("127.0.0.1")?)?;
    let mut second = stage.connect().await?;
    is_answered(&mut second).await?;
    let after = shown(&second);
    assert_ne!(after, before);
    // Files that cannot be used change nothing.
    let other = Authority::new()?.sign("127.0.0.1")?;
    for broken in [&other.key, "rubbish", ""] {
        std::fs::write(stage.file("server.key"), broken)?;
        assert_eq!(shown(&stage.connect().await?), after, "{broken:?}");
    }
    std::fs::remove_file(stage.file("server.pem"))?;
    assert_eq!(shown(&stage.connect().await?), after);
    identify(stage.folder.path(), &stage.authority.sign("127.0.0.1")?)?;
    assert_ne!(shown(&stage.connect().await?), after);

    let mut rest = vec![0; 4096];
    let read = tokio::time::timeout(SOON, first.read(&mut rest)).await??;
    assert!(read > 0, "the rest of the answer: it was not cut off");
    is_answered(&mut first).await?;
    Ok(())
}

#[tokio::test]
async fn caller_without_tls_or_silent_is_cut_off() -> Result {
    let limits = Limits::default().header_time(Duration::from_millis(200));
    let stage = Stage::start(limits).await?;
    let answer = raw(stage.at, format!("{REQUEST}\r\n")).await?;
    assert!(!answer.contains("HTTP/1.1"), "{answer:?}");
    closed(idle(stage.at, "\x16").await?, SOON).await?;
    // The limit holds after the handshake as well.
    let mut silent = stage.connect().await?;
    let mut end = Vec::new();
    let _ = tokio::time::timeout(SOON, silent.read_to_end(&mut end)).await?;
    Ok(())
}

#[test]
fn files_that_cannot_be_used_are_refused_by_name() -> Result {
    let folder = tempfile::tempdir()?;
    let (certificate, key) = (
        folder.path().join("server.pem"),
        folder.path().join("server.key"),
    );
    let refused = |part: &str| {
        let refused = ServerCertificate::from_files(&certificate, &key);
        let error = refused.expect_err(part).to_string();
        assert!(error.contains(part), "{part}: {error}");
    };
    refused("server.pem: ");
    identify(folder.path(), &Authority::new()?.sign("127.0.0.1")?)?;
    assert!(ServerCertificate::from_files(&certificate, &key).is_ok());
    std::fs::write(&key, "rubbish")?;
    refused("server.key: ");
    std::fs::write(&certificate, "rubbish")?;
    refused("server.");
    Ok(())
}

#[tokio::test]
async fn a_caller_that_takes_nothing_of_an_answer_is_cut_off() -> Result {
    let limits = Limits::default().write_time(Duration::from_millis(200));
    let stage = Stage::start(limits).await?;
    never_reads(stage.connect().await?).await?;
    Ok(())
}

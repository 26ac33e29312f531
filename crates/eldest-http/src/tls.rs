//! Serves TLS with a certificate from files, and replaces the certificate while it runs.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_rustls::server::TlsStream;

/// A server's certificate and its private key, in two PEM files.
///
/// Both files are checked for each new connection. Replace them (both by renaming, the key first), and later
/// connections receive the new certificate. While the files cannot be read, or do not fit together, the previous ones
/// stay in use and a warning is logged. Open connections continue.
///
/// The cryptography is ring's, unless the program installed another default for rustls. The server speaks TLS 1.2 and
/// 1.3, and HTTP/1.1.
///
/// ```no_run
/// # async fn example(node: eldest_http::Node, shutdown: eldest::CancellationToken) -> std::io::Result<()> {
/// use eldest_http::{Auth, Limits, ServerCertificate, router, serve_tls};
///
/// let certificate = ServerCertificate::from_files("/etc/node/tls.crt", "/etc/node/tls.key")?;
/// let listener = tokio::net::TcpListener::bind("0.0.0.0:8470").await?;
/// let auth = Auth::at(listener.local_addr()?).host("web1.internal").token("...");
/// serve_tls(listener, router(node, auth), Limits::default(), certificate, shutdown).await
/// # }
/// ```
pub struct ServerCertificate {
    certificate: PathBuf,
    key: PathBuf,
    shown: Mutex<Shown>,
}

/// The certificate for new connections.
struct Shown {
    /// The contents of the files at the last check.
    read: Result<Pem, String>,
    config: Arc<ServerConfig>,
}

/// The contents of both files.
#[derive(PartialEq, Eq)]
struct Pem {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl ServerCertificate {
    /// Reads the certificate, followed by its intermediate certificates, and its key.
    ///
    /// # Errors
    ///
    /// A file cannot be read, is not PEM, or the two do not fit together; the message names the files.
    pub fn from_files(
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> io::Result<Self> {
        let (certificate, key) = (certificate.into(), key.into());
        let pem = Pem::read(&certificate, &key)?;
        let config = pem.config(&certificate, &key)?;
        let read = Ok(pem);
        let shown = Mutex::new(Shown { read, config });
        Ok(Self {
            certificate,
            key,
            shown,
        })
    }

    /// Begins TLS with a caller, outside the runtime's threads because a file may be on a network.
    pub(super) async fn accept<S>(self: Arc<Self>, stream: S) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let present = tokio::task::spawn_blocking(move || self.present());
        TlsAcceptor::from(present.await?).accept(stream).await
    }

    /// Returns the configuration from the files now, or from the last usable ones.
    fn present(&self) -> Arc<ServerConfig> {
        let read = Pem::read(&self.certificate, &self.key);
        let read = read.map_err(|error| error.to_string());
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.read != read {
            let config = match &read {
                Ok(pem) => pem.config(&self.certificate, &self.key),
                Err(error) => Err(io::Error::other(error.clone())),
            };
            match config {
                Ok(config) => {
                    shown.config = config;
                    tracing::info!(target: "eldest::http", file = %self.certificate.display(), "certificate replaced");
                }
                Err(error) => {
                    tracing::warn!(target: "eldest::http", %error, "certificate not replaced");
                }
            }
            shown.read = read;
        }
        Arc::clone(&shown.config)
    }
}

impl fmt::Debug for ServerCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerCertificate")
            .field("certificate", &self.certificate)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl Pem {
    fn read(certificate: &Path, key: &Path) -> io::Result<Self> {
        let read = |file: &Path| {
            let named = |error: io::Error| {
                io::Error::new(error.kind(), format!("{}: {error}", file.display()))
            };
            std::fs::read(file).map_err(named)
        };
        Ok(Self {
            certificate: read(certificate)?,
            key: read(key)?,
        })
    }

    fn config(&self, certificate: &Path, key: &Path) -> io::Result<Arc<ServerConfig>> {
        let bad = |file: &Path, error: &dyn fmt::Display| {
            let message = format!("{}: {error}", file.display());
            io::Error::new(io::ErrorKind::InvalidData, message)
        };
        let chain = CertificateDer::pem_slice_iter(&self.certificate).collect::<Result<_, _>>();
        let chain: Vec<_> = chain.map_err(|error| bad(certificate, &error))?;
        let private = PrivateKeyDer::from_pem_slice(&self.key);
        let private = private.map_err(|error| bad(key, &error))?;
        let provider = CryptoProvider::get_default().cloned();
        let provider = provider.unwrap_or_else(|| Arc::new(ring::default_provider()));
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| {
                builder
                    .with_no_client_auth()
                    .with_single_cert(chain, private)
            });
        let mut config = config.map_err(|error: rustls::Error| bad(certificate, &error))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

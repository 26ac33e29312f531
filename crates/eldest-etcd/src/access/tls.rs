//! Holds the certificates for TLS, in files or in memory, and checks them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use etcd_client::{Certificate, Identity};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use serde_json::{Value, json};

use super::Env;

type Bytes = Result<Vec<u8>, String>;

/// The end of a PEM header that marks a certificate.
const CERTIFICATE: &str = "CERTIFICATE-----";
const PRIVATE_KEY: &str = "PRIVATE KEY-----";
/// Some editors begin a UTF-8 file with these bytes.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The authorities to trust and the certificate to show for TLS with etcd; for `SessionOptions::tls`. `https` endpoints
/// do not need it if an authority that is trusted by default signed etcd's certificate.
///
/// Every attempt to connect reads the files (PEM) again: replace them in time, and no process has to be restarted. An
/// established connection is not affected when they change or when a certificate expires, because both sides check
/// certificates only when they connect. `Session::connect` [checks](TlsOptions::check) the files first. Later, if a file
/// is missing, or a key does not fit its certificate, the attempt fails and the next one reads them again. So replace
/// them in any order, each by a rename.
///
/// # Default
///
/// Shows no certificate. Trusts the authorities that this machine trusts (feature `tls-native-roots`, part of `tls`),
/// those that are built in (feature `tls-webpki-roots`), or both.
#[must_use = "options do nothing until a session is made with them"]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsOptions {
    authorities: Option<Pem>,
    identity: Option<(Pem, Pem)>,
    server_name: Option<String>,
}

#[derive(Clone, PartialEq, Eq)]
enum Pem {
    File(PathBuf),
    Bytes(Vec<u8>),
}

impl fmt::Debug for Pem {
    /// Omits the bytes, which may be a private key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pem::File(file) => f.debug_tuple("File").field(file).finish(),
            Pem::Bytes(_) => f.debug_tuple("Bytes").finish_non_exhaustive(),
        }
    }
}

/// The reason why TLS options cannot be used, with the file and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidTls(String);

impl fmt::Display for InvalidTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidTls {}

impl TlsOptions {
    /// Makes the default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts only certificates signed by an authority in this file. To change the authority, let the file hold both
    /// for a while.
    pub fn authorities(mut self, file: impl Into<PathBuf>) -> Self {
        self.authorities = Some(Pem::File(file.into()));
        self
    }

    /// Trusts authorities as [`authorities`](Self::authorities) does, from memory.
    pub fn authorities_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.authorities = Some(Pem::Bytes(pem.into()));
        self
    }

    /// Shows the certificate in this file, with its private key, to members that ask for one.
    pub fn identity(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.identity = Some((Pem::File(certificate.into()), Pem::File(key.into())));
        self
    }

    /// Shows a certificate as [`identity`](Self::identity) does, from memory.
    pub fn identity_pem(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.identity = Some((Pem::Bytes(certificate.into()), Pem::Bytes(key.into())));
        self
    }

    /// Sets the name that etcd's certificate must be valid for. Default: the host in the endpoint.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Checks that each file exists and holds what it should, and that the key can be used and fits its certificate, as
    /// `Session::connect` does. Blocks while it reads.
    ///
    /// # Errors
    ///
    /// The error names the file and the remedy; as an `eldest::Error` it is `InvalidInput`.
    pub fn check(&self) -> Result<(), InvalidTls> {
        let read = |pem: &Pem, kind: &str| {
            let read = match pem {
                Pem::File(file) => std::fs::read(file).map_err(|error| named(file, &error)),
                Pem::Bytes(bytes) => Ok(bytes.clone()),
            };
            read.and_then(|bytes| pem.holding(kind, bytes))
                .map_err(InvalidTls)
        };
        if let Some(authorities) = &self.authorities {
            read(authorities, CERTIFICATE)?;
        }
        if let Some((certificate, key)) = &self.identity {
            let pems = (read(certificate, CERTIFICATE)?, read(key, PRIVATE_KEY)?);
            fits((certificate, &pems.0), (key, &pems.1)).map_err(InvalidTls)?;
        }
        Ok(())
    }

    pub(super) fn has_authorities(&self) -> bool {
        self.authorities.is_some()
    }

    /// Returns the options for another process.
    pub(super) fn passed(&self) -> Result<Value, String> {
        let identity = match &self.identity {
            Some((certificate, key)) => json!([certificate.passed()?, key.passed()?]),
            None => Value::Null,
        };
        let authorities = self.authorities.as_ref().map(Pem::passed).transpose()?;
        Ok(
            json!({"authorities": authorities, "identity": identity, "server_name": self.server_name}),
        )
    }

    /// Reads what [`TlsOptions::passed`] has returned in another process.
    pub(super) fn from_passed(passed: &Value) -> Option<Self> {
        passed.as_object()?;
        let identity = &passed["identity"];
        let name = passed["server_name"].as_str();
        Some(Self {
            authorities: Pem::from_passed(&passed["authorities"]),
            identity: Pem::from_passed(&identity[0]).zip(Pem::from_passed(&identity[1])),
            server_name: name.map(ToOwned::to_owned),
        })
    }

    /// Sets the server name, unless the user has set one.
    pub(super) fn or_server_name(mut self, name: Option<String>) -> Self {
        self.server_name = self.server_name.or(name);
        self
    }

    pub(super) async fn read(&self, env: &dyn Env) -> Result<etcd_client::TlsOptions, String> {
        let tls = etcd_client::TlsOptions::new();
        let mut tls = match &self.authorities {
            Some(pem) => {
                tls.ca_certificate(Certificate::from_pem(pem.read(env, CERTIFICATE).await?))
            }
            None => tls.with_enabled_roots(),
        };
        if let Some((certificate, key)) = &self.identity {
            let pems = (
                certificate.read(env, CERTIFICATE).await?,
                key.read(env, PRIVATE_KEY).await?,
            );
            fits((certificate, &pems.0), (key, &pems.1))?;
            tls = tls.identity(Identity::from_pem(pems.0, pems.1));
        }
        if let Some(name) = &self.server_name {
            tls = tls.domain_name(name);
        }
        Ok(tls)
    }
}

impl Pem {
    fn passed(&self) -> Result<Value, String> {
        match self {
            Pem::File(file) => match file.to_str() {
                Some(file) => Ok(json!({"file": file})),
                None => Err(format!("the path {} is not UTF-8", file.display())),
            },
            Pem::Bytes(bytes) => Ok(json!({"pem": String::from_utf8_lossy(bytes)})),
        }
    }

    fn from_passed(passed: &Value) -> Option<Self> {
        let file = || Some(Pem::File(passed["file"].as_str()?.into()));
        let pem = || Some(Pem::Bytes(passed["pem"].as_str()?.as_bytes().to_vec()));
        file().or_else(pem)
    }

    async fn read(&self, env: &dyn Env, kind: &str) -> Bytes {
        let bytes = match self {
            Pem::File(file) => {
                let read = env.read(file.clone()).await;
                read.map_err(|error| named(file, &error))?
            }
            Pem::Bytes(bytes) => bytes.clone(),
        };
        self.holding(kind, bytes)
    }

    /// Returns the bytes if they hold an item of that kind; rustls would read other bytes as an empty list.
    fn holding(&self, kind: &str, bytes: Vec<u8>) -> Bytes {
        let text = String::from_utf8_lossy(&bytes);
        if bytes.starts_with(BYTE_ORDER_MARK) {
            return Err(format!(
                "{self}: it begins with a byte order mark, which hides its first line: save it as UTF-8 without one"
            ));
        }
        // The second form is OpenSSL's own.
        let is_encrypted = text.contains("ENCRYPTED PRIVATE KEY") || text.contains(",ENCRYPTED");
        if kind == PRIVATE_KEY && is_encrypted {
            return Err(format!(
                "{self}: the private key is encrypted: decrypt it with `openssl pkey -in FILE -out NEW_FILE`"
            ));
        }
        if text.contains(kind) {
            return Ok(bytes);
        }
        let what = kind.trim_end_matches('-').to_lowercase();
        Err(format!("{self}: it has no {what} in PEM"))
    }
}

impl fmt::Display for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pem::File(file) => file.display().fmt(f),
            Pem::Bytes(_) => f.write_str("the PEM in memory"),
        }
    }
}

/// Checks that the key can be used, and that it belongs to the certificate.
fn fits((certificate, chain): (&Pem, &[u8]), (key, secret): (&Pem, &[u8])) -> Result<(), String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain).collect();
    let chain = chain.map_err(|why| format!("{certificate}: {why}"))?;
    let secret = PrivateKeyDer::from_pem_slice(secret).map_err(|why| format!("{key}: {why}"))?;
    let unusable = |why| {
        format!(
            "{key}: the private key cannot be used ({why}): make one of RSA, of ECDSA on P-256 or P-384, or of Ed25519"
        )
    };
    let provider = provider();
    let signs = provider.key_provider.load_private_key(secret.clone_key());
    signs.map_err(unusable)?;
    match CertifiedKey::from_der(chain, secret, &provider) {
        Ok(_) => Ok(()),
        Err(rustls::Error::InconsistentKeys(_)) => Err(format!(
            "{key}: it is not the private key of the certificate in {certificate}"
        )),
        // rustls has no type for this error of webpki.
        Err(why) if format!("{why:?}").contains("UnsupportedCertVersion") => Err(format!(
            "{certificate}: the certificate has version 1 of X.509: issue it again with an extension, such as \
             subjectAltName, which makes it one of version 3"
        )),
        Err(why) => Err(format!("{certificate}: {why}")),
    }
}

/// The cryptography that connections use.
fn provider() -> Arc<CryptoProvider> {
    #[cfg(feature = "tls-ring")]
    let ours = rustls::crypto::ring::default_provider;
    #[cfg(not(feature = "tls-ring"))]
    let ours = rustls::crypto::aws_lc_rs::default_provider;
    let chosen = CryptoProvider::get_default();
    chosen.map_or_else(|| Arc::new(ours()), Arc::clone)
}

fn named(file: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", file.display())
}

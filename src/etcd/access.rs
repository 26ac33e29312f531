//! Supplies each connection with the user, the password and the certificates, and reads certificate files anew for each
//! attempt to connect.

use etcd_client::ConnectOptions;

use crate::runtime::Env;
#[cfg(feature = "tls")]
pub use files::TlsFiles;

/// What every connection of a pool is made with.
#[derive(Clone)]
pub(crate) struct Access {
    options: ConnectOptions,
    #[cfg(feature = "tls")]
    files: Option<TlsFiles>,
}

impl From<ConnectOptions> for Access {
    fn from(options: ConnectOptions) -> Self {
        Self {
            options,
            #[cfg(feature = "tls")]
            files: None,
        }
    }
}

impl Access {
    /// With certificates from these files, whatever the options say of TLS.
    #[cfg(feature = "tls")]
    pub(crate) fn with_files(mut self, files: Option<TlsFiles>) -> Self {
        self.files = files;
        self
    }

    /// What the pool wants of every connection.
    pub(super) fn map(mut self, change: impl FnOnce(ConnectOptions) -> ConnectOptions) -> Self {
        self.options = change(self.options);
        self
    }

    /// For one attempt to connect.
    ///
    /// # Errors
    ///
    /// Says which file cannot be used, and why.
    #[cfg(feature = "tls")]
    pub(super) async fn now(self, env: &dyn Env) -> Result<ConnectOptions, String> {
        match self.files {
            Some(files) => Ok(self.options.with_tls(files.read(env).await?)),
            None => Ok(self.options),
        }
    }

    /// For one attempt to connect.
    #[cfg(not(feature = "tls"))]
    pub(super) fn now(
        self,
        _: &dyn Env,
    ) -> impl Future<Output = Result<ConnectOptions, String>> + use<> {
        std::future::ready(Ok(self.options))
    }
}

#[cfg(feature = "tls")]
mod files {
    use std::io;
    use std::path::{Path, PathBuf};

    use etcd_client::{Certificate, Identity, TlsOptions};

    use super::Env;
    use crate::error::{Error, ErrorKind, Result};

    type Bytes = std::result::Result<Vec<u8>, String>;

    /// What files in PEM say that they hold.
    const CERTIFICATE: &str = "CERTIFICATE-----";
    const PRIVATE_KEY: &str = "PRIVATE KEY-----";

    /// Certificates in files (PEM), read anew by every attempt to connect to etcd: who replaces them in time needs to
    /// restart nothing. Given to [`SessionOptions::tls_files`](crate::SessionOptions::tls_files).
    ///
    /// A connection that stands is not touched when they change, nor when they expire; etcd looks at certificates when a
    /// connection is made, and so do we. A file that is missing, or a key that does not fit its certificate, is an attempt
    /// that failed: the next one reads them again. So replace them in any order, each by a rename.
    ///
    /// # Default
    ///
    /// Trusts the authorities that this machine trusts, if `etcd-client` is built with one of its features for them,
    /// and shows nothing.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct TlsFiles {
        authorities: Option<PathBuf>,
        identity: Option<(PathBuf, PathBuf)>,
    }

    impl TlsFiles {
        /// See the default.
        pub fn new() -> Self {
            Self::default()
        }

        /// Trusts certificates signed by one of these only. To change the authority, let the file hold both for a while.
        pub fn authorities(mut self, file: impl Into<PathBuf>) -> Self {
            self.authorities = Some(file.into());
            self
        }

        /// Shows this certificate, with its private key, to members that ask for one.
        pub fn identity(
            mut self,
            certificate: impl Into<PathBuf>,
            key: impl Into<PathBuf>,
        ) -> Self {
            self.identity = Some((certificate.into(), key.into()));
            self
        }

        /// Whether each file is there and holds what it should, for programs that want to say so at their start; else
        /// [`Session::connect`](crate::Session::connect) says so when its time is over. Blocks while it reads.
        ///
        /// # Errors
        ///
        /// `InvalidInput` names the file.
        pub fn check(&self) -> Result<()> {
            let identity = self
                .identity
                .iter()
                .flat_map(|(certificate, key)| [(certificate, CERTIFICATE), (key, PRIVATE_KEY)]);
            let authorities = self.authorities.iter().map(|file| (file, CERTIFICATE));
            for (file, kind) in authorities.chain(identity) {
                holding(kind, file, std::fs::read(file))
                    .map_err(|why| Error::new(ErrorKind::InvalidInput, why))?;
            }
            Ok(())
        }

        pub(super) async fn read(&self, env: &dyn Env) -> std::result::Result<TlsOptions, String> {
            let tls = TlsOptions::new();
            let mut tls = match &self.authorities {
                Some(file) => {
                    tls.ca_certificate(Certificate::from_pem(pem(env, file, CERTIFICATE).await?))
                }
                None => tls.with_enabled_roots(),
            };
            if let Some((certificate, key)) = &self.identity {
                let certificate = pem(env, certificate, CERTIFICATE).await?;
                let key = pem(env, key, PRIVATE_KEY).await?;
                tls = tls.identity(Identity::from_pem(certificate, key));
            }
            Ok(tls)
        }
    }

    async fn pem(env: &dyn Env, file: &Path, kind: &str) -> Bytes {
        holding(kind, file, env.read(file.to_owned()).await)
    }

    /// A file that holds something of that kind: rustls would take one that holds nothing for an empty list.
    fn holding(kind: &str, file: &Path, read: io::Result<Vec<u8>>) -> Bytes {
        let bytes = read.map_err(|error| format!("{}: {error}", file.display()))?;
        if String::from_utf8_lossy(&bytes).contains(kind) {
            return Ok(bytes);
        }
        let what = kind.trim_end_matches('-').to_lowercase();
        Err(format!(
            "{}: there is no {what} in it, in PEM",
            file.display()
        ))
    }
}

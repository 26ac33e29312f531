//! Reads the files of certificates from environment variables.

use anyhow::{Context, Result};
use eldest::{SessionOptions, TlsOptions};

/// Connects by TLS, with the authorities, the certificate and the private key in the files that `ETCD_CACERT`, `ETCD_CERT`
/// and `ETCD_KEY` name. Without the first, the options stay as they are.
///
/// # Errors
///
/// Only one or two of the files are named.
pub fn of_environment(options: SessionOptions) -> Result<SessionOptions> {
    let file = |name| {
        let named = std::env::var_os(name).filter(|file| !file.is_empty());
        named.with_context(|| format!("ETCD_CACERT needs {name}"))
    };
    let Ok(authorities) = file("ETCD_CACERT") else {
        return Ok(options);
    };
    let tls = TlsOptions::new().authorities(authorities);
    Ok(options.tls(tls.identity(file("ETCD_CERT")?, file("ETCD_KEY")?)))
}

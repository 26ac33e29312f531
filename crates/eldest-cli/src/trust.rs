//! Decides which certificates of servers the command trusts, when it is a client by TLS.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::WantsClientCert;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, ConfigBuilder, RootCertStore};

/// Adds the authorities of that option's PEM file.
pub(crate) fn add_file(roots: &mut RootCertStore, option: &str, file: &Path) -> Result<()> {
    let named = || format!("{option} {}", file.display());
    let before = roots.len();
    for certificate in CertificateDer::pem_file_iter(file).with_context(named)? {
        let certificate = certificate.with_context(named)?;
        roots.add(certificate).with_context(named)?;
    }
    ensure!(roots.len() > before, "{} has no certificate", named());
    Ok(())
}

/// Adds the authorities of the system.
pub(crate) fn add_system(roots: &mut RootCertStore) {
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
}

/// Trusts these authorities, and shows no certificate of its own.
pub(crate) fn client(roots: RootCertStore) -> Result<ClientConfig> {
    Ok(builder(roots)?.with_no_client_auth())
}

/// Trusts these authorities, and shows the certificate of that PEM file, whose key is in the other.
pub(crate) fn client_with(
    roots: RootCertStore,
    (certificate, key): (&Path, &Path),
) -> Result<ClientConfig> {
    let chain = CertificateDer::pem_file_iter(certificate)?;
    let key = PrivateKeyDer::from_pem_file(key)?;
    let builder = builder(roots)?;
    Ok(builder.with_client_auth_cert(chain.collect::<Result<_, _>>()?, key)?)
}

fn builder(roots: RootCertStore) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>> {
    let provider = CryptoProvider::get_default().cloned();
    let provider = provider.unwrap_or_else(|| Arc::new(ring::default_provider()));
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions()?;
    Ok(builder.with_root_certificates(roots))
}

/// Returns a connector that trusts servers with certificates of these authorities.
pub(crate) fn connector(roots: RootCertStore) -> Result<TlsConnector> {
    Ok(Arc::new(client(roots)?).into())
}

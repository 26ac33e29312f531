//! Tests a node that serves TLS.

use std::sync::Arc;

use eldest_fixtures::tls::Authority;
use eldest_testing::eventually;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::stage::{Node, Result, SOON, Stage};

/// Returns the node's answer to a client that trusts that authority and no other.
async fn asked(node: &Node, authority: &Authority, path: &str) -> Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes())?)?;
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(node.at).await?;
    let name = ServerName::from(node.at.ip());
    let mut stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    tokio::time::timeout(SOON, stream.read_to_string(&mut answer)).await??;
    Ok(answer)
}

#[tokio::test]
async fn with_a_certificate_a_node_answers_by_tls_and_by_nothing_else() -> Result {
    let stage = Stage::new().await?;
    let authority = Authority::new()?;
    let signed = authority.sign("127.0.0.1")?;
    let file = |name: &str| stage.folder.path().join(name).display().to_string();
    std::fs::write(file("node.pem"), signed.certificate)?;
    std::fs::write(file("node.key"), signed.key)?;
    let mut command = stage.serve("60s", "a");
    command.args(["--grace", "400ms"]);
    command.args(["--http-cert", &file("node.pem")]);
    // The key is named by its variable, the certificate by its option.
    command.env("ELDEST_HTTP_KEY", file("node.key"));
    let node = stage.announced("a", "https", command).await?;
    let leads = async || {
        let answer = asked(&node, &authority, "/leader").await.ok()?;
        answer.starts_with("HTTP/1.1 200 ").then_some(())
    };
    eventually(SOON, "it leads", leads).await?;
    let stranger = asked(&node, &Authority::new()?, "/live").await;
    assert!(
        stranger.is_err(),
        "its certificate is another's: {stranger:?}"
    );
    let plain = crate::caller::get(node.at, "/live").await;
    assert!(plain.is_err(), "without TLS: {plain:?}");
    Ok(())
}

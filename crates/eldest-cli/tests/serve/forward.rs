//! Tests `eldest serve --forward`: requests to any node reach the program beside the leader.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::routing::any;
use eldest_fixtures::http::{answers, get, post};
use eldest_fixtures::text::has;
use eldest_fixtures::tls::Authority;
use eldest_testing::eventually;
use eldest_testing::internal::Port;
use http::HeaderMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::shared::{Node, Result, SOON, Stage};

/// Starts a program that answers with its name and the headers of its requests.
async fn program(name: &'static str) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let at = listener.local_addr()?;
    let said = any(async move |headers: HeaderMap| format!("{name} {headers:?}"));
    tokio::spawn(axum::serve(listener, Router::new().fallback(said)).into_future());
    Ok(format!("http://{at}"))
}

/// Starts a node with a program beside it; returns the node and the address at which it passes requests on.
async fn node(stage: &Stage, name: &'static str) -> Result<(Node, SocketAddr)> {
    let program = program(name).await?;
    let (node, at) = beside(stage, name, "60s", &program, &[])?;
    // The node holds the request until there is a leader.
    answers(at, "/", 200).await?;
    Ok((node, at))
}

/// Starts a node beside that program; returns the node and the address at which it passes requests on.
fn beside(
    stage: &Stage,
    name: &str,
    ttl: &str,
    program: &str,
    more: &[&str],
) -> Result<(Node, SocketAddr)> {
    let at: SocketAddr = Port::free()?.address().parse()?;
    let address = at.to_string();
    let mut command = stage.serve(ttl, name);
    command.args(["--grace", "400ms"]);
    command.args(["--forward", program, "--forward-listen", &address]);
    command.args(more);
    Ok((Node::start(name, command)?, at))
}

/// Serves TLS in front of that address, with a certificate of that authority, and counts the connections on which requests arrive.
async fn encrypted(to: SocketAddr, authority: &Authority) -> Result<(String, Arc<AtomicU64>)> {
    let signed = authority.sign("127.0.0.1")?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(
                signed.certificate.as_bytes(),
            )?],
            PrivateKeyDer::from_pem_slice(signed.key.as_bytes())?,
        )?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("https://{}", listener.local_addr()?);
    let arrived = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&arrived);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, counted) = (acceptor.clone(), Arc::clone(&counted));
            tokio::spawn(async move {
                let stream = acceptor.accept(stream).await?;
                let (mut from, mut back) = tokio::io::split(stream);
                let mut first = [0; 1];
                let read = from.read(&mut first).await?;
                counted.fetch_add(read as u64, Ordering::SeqCst);
                let (mut answer, mut request) = TcpStream::connect(to).await?.into_split();
                request.write_all(&first[..read]).await?;
                tokio::try_join!(
                    tokio::io::copy(&mut from, &mut request),
                    tokio::io::copy(&mut answer, &mut back),
                )?;
                Ok::<_, std::io::Error>(())
            });
        }
    });
    Ok((url, arrived))
}

#[tokio::test]
async fn leader_at_an_https_address_receives_requests_only_if_its_authority_is_trusted() -> Result {
    let stage = Stage::new().await?;
    let authority = Authority::new()?;
    let file = |name: &str| stage.file(name);
    std::fs::write(file("ca.pem"), authority.pem())?;
    std::fs::write(file("stranger.pem"), Authority::new()?.pem())?;
    let plain = program("a").await?;
    let behind: SocketAddr = plain.trim_start_matches("http://").parse()?;
    let (program_url, to_program) = encrypted(behind, &authority).await?;
    let leader_at: SocketAddr = Port::free()?.address().parse()?;
    let (url, arrived) = encrypted(leader_at, &authority).await?;
    let mut command = stage.serve("60s", "a");
    command.args(["--grace", "400ms"]);
    command.args(["--forward", &program_url, "--forward-ca", &file("ca.pem")]);
    command.args(["--forward-listen", &leader_at.to_string()]);
    command.args(["--announce", &format!("forward={url}")]);
    let _a = Node::start("a", command)?;
    answers(leader_at, "/", 200).await?;
    assert!(to_program.load(Ordering::SeqCst) > 0, "the program has TLS");

    // The request that waited for a leader may have reached the leader over its own announced address, which counts.
    let before = arrived.load(Ordering::SeqCst);
    // The node waits for one TTL and 5 seconds before it refuses.
    let stranger = file("stranger.pem");
    let (_doubting, at) = beside(&stage, "b", "3s", &plain, &["--forward-ca", &stranger])?;
    let refused = eventually(SOON, "it refuses", async || post(at, "/").await.ok()).await?;
    assert_eq!(refused.status, 503, "{refused:?}");
    assert_eq!(refused.problem(), "leader_unreachable");
    assert!(refused.body.contains("UnknownIssuer"), "{refused:?}");
    assert_eq!(arrived.load(Ordering::SeqCst), before, "nothing is sent");

    let more = ["--forward-ca", &file("ca.pem")];
    let (_trusting, at) = beside(&stage, "c", "60s", &plain, &more)?;
    answers(at, "/", 200).await?;
    let answer = post(at, "/orders?id=7").await?;
    assert!(answer.body.starts_with("a "), "{}", answer.body);
    assert!(arrived.load(Ordering::SeqCst) > before, "it came by TLS");
    Ok(())
}

#[tokio::test]
async fn requests_to_any_node_reach_the_program_beside_the_leader() -> Result {
    let stage = Stage::new().await?;
    let (a, at_a) = node(&stage, "a").await?;
    let (b, at_b) = node(&stage, "b").await?;
    for at in [at_a, at_b] {
        let answer = post(at, "/orders?id=7").await?;
        assert_eq!(answer.status, 200);
        assert!(answer.body.starts_with("a "), "{}", answer.body);
        has(
            &answer.body,
            &[
                "\"eldest-fencing-token\"",
                "\"x-forwarded-for\": \"127.0.0.1",
            ],
        );
    }
    let said = format!("passing requests on at http://{at_b}/\n");
    has(&b.output(), &[&said]);
    a.close().await?;
    eventually(SOON, "the other leads", async || {
        let answer = get(at_b, "/").await.ok()?;
        answer.body.starts_with("b ").then_some(())
    })
    .await?;
    Ok(())
}

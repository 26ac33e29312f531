//! Tests certificates, with an etcd that presents one and requires one: which are accepted, and how they are replaced
//! under a leader.
#![allow(clippy::disallowed_methods)] // tests run in real time

mod capture;

use std::error::Error as _;
use std::time::Duration;

use capture::Logs;
use eldest::{
    BoxError, Candidate, Error, ErrorKind, Leadership, LostReason, Session, SessionOptions,
    TlsOptions,
};
use eldest_fixtures::tls::{Authority, TlsEtcd};
use eldest_testing::{Proxy, eventually};
use tokio::time::timeout;

type Result<T = ()> = std::result::Result<T, BoxError>;

const TTL: Duration = Duration::from_secs(4);

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// Certificates end at whole seconds, and etcd's clock is this machine's.
const SECOND: Duration = Duration::from_secs(1);

fn files(sealed: &TlsEtcd) -> TlsOptions {
    TlsOptions::new()
        .authorities(sealed.file("ca.pem"))
        .identity(sealed.file("client.pem"), sealed.file("client.key"))
}

fn options(files: TlsOptions) -> SessionOptions {
    SessionOptions::new("me").ttl(TTL).tls(files)
}

/// Returns the error of a session that cannot connect.
async fn refused(sealed: &TlsEtcd, files: TlsOptions, patience: Duration) -> Error {
    let options = options(files).connect_timeout(patience);
    let refused = Session::connect([&sealed.endpoint], options).await;
    refused.expect_err("it must not come in")
}

/// Returns the error of a session whose certificate is refused at once, by either side.
async fn refused_at_once(sealed: &TlsEtcd, files: TlsOptions) -> Result<String> {
    let refused = timeout(LONG, refused(sealed, files, LONG * 2)).await?;
    assert_eq!(refused.kind(), ErrorKind::CertificateRefused, "{refused}");
    let source = refused.source().ok_or("the source says why")?;
    Ok(source.to_string())
}

#[tokio::test]
async fn a_wrong_or_missing_certificate_is_refused_with_the_reason() -> Result {
    let sealed = TlsEtcd::start(&[]).await?;
    let stranger = Authority::new()?;
    let past = eldest_fixtures::tls::now().saturating_sub(SECOND);

    // Our certificate, as etcd checks it.
    for signed in [
        stranger.sign("127.0.0.1")?,
        sealed.authority.sign_until("127.0.0.1", past)?,
    ] {
        sealed.identify("odd", &signed)?;
        let files = TlsOptions::new()
            .authorities(sealed.file("ca.pem"))
            .identity(sealed.file("odd.pem"), sealed.file("odd.key"));
        let refusal = refused_at_once(&sealed, files).await?;
        assert!(refusal.contains("received fatal alert"), "{refusal}");
    }
    let none = TlsOptions::new().authorities(sealed.file("ca.pem"));
    let refusal = refused_at_once(&sealed, none).await?;
    assert!(refusal.contains("CertificateRequired"), "{refusal}");

    // etcd's certificate, as we check it; etcd reads its files for every connection.
    for (what, signed, why) in [
        (
            "for another name",
            sealed.authority.sign("etcd.example")?,
            "not valid for name",
        ),
        (
            "of an unknown authority",
            stranger.sign("127.0.0.1")?,
            "UnknownIssuer",
        ),
        (
            "that has expired",
            sealed.authority.sign_until("127.0.0.1", past)?,
            "certificate expired",
        ),
    ] {
        sealed.identify("server", &signed)?;
        let refusal = refused_at_once(&sealed, files(&sealed)).await?;
        assert!(
            refusal.contains(why),
            "etcd's certificate {what}: {refusal}"
        );
    }

    sealed.identify("server", &sealed.authority.sign("127.0.0.1")?)?;
    Session::connect([&sealed.endpoint], options(files(&sealed)))
        .await?
        .close()
        .await?;
    Ok(())
}

#[tokio::test]
async fn looked_up_address_must_present_the_certificate_of_its_host() -> Result {
    let sealed = TlsEtcd::start(&[]).await?;
    sealed.identify("server", &sealed.authority.sign("localhost")?)?;
    let refusal = refused_at_once(&sealed, files(&sealed)).await?;
    assert!(refusal.contains("not valid for name"), "{refusal}");
    let name = sealed.endpoint.replace("127.0.0.1", "localhost");
    let name = format!("dns+{name}");
    let session = Session::connect([&name], options(files(&sealed))).await?;
    let used = session.endpoints().borrow().clone();
    let at = used.iter().find(|one| one.requests().is_some());
    assert_eq!(at.map(eldest::EndpointStatus::url), Some(&*sealed.endpoint));
    session.close().await?;

    sealed.identify("server", &sealed.authority.sign("127.0.0.1")?)?;
    let options = options(files(&sealed)).connect_timeout(SECOND);
    let refused = Session::connect([&name], options).await.unwrap_err();
    let refusal = refused.report().to_string();
    assert!(refusal.contains("not valid for name"), "{refusal}");
    Ok(())
}

/// Checks that each is refused with the name of its file, and with the rule that it breaks, before anything is sent.
async fn named(sealed: &TlsEtcd, rows: &[(TlsOptions, [&str; 2])]) {
    for (files, parts) in rows {
        let checked = Error::from(files.check().expect_err("it cannot be used"));
        assert_eq!(checked.kind(), ErrorKind::InvalidInput);
        for part in parts {
            assert!(checked.to_string().contains(part), "{checked}");
        }
        let error = refused(sealed, files.clone(), SECOND).await;
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert_eq!(error.to_string(), checked.to_string());
    }
}

#[tokio::test]
async fn a_file_that_is_missing_or_holds_something_else_is_named() -> Result {
    let sealed = TlsEtcd::start(&[]).await?;
    sealed.replace("empty.pem", "nothing\n")?;
    let marked = std::fs::read_to_string(sealed.file("ca.pem"))?;
    sealed.replace("marked.pem", &format!("\u{feff}{marked}"))?;
    let authorities = |file: &str| TlsOptions::new().authorities(sealed.file(file));
    let rows = [
        (authorities("nowhere.pem"), ["nowhere.pem", "No such file"]),
        (
            authorities("empty.pem"),
            ["empty.pem", "it has no certificate in PEM"],
        ),
        (
            authorities("marked.pem"),
            ["marked.pem", "save it as UTF-8 without one"],
        ),
    ];
    named(&sealed, &rows).await;
    Ok(())
}

#[tokio::test]
async fn unusable_certificate_or_key_is_named_with_the_remedy() -> Result {
    let sealed = TlsEtcd::start(&[]).await?;
    let other = sealed.authority.sign("127.0.0.1")?;
    let headed = |head: &str| format!("{head}\nMC4CAQ==\n");
    for (file, content) in [
        ("other.key", &*other.key),
        ("p521.pem", include_str!("pem/p521.pem")),
        ("p521.key", include_str!("pem/p521.key")),
        ("v1.pem", include_str!("pem/v1.pem")),
        ("v1.key", include_str!("pem/v1.key")),
        (
            "pkcs8.key",
            &headed("-----BEGIN ENCRYPTED PRIVATE KEY-----"),
        ),
        (
            "openssl.key",
            &headed("-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n"),
        ),
    ] {
        sealed.replace(file, content)?;
    }
    let rows = [
        ("client.pem", "client.pem", "it has no private key in PEM"),
        ("client.pem", "pkcs8.key", "decrypt it with `openssl pkey"),
        ("client.pem", "openssl.key", "decrypt it with `openssl pkey"),
        (
            "client.pem",
            "other.key",
            "it is not the private key of the certificate in",
        ),
        ("p521.pem", "p521.key", "of ECDSA on P-256 or P-384"),
        ("v1.pem", "v1.key", "v1.pem: the certificate has version 1"),
    ];
    let rows = rows.map(|(certificate, key, rule)| {
        let files = TlsOptions::new().authorities(sealed.file("ca.pem"));
        let files = files.identity(sealed.file(certificate), sealed.file(key));
        (files, [key.split('.').next().unwrap_or_default(), rule])
    });
    named(&sealed, &rows).await;
    Ok(())
}

#[tokio::test]
async fn url_scheme_that_does_not_match_its_port_is_reported() -> Result {
    let sealed = TlsEtcd::start(&[]).await?;
    let plain = eldest_testing::Etcd::start().await?;
    let refusal = async |endpoint: String| {
        let options = SessionOptions::new("n").connect_timeout(SECOND);
        let refused = Session::connect([endpoint], options).await;
        refused.expect_err("another protocol").to_string()
    };
    let of_tls = refusal(sealed.endpoint.replace("https:", "http:")).await;
    assert!(
        of_tls.contains("the server speaks TLS: write https://"),
        "{of_tls}"
    );
    let of_plain = refusal(plain.endpoint().replace("http:", "https:")).await;
    assert!(
        of_plain.contains("the server speaks no TLS: write http://"),
        "{of_plain}"
    );
    // A port without a listener gives no such error.
    let nobody = refusal("http://127.0.0.1:1".to_owned()).await;
    assert!(!nobody.contains("write"), "{nobody}");
    Ok(())
}

/// Starts a leader whose connections a proxy can cut.
async fn leading(sealed: &TlsEtcd) -> Result<(Proxy, Session, Candidate, Leadership)> {
    let proxy = Proxy::start(sealed.address()).await?;
    let endpoint = format!("https://{}", proxy.address());
    let session = Session::connect([endpoint], options(files(sealed))).await?;
    let mut candidate = session.election("jobs")?.campaign().await?;
    let leadership = timeout(LONG, candidate.elected()).await??;
    Ok((proxy, session, candidate, leadership))
}

/// Waits for a renewal that was sent after this.
async fn renewed(leadership: &Leadership) -> Result {
    let before = leadership.valid_until().since_boot();
    // One renewal may be in flight; the next one is later.
    for _ in 0..2 {
        let before = leadership.valid_until().since_boot().max(before);
        eventually(LONG, "renewed", async || {
            let later = leadership.valid_until().since_boot() > before;
            (later || leadership.lost().is_cancelled()).then_some(())
        })
        .await?;
    }
    assert_eq!(leadership.lost_reason(), None);
    Ok(())
}

#[tokio::test]
async fn a_leader_leads_on_while_authority_and_certificates_are_replaced() -> Result {
    let new = Authority::new()?;
    let sealed = TlsEtcd::start(&[&new]).await?;
    let (proxy, session, mut candidate, leadership) = leading(&sealed).await?;

    // Our certificates first: we trust both authorities, and present a certificate of the new one.
    sealed.replace(
        "ca.pem",
        &format!("{}{}", sealed.authority.pem(), new.pem()),
    )?;
    sealed.identify("client", &new.sign("127.0.0.1")?)?;
    proxy.drop_connections();
    renewed(&leadership).await?;
    // Then etcd's certificate, which a client that knows only the old authority would refuse.
    sealed.identify("server", &new.sign("127.0.0.1")?)?;
    proxy.drop_connections();
    renewed(&leadership).await?;
    // Now the old authority may go.
    sealed.replace("ca.pem", new.pem())?;
    proxy.drop_connections();
    renewed(&leadership).await?;
    leadership.txn([]).await?;

    leadership.resign().await?;
    candidate.leave().await?;
    session.close().await?;
    Ok(())
}

#[tokio::test]
async fn expired_certificate_ends_the_term_and_a_new_one_restores_the_node() -> Result {
    let (logs, _guard) = Logs::capture();
    let sealed = TlsEtcd::start(&[]).await?;
    let (proxy, session, mut candidate, leadership) = leading(&sealed).await?;
    let end = eldest_fixtures::tls::now() + TTL * 2;
    sealed.identify("client", &sealed.authority.sign_until("127.0.0.1", end)?)?;
    proxy.drop_connections();
    renewed(&leadership).await?;
    let expired = async || (eldest_fixtures::tls::now() > end + SECOND).then_some(());
    eventually(LONG, "it has expired", expired).await?;
    renewed(&leadership).await?; // an established connection is not checked again

    proxy.drop_connections();
    timeout(LONG, leadership.lost().cancelled()).await?;
    assert_eq!(leadership.lost_reason(), Some(LostReason::LeaseExpiring));
    let failed = logs.of(
        "eldest::session",
        "renewal failed",
        &[("class", "Certificate")],
    );
    let is_named = failed
        .iter()
        .any(|line| line.field("why").contains("CertificateExpired"));
    assert!(is_named, "the log says why: {logs:?}");
    drop(leadership);

    sealed.identify("client", &sealed.authority.sign("127.0.0.1")?)?;
    let again = timeout(LONG, candidate.elected()).await??;
    again.resign().await?;
    session.close().await?;
    Ok(())
}

/// etcd's certificate is replaced first, which is the wrong order: no new connection succeeds until the node knows the
/// new authority.
#[tokio::test]
async fn leader_without_etcds_new_authority_stops_in_time_and_returns_with_it() -> Result {
    let (logs, _guard) = Logs::capture();
    let (sealed, new) = (TlsEtcd::start(&[]).await?, Authority::new()?);
    let (proxy, session, mut candidate, leadership) = leading(&sealed).await?;
    sealed.identify("server", &new.sign("127.0.0.1")?)?;
    renewed(&leadership).await?; // an established connection is not checked again
    proxy.drop_connections();
    timeout(LONG, leadership.lost().cancelled()).await?;
    assert_eq!(leadership.lost_reason(), Some(LostReason::LeaseExpiring));
    let class = [("class", "Certificate")];
    let failed = logs.of("eldest::session", "renewal failed", &class);
    let is_named = |line: &capture::Line| line.field("why").contains("UnknownIssuer");
    assert!(failed.iter().any(is_named), "the log says why: {logs:?}");
    drop(leadership);

    let both = format!("{}{}", sealed.authority.pem(), new.pem());
    sealed.replace("ca.pem", &both)?;
    let again = timeout(LONG, candidate.elected()).await??;
    again.resign().await?;
    session.close().await?;
    Ok(())
}

#[tokio::test]
async fn endpoint_with_a_valid_certificate_is_found_beside_an_invalid_one() -> Result {
    let (good, stranger) = (TlsEtcd::start(&[]).await?, TlsEtcd::start(&[]).await?);
    let endpoints = [&stranger.endpoint, &good.endpoint];
    let session = Session::connect(endpoints, options(files(&good))).await?;
    session.close().await?;
    Ok(())
}

#[tokio::test]
async fn plain_http_is_refused_with_tls_options_and_no_scheme_means_https() -> Result {
    let sealed = TlsEtcd::start(&[]).await?;
    let plain = format!("http://{}", sealed.address());
    let refused = Session::connect([plain], options(files(&sealed))).await;
    let refused = refused.expect_err("it would send nothing by TLS");
    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    let session = Session::connect([sealed.address()], options(files(&sealed))).await?;
    session.close().await?;
    Ok(())
}

#[tokio::test]
async fn authorities_and_identity_may_come_from_memory() -> Result {
    let sealed = TlsEtcd::start(&[]).await?;
    let read = |name: &str| std::fs::read(sealed.file(name));
    let tls = TlsOptions::new()
        .authorities_pem(read("ca.pem")?)
        .identity_pem(read("client.pem")?, read("client.key")?);
    assert!(!format!("{tls:?}").contains("PRIVATE"), "{tls:?}");
    tls.check()?;
    sealed.identify("server", &sealed.authority.sign("etcd.example")?)?;
    let tls = tls.server_name("etcd.example");
    let session = Session::connect([&sealed.endpoint], options(tls)).await?;
    session.close().await?;
    Ok(())
}

#[tokio::test]
#[ignore = "needs a system that trusts the server; the next test runs it in a process that has one"]
async fn connects_with_only_an_https_endpoint() -> Result {
    let endpoint = std::env::var("SEALED")?;
    let session = Session::connect([endpoint], SessionOptions::new("me")).await?;
    session.close().await?;
    Ok(())
}

#[tokio::test]
async fn https_works_by_default_with_the_authorities_of_the_system() -> Result {
    let sealed = TlsEtcd::start_open(&[]).await?;
    let status = tokio::process::Command::new(std::env::current_exe()?)
        .args([
            "--exact",
            "connects_with_only_an_https_endpoint",
            "--ignored",
        ])
        .env("SSL_CERT_FILE", sealed.file("ca.pem"))
        .env("SEALED", &sealed.endpoint)
        .status();
    assert!(timeout(LONG, status).await??.success());
    let refused = Session::connect([&sealed.endpoint], SessionOptions::new("me")).await;
    let refused = refused.expect_err("this system does not trust it");
    assert_eq!(refused.kind(), ErrorKind::CertificateRefused, "{refused}");
    Ok(())
}

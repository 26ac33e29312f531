//! Certificates, from an etcd that shows one and wants one: which are taken, and how they are replaced under a leader.
#![allow(clippy::disallowed_methods)] // tests run in real time

mod capture;

use std::time::Duration;

use capture::Logs;
use eldest::{
    BoxError, Candidate, ErrorKind, Leadership, LostReason, Session, SessionOptions, TlsFiles,
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

fn files(sealed: &TlsEtcd) -> TlsFiles {
    TlsFiles::new()
        .authorities(sealed.file("ca.pem"))
        .identity(sealed.file("client.pem"), sealed.file("client.key"))
}

fn options(files: TlsFiles) -> SessionOptions {
    SessionOptions::new("me").ttl(TTL).tls_files(files)
}

/// What a session says that gets nowhere.
async fn refused(sealed: &TlsEtcd, files: TlsFiles) -> String {
    let options = options(files).connect_timeout(SECOND);
    let refused = Session::connect([&sealed.endpoint], options).await;
    let refused = refused.expect_err("it must not come in");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    refused.to_string()
}

/// etcd says why before it closes the connection, and only sometimes is the closing heard first.
async fn told_by_etcd(sealed: &TlsEtcd, files: TlsFiles) -> Result {
    eventually(LONG, "it is told why", async || {
        let told = refused(sealed, files.clone()).await;
        told.contains("received fatal alert").then_some(())
    })
    .await
}

#[tokio::test]
async fn whoever_shows_the_wrong_certificate_or_none_gets_nowhere_and_is_told_why() -> Result {
    let sealed = TlsEtcd::start(&[]).await?;
    let stranger = Authority::new()?;
    let past = eldest_fixtures::tls::now().saturating_sub(SECOND);

    // Ours, as etcd sees it.
    for signed in [
        stranger.sign("127.0.0.1")?,
        sealed.authority.sign_until("127.0.0.1", past)?,
    ] {
        sealed.identify("odd", &signed)?;
        let files = TlsFiles::new()
            .authorities(sealed.file("ca.pem"))
            .identity(sealed.file("odd.pem"), sealed.file("odd.key"));
        told_by_etcd(&sealed, files).await?;
    }
    let none = TlsFiles::new().authorities(sealed.file("ca.pem"));
    told_by_etcd(&sealed, none).await?;

    // etcd's, as we see it; it reads its files for every connection.
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
        let told = refused(&sealed, files(&sealed)).await;
        assert!(told.contains(why), "etcd's certificate {what}: {told}");
    }

    sealed.identify("server", &sealed.authority.sign("127.0.0.1")?)?;
    Session::connect([&sealed.endpoint], options(files(&sealed)))
        .await?
        .close()
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_file_that_cannot_be_used_is_named() -> Result {
    let sealed = TlsEtcd::start(&[]).await?;
    sealed.replace("empty.pem", "nothing\n")?;
    let other = sealed.authority.sign("127.0.0.1")?;
    sealed.replace("other.key", &other.key)?;
    let identity = |cert: &str, key: &str| {
        let files = TlsFiles::new().authorities(sealed.file("ca.pem"));
        files.identity(sealed.file(cert), sealed.file(key))
    };
    for (files, parts) in [
        (
            TlsFiles::new().authorities(sealed.file("nowhere.pem")),
            ["nowhere.pem", "No such file"],
        ),
        (
            TlsFiles::new().authorities(sealed.file("empty.pem")),
            ["empty.pem", "there is no certificate in it"],
        ),
        (
            identity("client.pem", "client.pem"),
            ["client.pem", "there is no private key in it"],
        ),
    ] {
        let checked = files.check().expect_err("it cannot be used");
        assert_eq!(checked.kind(), ErrorKind::InvalidInput);
        let told = refused(&sealed, files).await;
        for part in parts {
            assert!(checked.to_string().contains(part), "{checked}");
            assert!(told.contains(part), "{told}");
        }
    }
    let told = refused(&sealed, identity("client.pem", "other.key")).await;
    assert!(told.to_lowercase().contains("key"), "{told}");
    Ok(())
}

/// A leader whose connections a proxy can cut.
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
    // One may be under way; the next is not.
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

    // Ours first: it trusts both authorities, and shows what the new one has signed.
    sealed.replace(
        "ca.pem",
        &format!("{}{}", sealed.authority.pem(), new.pem()),
    )?;
    sealed.identify("client", &new.sign("127.0.0.1")?)?;
    proxy.drop_connections();
    renewed(&leadership).await?;
    // Then etcd's, which none would trust that knows the old authority alone.
    sealed.identify("server", &new.sign("127.0.0.1")?)?;
    proxy.drop_connections();
    renewed(&leadership).await?;
    // Now the old one may go.
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
async fn an_expired_certificate_ends_the_term_in_time_and_a_new_one_brings_the_node_back() -> Result
{
    let (logs, _guard) = Logs::capture();
    let sealed = TlsEtcd::start(&[]).await?;
    let (proxy, session, mut candidate, leadership) = leading(&sealed).await?;
    let end = eldest_fixtures::tls::now() + TTL * 2;
    sealed.identify("client", &sealed.authority.sign_until("127.0.0.1", end)?)?;
    proxy.drop_connections();
    renewed(&leadership).await?;
    let expired = async || (eldest_fixtures::tls::now() > end + SECOND).then_some(());
    eventually(LONG, "it has expired", expired).await?;
    renewed(&leadership).await?; // a connection that stands is not asked again

    proxy.drop_connections();
    timeout(LONG, leadership.lost().cancelled()).await?;
    assert_eq!(leadership.lost_reason(), Some(LostReason::LeaseExpiring));
    let failed = logs.of("eldest::session", "renewal failed", &[("class", "Retry")]);
    let told = failed
        .iter()
        .any(|line| line.field("why").contains("CertificateExpired"));
    assert!(told, "the log says why: {logs:?}");
    drop(leadership);

    sealed.identify("client", &sealed.authority.sign("127.0.0.1")?)?;
    let again = timeout(LONG, candidate.elected()).await??;
    again.resign().await?;
    session.close().await?;
    Ok(())
}

//! Tests an etcd that has a certificate and demands one of its clients.

use eldest_fixtures::tls::TlsEtcd;
use eldest_testing::eventually;

use crate::common::{DENIED, DONE, Result, SOON, eldest, run};

#[tokio::test]
async fn certificates_are_shown_and_asked_for() -> Result {
    let etcd = TlsEtcd::start(&[]).await?;
    let [ca, cert, key] =
        ["ca.pem", "client.pem", "client.key"].map(|name| etcd.file(name).display().to_string());
    let status = async |limit: &str, more: &[&str]| {
        let args = [
            "status",
            "--connect-timeout",
            limit,
            "--endpoints",
            &etcd.endpoint,
        ];
        run(eldest(&[&args, more].concat())).await
    };
    let all = ["--cacert", &ca, "--cert", &cert, "--key", &key];
    let shown = eventually(SOON, "it answers", async || {
        let shown = status("500ms", &all).await.ok()?;
        (shown.code == DONE).then_some(shown)
    })
    .await?;
    assert_eq!(shown.text(), "there is no candidate anywhere\n");
    // One status without our authority, and one with this machine's authorities, whose loading takes a while.
    let unknown = status("3s", &["--cacert", &ca]).await?;
    unknown.failed(DENIED, &[&etcd.endpoint]);
    let untrusted = status("3s", &["--cert", &cert, "--key", &key]).await?;
    untrusted.failed(DENIED, &["invalid peer certificate"]);
    Ok(())
}

//! An etcd that shows a certificate and wants to see one.

use eldest::testing::eventually;

use crate::common::{DONE, Result, SOON, UNAVAILABLE, eldest, run};
use crate::sealed::Sealed;

#[tokio::test]
async fn certificates_are_shown_and_asked_for() -> Result {
    let sealed = Sealed::start(&[]).await?;
    let [ca, cert, key] =
        ["ca.pem", "client.pem", "client.key"].map(|name| sealed.file(name).display().to_string());
    let status = async |more: &[&str]| {
        let args = [
            "status",
            "--connect-timeout",
            "500ms",
            "--endpoints",
            &sealed.endpoint,
        ];
        run(eldest(&[&args, more].concat())).await
    };
    let all = ["--cacert", &ca, "--cert", &cert, "--key", &key];
    let shown = eventually(SOON, "it answers", async || {
        let shown = status(&all).await.ok()?;
        (shown.code == DONE).then_some(shown)
    })
    .await?;
    assert_eq!(shown.done().stdout, "nobody stands anywhere\n");
    // One without ours, and one that trusts this machine's authorities only.
    let unknown = status(&["--cacert", &ca]).await?;
    unknown.failed(UNAVAILABLE, &[&sealed.endpoint]);
    let untrusted = status(&["--cert", &cert, "--key", &key]).await?;
    untrusted.failed(UNAVAILABLE, &["invalid peer certificate"]);
    Ok(())
}

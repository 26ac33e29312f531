//! Tests that passwords stay secret.

use std::time::Duration;

use eldest::{Session, SessionOptions};
use eldest_testing::eventually;
use tokio::time::timeout;

use super::{CANARY, Guarded, LONG, OTHER_PASSWORD, PASSWORD, Result, TTL};
use crate::capture::Logs;

/// Returns the errors of sessions that cannot connect, for four reasons.
async fn refused(guarded: &Guarded) -> Vec<eldest::Error> {
    let endpoint = guarded.etcd.endpoint();
    let mut errors = Vec::new();
    let wrong = Guarded::options("me", OTHER_PASSWORD);
    errors.extend(Session::connect([&endpoint], wrong).await.err());
    let in_url = format!("http://me:{PASSWORD}@{}", guarded.etcd.address());
    let plain = SessionOptions::new("me").namespace("ns");
    errors.extend(Session::connect_lazy([in_url], plain).err());
    let elsewhere = Guarded::options("me", PASSWORD).namespace("elsewhere");
    errors.extend(Session::connect([&endpoint], elsewhere).await.err());
    let nowhere = Guarded::options("me", PASSWORD).connect_timeout(Duration::from_millis(300));
    let connected = Session::connect(["http://127.0.0.1:1"], nowhere).await;
    errors.extend(connected.err());
    errors
}

#[tokio::test]
async fn password_is_in_no_log_line_error_or_debug_output() -> Result {
    let (logs, _guard) = Logs::capture();
    #[cfg(feature = "metrics")]
    let metrics = metrics_exporter_prometheus::PrometheusBuilder::new().install_recorder()?;
    // Tokens expire, so that the password is sent again and again.
    let guarded = Guarded::start(&["--auth-token-ttl=1"]).await?;
    let endpoint = guarded.etcd.endpoint();
    let options = Guarded::options("me", PASSWORD);
    let mut shown = vec![format!("{options:?}")];
    let session = Session::connect([&endpoint], options).await?;
    let election = session.election("jobs")?;
    let mut observer = election.observe().await?;
    let mut candidate = election.campaign().await?;
    let leadership = timeout(LONG, candidate.elected()).await??;
    let (logins, begin) = (
        guarded.logins().await,
        leadership.valid_until().since_boot(),
    );
    eventually(LONG, "renewed", async || {
        (leadership.valid_until().since_boot() > begin + TTL / 2).then_some(())
    })
    .await?;
    assert!(guarded.logins().await > logins, "it was sent again");
    let roster = timeout(LONG, observer.next()).await?.expect("goes on")?;
    shown.extend([
        format!("{session:?} {:?}", session.state()),
        format!("{:?}", session.state().borrow().clone()),
        format!("{election:?} {observer:?} {roster:?} {candidate:?}"),
        format!("{:?} {leadership:?}", candidate.status()),
        format!("{:?} {:?}", leadership.term(), leadership.valid_until()),
        format!(
            "{:?}",
            Session::connect_lazy([&endpoint], Guarded::options("me", PASSWORD))?
        ),
    ]);

    let mut errors = refused(&guarded).await;
    errors.extend(election.campaign().await.err());
    leadership.resign().await?;
    errors.extend(leadership.txn([]).await.err());
    errors.extend(candidate.elected().await.err());
    assert_eq!(errors.len(), 7, "{errors:?}");
    for error in errors {
        shown.push(format!("{error} {error:?} {error:#?}"));
    }
    session.close().await?;
    #[cfg(feature = "metrics")]
    {
        let page = metrics.render();
        for measured in ["eldest_renewals_total", "eldest_terms_started_total"] {
            assert!(page.contains(measured), "{measured} is missing in {page}");
        }
        shown.push(page);
    }
    let leak = shown.iter().find(|text| text.contains(CANARY));
    assert_eq!(leak, None, "leaked secret");
    assert!(!logs.contain(CANARY), "leaked secret: in the log");
    // The log would show the secret: the lower libraries log their requests, and so does this one.
    let lines = logs.lines();
    assert!(lines.iter().any(|line| line.level == tracing::Level::TRACE));
    assert!(logs.contain("lease granted"));
    Ok(())
}

//! Tests that a view of a term that outlives the work is invalid before another node receives the key.

use crate::common::in_memory;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eldest::{CancellationToken, Session, SessionOptions, Term};
use eldest_testing::MemoryEtcd;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const GUARD: Duration = Duration::from_secs(30);

async fn session(etcd: &MemoryEtcd) -> Result<Session> {
    let options = SessionOptions::new("node").ttl(Duration::from_secs(20));
    Ok(etcd.session(options).await?)
}

#[tokio::test(start_paused = true)]
async fn no_view_of_a_term_is_valid_after_its_run_returned() -> Result {
    let etcd = in_memory();
    let session = session(&etcd).await?;
    let election = session.election("jobs")?;
    let shutdown = CancellationToken::new();
    let kept: Arc<Mutex<Option<Term>>> = Arc::default();
    let run = election.run(shutdown.clone(), |leadership| {
        *kept.lock().unwrap() = Some(leadership.term());
        shutdown.cancel();
        async move {
            leadership.lost().cancelled().await;
            assert!(leadership.is_valid(), "the work may still wind up");
            Ok::<_, eldest::BoxError>(())
        }
    });
    tokio::time::timeout(GUARD, run).await??;
    let term = kept.lock().unwrap().take().expect("it led");
    assert!(
        !term.is_valid(),
        "the key is gone, another may lead: {term:?}"
    );
    assert_eq!(election.leader().await?, None);
    session.close().await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn no_view_of_a_dropped_leadership_of_a_closing_session_is_valid() -> Result {
    let etcd = in_memory();
    let session = session(&etcd).await?;
    let mut candidate = session.election("jobs")?.campaign().await?;
    let leadership = tokio::time::timeout(GUARD, candidate.elected()).await??;
    let term = leadership.term();
    let close = tokio::spawn({
        let session = session.clone();
        async move { session.close().await }
    });
    tokio::time::timeout(GUARD, term.lost().cancelled()).await?;
    assert!(term.is_valid(), "its work may still wind up");
    drop(leadership);
    assert!(!term.is_valid(), "nobody works under it any more");
    tokio::time::timeout(GUARD, close).await???;
    Ok(())
}

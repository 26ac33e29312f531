//! Tests handles that a thread outside of every tokio runtime uses.

use std::future::ready;

use crate::common::{Result, SOON, options};
use eldest::{BoxError, Op, Session};
use eldest_testing::{Etcd, MemoryEtcd};
use tokio::runtime::Builder;

/// Uses each kind of handle. Every wait happens on this thread.
async fn uses(session: &Session) -> Result {
    let election = session.election("e")?;
    let mut changes = election.observe().await?;
    let mut candidate = election.campaign().await?;
    let leadership = candidate.elected().await?;
    leadership.txn([Op::put("written", "outside")]).await?;
    leadership.proclaim("elsewhere").await?;
    leadership.spawn(async {})?;
    assert!(changes.next().await.is_some());
    assert_eq!(election.roster().await?.members().len(), 1);
    leadership.step_down().await?;
    drop(leadership);
    candidate.elected().await?.resign().await?;
    candidate.leave().await?;
    let run = election.run(ready(()), async |_leadership| Ok::<(), BoxError>(()));
    assert_eq!(run.await?, None);

    let lock = session.lock("l")?;
    let guard = lock.acquire_timeout(SOON).await?.expect("it is free");
    assert!(lock.try_acquire().await?.is_none());
    guard.release().await?;
    session
        .semaphore("s", 2)?
        .acquire()
        .await?
        .release()
        .await?;
    session.group("g")?.join().await?.leave().await?;
    let mut member = session.partitions("p", 2)?.join().await?;
    drop(member.owned().await?);
    member.leave().await?;
    Ok(session.close().await?)
}

#[test]
fn handles_work_outside_of_a_runtime() -> Result {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let etcd = runtime.block_on(Etcd::start())?;
    let connect = Session::connect([etcd.endpoint()], options("a"));
    let session = runtime.block_on(connect)?;
    futures::executor::block_on(uses(&session))?;

    let etcd = runtime.block_on(async { MemoryEtcd::start() });
    let session = runtime.block_on(etcd.session(options("a")))?;
    futures::executor::block_on(uses(&session))
}

#[test]
fn handles_of_a_gone_runtime_return_an_error_outside_of_a_runtime() -> Result {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let etcd = runtime.block_on(Etcd::start())?;
    let connect = Session::connect([etcd.endpoint()], options("a"));
    let session = runtime.block_on(connect)?;
    drop(runtime);
    let error = futures::executor::block_on(uses(&session)).expect_err("nothing runs");
    let error = error.downcast::<eldest::Error>()?;
    assert_eq!(error.kind(), eldest::ErrorKind::Closed);
    Ok(())
}

//! Counts the resources that a process holds, here and in etcd.

use std::time::Duration;

use eldest::BoxError;
use eldest_testing::history::Resources;
use eldest_testing::{Etcd, eventually};
use etcd_client::Client;
use tokio::runtime::Handle;

type Result<T = ()> = std::result::Result<T, BoxError>;

const PATIENCE: Duration = Duration::from_secs(20);

fn entries(folder: &str) -> Result<u64> {
    Ok(std::fs::read_dir(folder)?.count() as u64)
}

/// Counts what is in use now, here and in etcd.
pub(crate) async fn in_use(etcd: &Etcd, client: &Client) -> Result<Resources> {
    let mut client = client.clone();
    let leases = client.leases().await?.leases().len() as u64;
    let all = etcd_client::GetOptions::new().with_all_keys();
    let keys = client.get("", Some(all.with_count_only())).await?.count() as u64;
    let watchers = etcd.metric("etcd_debugging_mvcc_watcher_total").await as u64;
    Ok(Resources {
        leases,
        keys,
        watchers,
        tasks: Handle::current().metrics().num_alive_tasks() as u64,
        threads: entries("/proc/self/task")?,
        fds: entries("/proc/self/fd")?,
    })
}

/// Returns the resources in use without sessions: the tasks of the test itself. A baseline includes the threads and
/// descriptors that a process has only once.
pub(crate) fn idle(own: &Resources) -> Resources {
    Resources {
        tasks: own.tasks,
        threads: u64::MAX,
        fds: u64::MAX,
        ..Resources::default()
    }
}

/// Waits until no more than `allowed` is in use, because some resources are released in the background.
pub(crate) async fn settled(etcd: &Etcd, client: &Client, allowed: Resources) -> Result<Resources> {
    let mut last = Resources::default();
    let waited = eventually(PATIENCE, "all is given back", async || {
        last = in_use(etcd, client).await.ok()?;
        let fits = last.leases <= allowed.leases
            && last.keys <= allowed.keys
            && last.watchers <= allowed.watchers
            && last.tasks <= allowed.tasks
            && last.threads <= allowed.threads
            && last.fds <= allowed.fds;
        fits.then_some(())
    });
    // If it fails, the history shows the excess.
    drop(waited.await);
    Ok(last)
}

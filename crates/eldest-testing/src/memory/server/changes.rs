//! Counts the changes of the cluster, and wakes waiting tasks in the order in which they began to wait.
//!
//! tokio's `watch` would wake them in a random order, and a seed would not reproduce the same run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// The end that announces changes. Clones share the same count.
#[derive(Debug, Clone, Default)]
pub(crate) struct Changes(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    count: AtomicU64,
    waiting: Notify,
}

impl Changes {
    pub(crate) fn notify(&self) {
        self.0.count.fetch_add(1, Ordering::SeqCst);
        self.0.waiting.notify_waiters();
    }

    /// Returns a receiver of the changes from now on.
    pub(crate) fn subscribe(&self) -> Changed {
        Changed {
            changes: self.clone(),
            seen: self.0.count.load(Ordering::SeqCst),
        }
    }
}

/// The end that waits for changes.
#[derive(Debug)]
pub(crate) struct Changed {
    changes: Changes,
    /// The count of changes when the receiver last read it.
    seen: u64,
}

impl Changed {
    /// Waits for a change since the last call, or since the subscription.
    ///
    /// # Cancellation safety
    ///
    /// No change is lost.
    pub(crate) async fn changed(&mut self) {
        let Shared { count, waiting } = &*self.changes.0;
        loop {
            // Created before the count is read, so that a later change wakes it.
            let notified = waiting.notified();
            let now = count.load(Ordering::SeqCst);
            if now != self.seen {
                self.seen = now;
                return;
            }
            notified.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test]
    async fn longest_waiting_task_is_woken_first() {
        let changes = Changes::default();
        for _ in 0..20 {
            let woken = Mutex::new(Vec::new());
            let waiting = (0..10).map(|number| {
                let (mut waiter, woken) = (changes.subscribe(), &woken);
                async move {
                    waiter.changed().await;
                    woken.lock().unwrap().push(number);
                }
            });
            // The set polls the futures in the order in which they are woken.
            let all: futures::stream::FuturesUnordered<_> = waiting.collect();
            let all = futures::StreamExt::collect::<Vec<()>>(all);
            let notify = async {
                tokio::task::yield_now().await;
                changes.notify();
            };
            tokio::join!(all, notify);
            let woken = woken.into_inner().unwrap();
            assert_eq!(woken, {
                let mut sorted = woken.clone();
                sorted.sort_unstable();
                sorted
            });
        }
    }

    #[tokio::test]
    async fn a_change_between_two_calls_is_not_lost() {
        let changes = Changes::default();
        let mut waiter = changes.subscribe();
        changes.notify();
        changes.notify();
        waiter.changed().await;
        let none = futures::FutureExt::now_or_never(waiter.changed());
        assert!(none.is_none(), "two changes are reported once");
        changes.notify();
        waiter.changed().await;
    }
}

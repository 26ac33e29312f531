//! Follows an observer in a task, and shows its newest state to routes until the last of them is dropped.

use std::sync::Arc;
use std::time::Duration;

use eldest::internal::{Freshness, Inside, SharedEnv};
use eldest::{Election, Member, PartitionMap, Partitions};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use tokio::sync::watch;

/// The last view of etcd.
#[derive(Debug, Clone)]
pub(crate) enum View {
    /// No state was seen yet.
    Unknown,
    Election(Option<Member>),
    Partitions(PartitionMap),
    /// etcd refuses to show the keys, or shows that the partitions have another count.
    Refused(eldest::Error),
    /// The session was closed.
    Closed,
    /// The leader that a test names.
    #[cfg(test)]
    Named(Option<crate::Destination>),
}

/// The newest state, and how fresh it is.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) view: View,
    pub(crate) freshness: Option<Freshness>,
}

/// The changes that one observer reports, until it ends.
struct Changes {
    views: BoxStream<'static, eldest::Result<View>>,
    freshness: Freshness,
}

/// Starts an observer; called again after etcd ended the former one.
type Start = Box<dyn Fn() -> BoxFuture<'static, eldest::Result<Changes>> + Send + Sync>;

pub(crate) async fn election(election: &Election) -> eldest::Result<watch::Receiver<Seen>> {
    let inside = Inside::from(election);
    let (env, pause) = (Arc::clone(inside.env()), inside.ttl() / 3);
    let election = election.clone();
    let start = move || -> BoxFuture<'static, _> {
        let election = election.clone();
        Box::pin(async move {
            let observer = election.observe().await?;
            let freshness = Freshness::of(&observer);
            let views = observer.map(|roster| {
                let roster = roster?;
                let leader = roster.leader().filter(|leader| leader.is_serving());
                Ok(View::Election(leader.cloned()))
            });
            Ok(Changes {
                views: views.boxed(),
                freshness,
            })
        })
    };
    follow(Box::new(start), env, pause).await
}

pub(crate) async fn partitions(partitions: &Partitions) -> eldest::Result<watch::Receiver<Seen>> {
    let inside = Inside::from(partitions);
    let (env, pause) = (Arc::clone(inside.env()), inside.ttl() / 3);
    let partitions = partitions.clone();
    let start = move || -> BoxFuture<'static, _> {
        let partitions = partitions.clone();
        Box::pin(async move {
            let observer = partitions.observe().await?;
            let freshness = Freshness::of_map(&observer);
            let views = observer.map(|map| Ok(View::Partitions(map?)));
            Ok(Changes {
                views: views.boxed(),
                freshness,
            })
        })
    };
    follow(Box::new(start), env, pause).await
}

/// Starts the task. The first observer is started here, so that a closed session is an error of the caller.
async fn follow(
    start: Start,
    env: SharedEnv,
    pause: Duration,
) -> eldest::Result<watch::Receiver<Seen>> {
    let mut changes = start().await?;
    let (sender, receiver) = watch::channel(Seen {
        view: View::Unknown,
        freshness: Some(changes.freshness.clone()),
    });
    let timers = Arc::clone(&env);
    env.spawn(Box::pin(async move {
        let following = async {
            loop {
                let refused = show(&sender, changes).await;
                if !refused {
                    break;
                }
                timers.sleep(pause).await;
                match start().await {
                    Ok(next) => changes = next,
                    Err(_) => break,
                }
            }
            sender.send_modify(|seen| seen.view = View::Closed);
        };
        tokio::select! {
            () = sender.closed() => {}
            () = following => {}
        }
    }));
    Ok(receiver)
}

/// Shows each change until there are no more. Returns true if the last one was a refusal.
async fn show(sender: &watch::Sender<Seen>, mut changes: Changes) -> bool {
    let mut refused = false;
    while let Some(view) = changes.views.next().await {
        refused = view.is_err();
        sender.send_replace(Seen {
            view: view.unwrap_or_else(View::Refused),
            freshness: Some(changes.freshness.clone()),
        });
    }
    refused
}

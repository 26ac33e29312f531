//! Leads many elections with as few bare calls as etcd allows, several at the same time: the *limit* of `many`.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use etcd_client::{
    Client, Compare, CompareOp, DeleteOptions, GetOptions, PutOptions, Txn, TxnOp, TxnOpResponse,
    TxnResponse, WatchOptions, WatchRequestSender,
};
use futures::future::try_join_all;
use futures::{StreamExt, TryStreamExt, stream};
use tokio::sync::mpsc;

use crate::peer::Context;

/// The number of elections in one transaction: each needs two of etcd's 128 operations.
const IN_ONE: usize = 64;
/// The number of transactions in flight on all connections together.
const AT_ONCE: usize = 16;
/// The number of connections for transactions, and of those for watches. More did not make it faster with two
/// processors.
const CONNECTIONS: usize = 2;
/// How long etcd may take for one more watch.
const PATIENCE: Duration = Duration::from_secs(10);

/// The keys of many elections, and their watches.
pub(super) struct Bare {
    clients: Vec<Client>,
    lease: i64,
    watches: Vec<Watches>,
}

impl Bare {
    /// Connects, and grants a lease.
    pub(super) async fn connect(context: &Context) -> Result<Self> {
        let (client, lease) = context.with_lease().await?;
        let (mut clients, mut watches) = (vec![client], Vec::new());
        while clients.len() < CONNECTIONS {
            clients.push(context.client().await?);
        }
        for _ in 0..CONNECTIONS {
            watches.push(Watches::open(&mut context.client().await?).await?);
        }
        Ok(Self {
            clients,
            lease,
            watches,
        })
    }

    /// Watches each of `n` elections, puts a key for it and reads its first candidate. Returns once etcd has begun all
    /// watches.
    pub(super) async fn lead(&mut self, prefix: &str, n: usize) -> Result<()> {
        let batches = (0..n).step_by(IN_ONE).enumerate().map(|(at, first)| {
            let mut client = self.clients[at % self.clients.len()].clone();
            let (prefix, lease) = (prefix.to_owned(), self.lease);
            async move {
                // A task of its own, so that all processors write requests.
                let put = async move {
                    let numbers = first..n.min(first + IN_ONE);
                    let all = numbers.len();
                    let joined = client.txn(join(&prefix, numbers, lease)).await?;
                    ensure!(leads(&joined) == all, "somebody else stands there");
                    anyhow::Ok(())
                };
                tokio::spawn(put).await??;
                anyhow::Ok(())
            }
        });
        let puts = stream::iter(batches)
            .buffer_unordered(AT_ONCE)
            .try_for_each(|()| async { Ok(()) });
        let share = n.div_ceil(CONNECTIONS);
        let watches = self.watches.iter_mut().enumerate().map(|(at, watches)| {
            watches.watch(prefix, (at * share).min(n)..((at + 1) * share).min(n))
        });
        tokio::try_join!(puts, try_join_all(watches))?;
        Ok(())
    }

    /// Ends the watches and deletes the keys.
    pub(super) async fn leave(&mut self, prefix: &str) -> Result<()> {
        for watches in &mut self.watches {
            watches.cancel().await?;
        }
        let all = DeleteOptions::new().with_prefix();
        self.clients[0]
            .delete(format!("{prefix}/"), Some(all))
            .await?;
        Ok(())
    }
}

/// Returns one transaction that joins those elections.
fn join(prefix: &str, numbers: std::ops::Range<usize>, lease: i64) -> Txn {
    let mut compares = Vec::new();
    let mut operations = Vec::new();
    for number in numbers {
        let key = format!("{prefix}/{number}/{lease:x}");
        compares.push(Compare::create_revision(key.clone(), CompareOp::Equal, 0));
        let options = PutOptions::new().with_lease(lease);
        operations.push(TxnOp::put(key, "bench", Some(options)));
        let first = GetOptions::new().with_prefix().with_limit(1);
        operations.push(TxnOp::get(format!("{prefix}/{number}/"), Some(first)));
    }
    Txn::new().when(compares).and_then(operations)
}

/// Reads the answer, as every leader must: returns the number of elections in which a key was put and is the only one.
fn leads(joined: &TxnResponse) -> usize {
    let responses = joined.op_responses().into_iter();
    let alone = responses.filter(|response| match response {
        // etcd counts all keys, however many it returns.
        TxnOpResponse::Get(found) => found.count() == 1,
        _ => false,
    });
    if joined.succeeded() { alone.count() } else { 0 }
}

/// Watches of one stream: one for each election, as the library has them.
struct Watches {
    sender: WatchRequestSender,
    /// Receives the numbers of the watches that etcd has begun.
    begun: mpsc::UnboundedReceiver<i64>,
    /// The watches that were created and not cancelled.
    there: Vec<i64>,
}

impl Watches {
    /// Opens a stream with one watch that stays, because a stream cannot begin without one.
    async fn open(client: &mut Client) -> Result<Self> {
        let stream = client.watch("nothing", None).await?;
        let (sender, mut stream) = stream.split();
        let (tell, begun) = mpsc::unbounded_channel();
        // A task of its own reads the answers: etcd takes no more requests while they are unread.
        tokio::spawn(async move {
            while let Ok(Some(message)) = stream.message().await {
                if message.created() && tell.send(message.watch_id()).is_err() {
                    return;
                }
            }
        });
        let mut watches = Self {
            sender,
            begun,
            there: Vec::new(),
        };
        watches.next().await?;
        Ok(watches)
    }

    /// Watches those elections; returns once all are watched.
    async fn watch(&mut self, prefix: &str, numbers: std::ops::Range<usize>) -> Result<()> {
        let n = numbers.len();
        for number in numbers {
            let whole = WatchOptions::new().with_prefix();
            let queue = format!("{prefix}/{number}/");
            self.sender.watch(queue, Some(whole)).await?;
        }
        for _ in 0..n {
            let id = self.next().await?;
            self.there.push(id);
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<i64> {
        let next = tokio::time::timeout(PATIENCE, self.begun.recv()).await?;
        next.context("the stream of watches has ended")
    }

    async fn cancel(&mut self) -> Result<()> {
        for id in self.there.drain(..) {
            self.sender.cancel(id).await?;
        }
        Ok(())
    }
}

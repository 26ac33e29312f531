//! Makes only the calls that a candidate cannot do without, through a bare client. It uses as many watches as the
//! library, of the same kind, so its figures are a lower limit.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use etcd_client::{
    Client, Compare, CompareOp, EventType, GetOptions, PutOptions, Txn, TxnOp, WatchOptions,
    WatchRequestSender, WatchResponseStream,
};
use tokio::sync::mpsc;

use crate::peer::Context;
use crate::standing::Stands;

/// The number of candidates up to which the library's candidates watch the whole queue; beyond it they follow their
/// predecessor.
pub(crate) const WHOLE_QUEUE: usize = 64;

const PATIENCE: Duration = Duration::from_secs(5);

/// The keys that a candidate watches.
#[derive(Debug, Clone, Copy)]
enum View {
    /// There is no other candidate.
    Nothing,
    Queue,
    /// Its own key, and the predecessor's.
    Predecessor,
}

/// An event of a watcher: the deleted key, and the time of its arrival.
type Heard = (Vec<u8>, Instant);

/// A bare candidate: a key and a watcher.
pub(crate) struct Standing {
    client: Client,
    lease: i64,
    view: View,
    key: String,
    ahead: Option<String>,
    watcher: Option<WatchRequestSender>,
    heard: Option<mpsc::UnboundedReceiver<Heard>>,
}

impl Stands for Standing {
    async fn connect(context: &Context, queue: usize) -> Result<Self> {
        let (client, lease) = context.with_lease().await?;
        Ok(Self {
            client,
            lease,
            view: match queue {
                0..=1 => View::Nothing,
                2..=WHOLE_QUEUE => View::Queue,
                _ => View::Predecessor,
            },
            key: String::new(),
            ahead: None,
            watcher: None,
            heard: None,
        })
    }

    async fn join(&mut self, election: &str, ahead: Option<&Self>) -> Result<()> {
        self.key = format!("{election}/{:x}", self.lease);
        self.ahead = ahead.map(|ahead| ahead.key.clone());
        match self.view {
            View::Nothing => {}
            View::Queue if self.watcher.is_some() => {}
            View::Queue => {
                let prefix = format!("{election}/");
                let whole = WatchOptions::new().with_prefix();
                self.watch(&[(prefix, Some(whole))]).await?;
            }
            View::Predecessor => {
                let keys = [Some(self.key.clone()), self.ahead.clone()];
                let keys: Vec<_> = keys.into_iter().flatten().map(|key| (key, None)).collect();
                self.watch(&keys).await?;
            }
        }
        // A join puts the key if it is absent, and reads all keys of the election.
        let absent = Compare::create_revision(self.key.clone(), CompareOp::Equal, 0);
        let options = PutOptions::new().with_lease(self.lease);
        let put = TxnOp::put(self.key.clone(), "bench", Some(options));
        let limit = GetOptions::new().with_prefix().with_limit(1);
        let read = TxnOp::get(format!("{election}/"), Some(limit));
        let join = Txn::new().when([absent]).and_then([put, read]);
        self.client.txn(join).await?;
        Ok(())
    }

    async fn lead(&mut self) -> Result<Instant> {
        let Some(ahead) = &self.ahead else {
            return Ok(Instant::now());
        };
        let heard = self.heard.as_mut().context("not watching")?;
        loop {
            let next = tokio::time::timeout(PATIENCE, heard.recv()).await?;
            let (key, at) = next.context("the watch has ended")?;
            if key == ahead.as_bytes() {
                return Ok(at);
            }
        }
    }

    async fn resign(&mut self) -> Result<()> {
        self.client.delete(self.key.clone(), None).await?;
        Ok(())
    }
}

impl Standing {
    /// Watches these keys on a stream of its own, instead of the former ones.
    async fn watch(&mut self, keys: &[(String, Option<WatchOptions>)]) -> Result<()> {
        let (sender, heard) = mpsc::unbounded_channel();
        let [first, others @ ..] = keys else {
            bail!("nothing to watch");
        };
        let stream = self.client.watch(first.0.clone(), first.1.clone()).await?;
        let (mut watcher, stream) = stream.split();
        for (key, options) in others {
            watcher.watch(key.clone(), options.clone()).await?;
        }
        let (created, all) = tokio::sync::oneshot::channel();
        tokio::spawn(read(stream, keys.len(), created, sender));
        tokio::time::timeout(PATIENCE, all).await??;
        (self.watcher, self.heard) = (Some(watcher), Some(heard));
        Ok(())
    }
}

/// Reports when all watches exist, and then each deleted key.
async fn read(
    mut stream: WatchResponseStream,
    mut awaited: usize,
    created: tokio::sync::oneshot::Sender<()>,
    heard: mpsc::UnboundedSender<Heard>,
) {
    let mut created = Some(created);
    loop {
        let message = tokio::select! {
            message = stream.message() => message,
            () = heard.closed() => return,
        };
        let Ok(Some(message)) = message else { return };
        let now = Instant::now();
        if message.created() {
            awaited = awaited.saturating_sub(1);
            if awaited == 0
                && let Some(created) = created.take()
            {
                let _ = created.send(());
            }
        }
        for event in message.events() {
            if event.event_type() == EventType::Delete
                && let Some(pair) = event.kv()
            {
                let _ = heard.send((pair.key().to_vec(), now));
            }
        }
    }
}

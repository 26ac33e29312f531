//! Measures takeovers: loses a leader, and takes the time until its successor knows that it leads.

pub(super) mod guarded;
pub(super) mod killed;
mod node;

use std::collections::HashMap;
use std::time::Instant;

use anyhow::{Context as _, Result};
use etcd_client::{Client, EventType, WatchOptions};
use futures::future::BoxFuture;
use tokio::sync::mpsc;

use crate::peer::{Peer, first};
use crate::run::Run;
use crate::standing::wall_now;

/// Loses a leader's process, in one way or another.
type Loss = for<'a> fn(&'a mut Peer) -> BoxFuture<'a, Result<()>>;

/// A leader and its successor, each in its own process, in an election of their own.
struct Pair {
    election: String,
    /// The time at which the leader's lease was granted, plus the duration of an answer.
    began: Instant,
    leader: Peer,
    successor: Peer,
}

/// The moments of a takeover by the wall clock, in nanoseconds.
struct Takeover {
    election: String,
    /// The moment at which the leader was lost.
    from: f64,
    led: f64,
}

impl Pair {
    /// Starts two processes of a peer; `None` if the peer is not available.
    async fn start(
        run: &mut Run<'_>,
        name: &str,
        election: String,
        ttl: u64,
    ) -> Result<Option<Self>> {
        let (Some(mut leader), Some(mut successor)) =
            (run.peer(name).await?, run.peer(name).await?)
        else {
            return Ok(None);
        };
        for peer in [&mut leader, &mut successor] {
            peer.ask(&format!("ttl {ttl}")).await?;
        }
        leader.ask(&format!("stand {election} 2")).await?;
        let began = Instant::now();
        successor.ask(&format!("stand {election} 2")).await?;
        leader.ask("lead").await?;
        Ok(Some(Self {
            election,
            began,
            leader,
            successor,
        }))
    }

    /// Loses the leader at that moment, and waits for its successor.
    async fn lose_at(mut self, at: Instant, loss: Loss) -> Result<Takeover> {
        self.successor.question("lead").await?;
        tokio::time::sleep_until(at.into()).await;
        let from = wall_now()?;
        loss(&mut self.leader).await?;
        let led = first(&self.successor.answer().await?)?;
        self.successor.end().await?;
        Ok(Takeover {
            election: self.election,
            from,
            led,
        })
    }
}

/// A bare watcher of all keys.
struct Deletes(mpsc::UnboundedReceiver<(String, f64)>);

impl Deletes {
    async fn watch(client: &mut Client) -> Result<Self> {
        let options = WatchOptions::new().with_all_keys();
        let mut stream = client.watch("", Some(options)).await?;
        let (sender, deletes) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok(Some(message)) = stream.message().await {
                let Ok(at) = wall_now() else { return };
                for event in message.events() {
                    let key = event.kv().map_or(&[][..], |pair| pair.key());
                    let key = String::from_utf8_lossy(key).into_owned();
                    if event.event_type() == EventType::Delete && sender.send((key, at)).is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Self(deletes))
    }

    /// Returns the keys whose deletes have arrived, each with the moment of its first one by the wall clock, in
    /// nanoseconds.
    fn seen(&mut self) -> HashMap<String, f64> {
        let mut seen = HashMap::new();
        while let Ok((key, at)) = self.0.try_recv() {
            seen.entry(key).or_insert(at);
        }
        seen
    }
}

/// Returns when the first key of an election was deleted: the leader's, because its successor's goes later.
fn first_delete(seen: &HashMap<String, f64>, election: &str) -> Result<f64> {
    let prefix = format!("{election}/");
    let of_it = seen.iter().filter(|(key, _)| key.contains(&prefix));
    let at = of_it.map(|(_, at)| *at).min_by(f64::total_cmp);
    at.context("etcd deleted no key of it")
}

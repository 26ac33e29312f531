//! Measures takeovers: loses a leader, and takes the time until its successor knows that it leads.

pub(super) mod guarded;
mod host;
pub(super) mod killed;
pub(super) mod node;
pub(super) mod silent;

use std::collections::HashMap;
use std::time::Instant;

use anyhow::{Context as _, Result};
use etcd_client::{Client, EventType, WatchOptions};
use futures::future::{BoxFuture, try_join_all};
use tokio::sync::mpsc;

use crate::peer::{Peer, first};
use crate::standing::wall_now;

/// Loses a process, in one way or another.
type Loss = for<'a> fn(&'a mut Peer) -> BoxFuture<'a, Result<()>>;

/// A leader and its successors, each in its own process, in an election of their own.
struct Queue {
    election: String,
    /// The time at which the leader's lease was granted, plus the duration of an answer.
    began: Instant,
    /// The processes, the leader first.
    peers: Vec<Peer>,
}

/// The moments of a takeover by the wall clock, in nanoseconds.
struct Takeover {
    election: String,
    /// The moment at which the leader was lost.
    from: f64,
    led: f64,
}

impl Queue {
    /// Lets the processes stand one after the other; `count` is the second argument of their question `stand`.
    async fn stand(election: String, count: usize, mut peers: Vec<Peer>) -> Result<Self> {
        let mut began = Instant::now();
        for (place, peer) in peers.iter_mut().enumerate() {
            peer.ask(&format!("stand {election} {count}")).await?;
            if place == 0 {
                began = Instant::now();
            }
        }
        let leader = peers.first_mut().context("nobody stands")?;
        leader.ask("lead").await?;
        Ok(Self {
            election,
            began,
            peers,
        })
    }

    /// Loses all processes but the last one at that moment, and waits until that one leads.
    async fn lose_at(mut self, at: Instant, loss: Loss) -> Result<Takeover> {
        let mut successor = self.peers.pop().context("no successor")?;
        successor.question("lead").await?;
        tokio::time::sleep_until(at.into()).await;
        let from = wall_now()?;
        try_join_all(self.peers.iter_mut().map(loss)).await?;
        let led = first(&successor.answer().await?)?;
        for mut lost in self.peers {
            lost.kill().await?;
        }
        successor.end().await?;
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

//! Records, as an independent client, the changes of an election's keys, the newest revision and the life of the
//! oldest keys' leases.
//!
//! It shares no code with the library under test: a bare client, a list, a watch from a known revision. If that
//! revision has been compacted, it lists again and records a [`Change::Gap`].

// The observer's timers use real time, even if the library under test has another clock.
#![allow(clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{
    Client, Error, EventType, GetOptions, KeyValue, ResponseHeader, WatchOptions, WatchStream,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::{Change, Recorder, What};
use crate::error::{Error as TestError, Result as TestResult};

/// The node name for events of etcd.
const NODE: &str = "etcd";
/// The pause between two requests about the newest revision and the leases of the oldest keys.
const POLL: Duration = Duration::from_millis(250);
/// The time limit of one request.
const REQUEST: Duration = Duration::from_secs(1);
/// How long a watch may be silent before the recorder requests its progress, and then abandons it.
const SILENCE: Duration = Duration::from_secs(2);
/// The pause after an error.
const RETRY: Duration = Duration::from_millis(100);
/// The time limit of the final list, and then of the watch that must reach its revision.
const STOP: Duration = Duration::from_secs(10);
/// The number of keys whose leases are polled: the leader's and those of the next two.
const ELDEST: usize = 3;
/// The maximum size of an answer, which may be large after an outage.
const MESSAGE_LIMIT: usize = 256 << 20;

/// Records the changes of one election's keys, and the life of its leader's lease, until it is stopped.
///
/// Start it before the first candidate joins and stop it after the last event of interest: [`check`](super::check)
/// knows nothing of the time outside. Its client should reach etcd also while the nodes cannot.
///
/// The keys are all those exactly one level below the prefix. Dropping the recorder ends it at once.
pub struct TruthRecorder {
    shared: Arc<Shared>,
    stop: watch::Sender<Option<Listing>>,
    follower: JoinHandle<()>,
    poller: JoinHandle<()>,
}

struct Shared {
    client: Client,
    recorder: Recorder,
    election: String,
    prefix: Vec<u8>,
    state: Mutex<State>,
}

/// The prefix as known at one revision.
#[derive(Debug, Clone, Default)]
struct Listing {
    revision: i64,
    keys: BTreeMap<Vec<u8>, Key>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key {
    create_revision: i64,
    lease: i64,
}

#[derive(Debug, Default)]
struct State {
    known: Listing,
    /// Leases of deleted keys, and how often they are still to be polled.
    departed: Vec<(i64, u8)>,
}

/// The reason why a watch ended.
enum Ended {
    /// All requested changes are recorded.
    Complete,
    /// The next revision is compacted.
    Compacted,
    /// The watch ended otherwise; continue from the same revision.
    Broken,
}

impl TruthRecorder {
    /// Lists the keys below `prefix` (which ends with the delimiter, as `Election::prefix` does) and follows them, over
    /// its own connection to those endpoints (`http://HOST:PORT`).
    ///
    /// # Errors
    ///
    /// [`Unreachable`](crate::ErrorKind::Unreachable), [`Refused`](crate::ErrorKind::Refused): the first list failed.
    pub async fn start<E: AsRef<str>>(
        endpoints: impl IntoIterator<Item = E>,
        recorder: Recorder,
        election: impl Into<String>,
        prefix: impl Into<Vec<u8>>,
    ) -> TestResult<Self> {
        let endpoints: Vec<String> = endpoints.into_iter().map(|e| e.as_ref().into()).collect();
        let client = Client::connect(endpoints, None).await;
        let client = client.map_err(|error| TestError::of_etcd("connect to etcd", error))?;
        Self::over(client, recorder, election.into(), prefix.into()).await
    }

    /// Starts as [`start`](Self::start) does, with the caller's client, for example with a user or with TLS (feature
    /// `etcd-client`).
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    #[cfg(feature = "etcd-client")]
    pub async fn with_client(
        client: Client,
        recorder: Recorder,
        election: impl Into<String>,
        prefix: impl Into<Vec<u8>>,
    ) -> TestResult<Self> {
        Self::over(client, recorder, election.into(), prefix.into()).await
    }

    async fn over(
        client: Client,
        recorder: Recorder,
        election: String,
        prefix: Vec<u8>,
    ) -> TestResult<Self> {
        let shared = Arc::new(Shared {
            client,
            recorder,
            election,
            prefix,
            state: Mutex::default(),
        });
        let listing = shared.list().await;
        let listing = listing.map_err(|error| TestError::of_etcd("list the election", error))?;
        shared.reconcile(listing, true);
        let (stop, stopped) = watch::channel(None);
        Ok(TruthRecorder {
            follower: tokio::spawn(Arc::clone(&shared).follow(stopped)),
            poller: tokio::spawn(Arc::clone(&shared).poll()),
            shared,
            stop,
        })
    }

    /// Records everything up to now and ends. If etcd cannot be reached for 10 s, the rest is recorded as a gap.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future ends the recorder at once, without the gap.
    pub async fn stop(mut self) {
        let listed = timeout(STOP, async {
            loop {
                match timeout(REQUEST, self.shared.list()).await {
                    Ok(Ok(listing)) => return listing,
                    _ => sleep(RETRY).await,
                }
            }
        })
        .await;
        let complete = match listed {
            Ok(listing) => {
                self.stop.send_replace(Some(listing));
                timeout(STOP, &mut self.follower).await.is_ok()
            }
            Err(_) => false,
        };
        if !complete {
            let since = self.shared.state().known.revision;
            self.shared.record(i64::MAX, Change::Gap { since });
        }
    }
}

impl fmt::Debug for TruthRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TruthRecorder")
            .field("election", &self.shared.election)
            .finish_non_exhaustive()
    }
}

impl Drop for TruthRecorder {
    fn drop(&mut self) {
        self.follower.abort();
        self.poller.abort();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, revision: i64, change: Change) {
        self.record_at(self.recorder.now(), revision, change);
    }

    fn record_at(&self, at: Duration, revision: i64, change: Change) {
        let what = What::Truth { revision, change };
        self.recorder.record_at(at, NODE, &*self.election, what);
    }

    /// Returns true if the key is exactly one level below the prefix.
    fn counts(&self, key: &[u8]) -> bool {
        key.strip_prefix(&*self.prefix)
            .is_some_and(|rest| !rest.is_empty() && !rest.contains(&b'/'))
    }

    async fn list(&self) -> Result<Listing, Error> {
        let mut kv = self
            .client
            .kv_client()
            .max_decoding_message_size(MESSAGE_LIMIT);
        // The values are requested too, because etcd from 3.7 on does not report the leases of keys alone.
        let options = GetOptions::new().with_prefix();
        let answer = kv.get(&*self.prefix, Some(options)).await?;
        let keys = answer
            .kvs()
            .iter()
            .filter(|kv| self.counts(kv.key()))
            .map(|kv| (kv.key().to_vec(), Key::of(kv)))
            .collect();
        let revision = answer
            .header()
            .map_or(0, etcd_client::ResponseHeader::revision);
        Ok(Listing { revision, keys })
    }

    /// Brings the recorded state up to a newer list and records the difference, with a gap if there is any.
    fn reconcile(&self, listing: Listing, gap: bool) {
        let mut state = self.state();
        let State { known, departed } = &mut *state;
        if known.revision >= listing.revision {
            return;
        }
        let revision = listing.revision;
        if gap || known.keys != listing.keys {
            let since = known.revision;
            self.record(revision, Change::Gap { since });
        }
        for (key, was) in &known.keys {
            let same = |now: &Key| now.create_revision == was.create_revision;
            if !listing.keys.get(key).is_some_and(same) {
                departed.push((was.lease, 4));
                self.record(revision, was.deleted(key));
            }
        }
        for (key, now) in &listing.keys {
            match known.keys.get(key) {
                Some(was) if was == now => {}
                Some(was) if was.create_revision == now.create_revision => {
                    self.record(revision, now.overwritten(key));
                }
                _ => self.record(revision, now.created(key)),
            }
        }
        *known = listing;
    }

    async fn follow(self: Arc<Self>, mut stopped: watch::Receiver<Option<Listing>>) {
        loop {
            match self.watch_once(&mut stopped).await {
                Ok(Ended::Complete) => return,
                Ok(Ended::Compacted) => {
                    if let Ok(Ok(listing)) = timeout(REQUEST, self.list()).await {
                        self.reconcile(listing, true);
                        continue;
                    }
                }
                Ok(Ended::Broken) | Err(_) => {}
            }
            sleep(RETRY).await;
        }
    }

    /// Follows one watch from the next revision on, for as long as it works.
    async fn watch_once(
        &self,
        stopped: &mut watch::Receiver<Option<Listing>>,
    ) -> Result<Ended, Error> {
        let next = self.state().known.revision + 1;
        let mut client = self
            .client
            .watch_client()
            .max_decoding_message_size(MESSAGE_LIMIT);
        let options = WatchOptions::new().with_prefix().with_start_revision(next);
        let opened = timeout(REQUEST, client.watch(&*self.prefix, Some(options))).await;
        let Ok(stream) = opened else {
            return Ok(Ended::Broken);
        };
        let mut stream = stream?;
        let mut heard = Instant::now();
        let mut asked = Instant::now();
        loop {
            // While it stops, it requests progress often; otherwise only of a silent watch.
            let goal = stopped.borrow_and_update().clone();
            let ask_after = if goal.is_some() { RETRY / 2 } else { SILENCE };
            let message = tokio::select! {
                message = stream.message() => Some(message?),
                _ = stopped.changed(), if goal.is_none() => None,
                () = sleep(ask_after) => None,
            };
            let Some(message) = message else {
                if heard.elapsed() > SILENCE * 2 {
                    return Ok(Ended::Broken);
                }
                if asked.elapsed() >= ask_after {
                    asked = Instant::now();
                    ask_for_progress(&mut stream).await?;
                }
                continue;
            };
            let Some(message) = message else {
                return Ok(Ended::Broken);
            };
            heard = Instant::now();
            if message.canceled() {
                return Ok(if message.compact_revision() > 0 {
                    Ended::Compacted
                } else {
                    Ended::Broken
                });
            }
            for event in message.events() {
                if let Some(kv) = event.kv() {
                    self.apply(event.event_type(), kv);
                }
            }
            // A progress answer comes only once every watch of the stream has been served (from etcd 3.5 on; an older
            // one answers at once, and the changes that it still holds back show as a difference to the list).
            let progress = !message.created() && message.events().is_empty();
            let reached = message.header().map_or(0, ResponseHeader::revision);
            if let Some(goal) = goal
                && (self.state().known.revision >= goal.revision
                    || progress && reached >= goal.revision)
            {
                self.reconcile(goal, false);
                return Ok(Ended::Complete);
            }
        }
    }

    fn apply(&self, kind: EventType, kv: &KeyValue) {
        let mut state = self.state();
        let State { known, departed } = &mut *state;
        let revision = kv.mod_revision();
        known.revision = known.revision.max(revision);
        if !self.counts(kv.key()) {
            return;
        }
        let key = kv.key();
        match kind {
            EventType::Put => {
                let now = Key::of(kv);
                let change = match known.keys.insert(key.to_vec(), now) {
                    Some(_) => now.overwritten(key),
                    None => now.created(key),
                };
                self.record(revision, change);
            }
            EventType::Delete => {
                if let Some(was) = known.keys.remove(key) {
                    departed.push((was.lease, 4));
                    self.record(revision, was.deleted(key));
                }
            }
        }
    }

    /// Polls the newest revision, how long the leases of the oldest keys still live, and whether those of deleted keys are
    /// gone.
    async fn poll(self: Arc<Self>) {
        loop {
            let mut wanted: Vec<i64> = {
                let mut state = self.state();
                let mut eldest: Vec<Key> = state.known.keys.values().copied().collect();
                eldest.sort_by_key(|key| key.create_revision);
                let departed = state.departed.iter().map(|(lease, _)| *lease);
                let wanted = eldest
                    .iter()
                    .take(ELDEST)
                    .map(|key| key.lease)
                    .chain(departed)
                    .collect();
                state.departed.retain_mut(|(_, times)| {
                    *times -= 1;
                    *times > 0
                });
                wanted
            };
            wanted.sort_unstable();
            wanted.dedup();
            wanted.retain(|lease| *lease != 0);
            // Without an answer there is no evidence, so nothing is recorded.
            let _ = timeout(REQUEST, self.ask(&wanted)).await;
            sleep(POLL).await;
        }
    }

    async fn ask(&self, leases: &[i64]) -> Result<(), Error> {
        let mut answers = Vec::new();
        for lease in leases {
            let at = self.recorder.now();
            let answer = self
                .client
                .lease_client()
                .time_to_live(*lease, None)
                .await?;
            answers.push((at, *lease, answer));
        }
        // A deposed leader of etcd may still answer. A linearizable read proves which member leads: the same raft term
        // in a read that began after the answer means the same leader.
        let options = GetOptions::new().with_count_only();
        let sent = self.recorder.now();
        let proof = self
            .client
            .kv_client()
            .get(&*self.prefix, Some(options))
            .await?;
        let Some(proof) = proof.header() else {
            return Ok(());
        };
        self.record_at(sent, proof.revision(), Change::Current);
        for (at, lease, answer) in answers {
            let gone = answer.ttl() < 0 && answer.granted_ttl() == 0;
            // A leader that has not taken over its leases yet reports them as endless.
            let sane = answer.ttl() <= answer.granted_ttl() + 120;
            let left = match u64::try_from(answer.ttl()) {
                Ok(left) if sane => Some(Duration::from_secs(left)),
                Err(_) if gone => None,
                _ => continue,
            };
            let Some(header) = answer.header() else {
                continue;
            };
            if header.raft_term() == proof.raft_term() {
                let change = Change::Lease { lease, left };
                self.record_at(at, header.revision(), change);
            }
        }
        Ok(())
    }
}

/// Requests progress. It never blocks for long: a full queue means that the stream is stuck.
async fn ask_for_progress(stream: &mut WatchStream) -> Result<(), Error> {
    timeout(REQUEST, stream.request_progress())
        .await
        .unwrap_or(Ok(()))
}

impl Key {
    fn of(kv: &KeyValue) -> Self {
        Key {
            create_revision: kv.create_revision(),
            lease: kv.lease(),
        }
    }

    fn created(self, key: &[u8]) -> Change {
        Change::Created {
            key: printable(key),
            create_revision: self.create_revision,
            lease: self.lease,
        }
    }

    fn overwritten(self, key: &[u8]) -> Change {
        Change::Overwritten {
            key: printable(key),
            create_revision: self.create_revision,
            lease: self.lease,
        }
    }

    fn deleted(self, key: &[u8]) -> Change {
        Change::Deleted {
            key: printable(key),
            create_revision: self.create_revision,
        }
    }
}

fn printable(key: &[u8]) -> String {
    key.escape_ascii().to_string()
}

#[cfg(test)]
mod tests;

//! Serves one stream of watches: sends each watch its events, and decides when the stream may report progress.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use eldest_store::{Event, Keys, Store};
use etcd_client::proto::{PbWatchRequest, PbWatchRequestUnion, PbWatchResponse};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::{Status, Streaming};

use super::errors;
use super::member::{Member, leader_lost};
use super::wire;
use crate::memory::proto::{self, Header};

/// How often etcd serves watches that begin in the past.
const ROUND: Duration = Duration::from_millis(100);
/// The maximum number of revisions in one message of a watch that catches up.
const BATCH: usize = 1000;
/// The watch id of answers that concern no watch.
const NONE: i64 = -1;

type Answers = mpsc::Sender<Result<PbWatchResponse, Status>>;

#[expect(clippy::struct_excessive_bools, reason = "three are the request's")]
struct Watch {
    keys: Keys,
    prev_kv: bool,
    no_put: bool,
    no_delete: bool,
    /// The revision that the watch was created for; 0 means the present one.
    start: i64,
    /// The next revision to report.
    next: i64,
    /// The time at which a watch that began in the past is served.
    catches_up: Option<Instant>,
    /// True if the watch was answered that its revision is compacted. Until its client cancels it, it keeps its id, and
    /// the stream reports no progress.
    compacted: bool,
}

struct Stream {
    member: Member,
    watches: BTreeMap<i64, Watch>,
    interests: Interests,
    /// The time at which each watch that began in the past receives the events that it missed.
    late: BTreeSet<(Instant, i64)>,
    /// The revision up to which all other watches have received everything.
    reported: i64,
    next_id: i64,
}

/// Serves one stream until its client leaves.
pub(crate) async fn serve(
    member: Member,
    leader: bool,
    mut requests: Streaming<PbWatchRequest>,
    answers: Answers,
) {
    let mut changes = member.cluster.changes();
    let mut stream = Stream {
        member: member.clone(),
        watches: BTreeMap::new(),
        interests: Interests::default(),
        late: BTreeSet::new(),
        reported: member.cluster.view(member.me, |_, view| view),
        next_id: 0,
    };
    loop {
        let late = stream.late.first().map(|(at, _)| *at);
        let caught_up = async {
            match late {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        // A stream that hangs reads no requests either.
        let hangs = member.cluster.watched(member.me, |_, _| ()).is_none();
        let request = tokio::select! {
            biased;
            () = answers.closed() => return,
            () = leader_lost(&member, leader) => {
                // A client that has gone needs no answer.
                let _ = answers.send(Err(errors::no_leader())).await;
                return;
            }
            () = changes.changed() => None,
            request = requests.message(), if !hangs => match request {
                Ok(Some(request)) => Some(request),
                _ => return,
            },
            () = caught_up => None,
        };
        member.cluster.thawed(member.me).await;
        // Changes before the request are reported before its answer.
        let mut messages = stream.pending_messages();
        if let Some(request) = request {
            messages.extend(stream.take(request));
            messages.extend(stream.pending_messages());
        }
        for message in messages {
            if answers.send(Ok(message)).await.is_err() {
                return;
            }
        }
    }
}

impl Stream {
    fn take(&mut self, request: PbWatchRequest) -> Option<PbWatchResponse> {
        match request.request_union? {
            PbWatchRequestUnion::CreateRequest(create) => {
                let key = match &create.key[..] {
                    [] => &[0],
                    key => key,
                };
                let has = |filter: i32| create.filters.contains(&filter);
                let watch = Watch {
                    keys: Keys::new(key, &create.range_end),
                    prev_kv: create.prev_kv,
                    no_put: has(0),
                    no_delete: has(1),
                    start: create.start_revision,
                    next: 0,
                    catches_up: None,
                    compacted: false,
                };
                Some(self.create(create.watch_id, watch))
            }
            PbWatchRequestUnion::CancelRequest(cancel) => {
                let watch = self.watches.remove(&cancel.watch_id)?;
                self.interests.remove(&watch.keys, cancel.watch_id);
                if let Some(at) = watch.catches_up {
                    self.late.remove(&(at, cancel.watch_id));
                }
                let view = self.member.cluster.view(self.member.me, |_, view| view);
                let mut answer = self.message(view, cancel.watch_id);
                answer.canceled = true;
                Some(answer)
            }
            PbWatchRequestUnion::ProgressRequest(_) => {
                let view = self
                    .member
                    .cluster
                    .watched(self.member.me, |_, view| view)?;
                let apart = |watch: &Watch| {
                    watch.catches_up.is_some() || watch.compacted || view < watch.start
                };
                if self.watches.is_empty() || self.watches.values().any(apart) {
                    return None;
                }
                Some(self.message(view, NONE))
            }
        }
    }

    /// Opens the watch under that id, or under a free one if the id is 0, or answers why not.
    fn create(&mut self, id: i64, mut watch: Watch) -> PbWatchResponse {
        let view = self.member.cluster.view(self.member.me, |_, view| view);
        let mut answer = self.message(view, id);
        answer.created = true;
        if let Some(why) = self.refused(id, &watch) {
            answer.watch_id = NONE;
            answer.canceled = true;
            why.clone_into(&mut answer.cancel_reason);
            return answer;
        }
        if id == 0 {
            while self.watches.contains_key(&self.next_id) {
                self.next_id += 1;
            }
            answer.watch_id = self.next_id;
            self.next_id += 1;
        }
        watch.next = match watch.start {
            0 => view + 1,
            revision => revision,
        };
        watch.catches_up = (watch.next <= view).then(|| now() + ROUND);
        self.interests.add(&watch.keys, answer.watch_id);
        self.late
            .extend(watch.catches_up.map(|at| (at, answer.watch_id)));
        self.watches.insert(answer.watch_id, watch);
        answer
    }

    /// Returns why such a watch is not opened.
    fn refused(&self, id: i64, watch: &Watch) -> Option<&'static str> {
        if watch.start < 0 {
            Some("etcdserver: mvcc: required revision has been compacted")
        } else if watch.keys.is_empty() {
            Some("mvcc: watcher range is empty")
        } else if id != 0 && self.watches.contains_key(&id) {
            Some("mvcc: duplicate watch ID provided on the WatchStream")
        } else {
            None
        }
    }

    /// Returns the pending messages: first to the watches that catch up, then by revision.
    fn pending_messages(&mut self) -> Vec<PbWatchResponse> {
        let (cluster, me) = (self.member.cluster.clone(), self.member.me);
        // There are none while the watches of the member are stalled.
        let reports = cluster.watched(me, |store, view| {
            let mut reports = self.catch_up(store, view);
            self.follow(store, view, &mut reports);
            reports
        });
        let reports = reports.unwrap_or_default();
        let signature = cluster.header(me);
        let mut messages = Vec::new();
        for Report {
            id,
            revision,
            events,
            compacted,
        } in reports
        {
            messages.push(PbWatchResponse {
                header: Some(Header {
                    revision,
                    ..signature
                }),
                watch_id: id,
                canceled: compacted > 0,
                compact_revision: compacted,
                events,
                ..PbWatchResponse::default()
            });
        }
        messages
    }

    /// Sends the events that watches from a past revision have missed, once they are due.
    fn catch_up(&mut self, store: &Store, view: i64) -> Vec<Report> {
        let mut reports = Vec::new();
        let now = now();
        while self.late.first().is_some_and(|(at, _)| *at <= now)
            && let Some((_, id)) = self.late.pop_first()
        {
            if let Some(watch) = self.watches.get_mut(&id) {
                watch.catch_up(id, store, view, &mut reports);
            }
        }
        reports
    }

    /// Sends the new events to all other watches. A watch whose keys did not change is skipped.
    fn follow(&mut self, store: &Store, view: i64, reports: &mut Vec<Report>) {
        for (revision, events) in store.changes(self.reported, view) {
            let mut concerned: BTreeMap<i64, Vec<proto::Event>> = BTreeMap::new();
            for event in events.iter() {
                for id in self.interests.in_key(event.key()) {
                    let watch = self.watches.get(&id).filter(|w| w.follows(revision));
                    if let Some(event) = watch.and_then(|w| w.of_interest(event, store)) {
                        concerned.entry(id).or_default().push(event);
                    }
                }
            }
            reports.extend(concerned.into_iter().map(|(id, events)| Report {
                id,
                revision,
                events,
                compacted: 0,
            }));
        }
        self.reported = self.reported.max(view);
    }

    fn message(&self, revision: i64, id: i64) -> PbWatchResponse {
        let signature = self.member.cluster.header(self.member.me);
        PbWatchResponse {
            header: Some(Header {
                revision,
                ..signature
            }),
            watch_id: id,
            ..PbWatchResponse::default()
        }
    }
}

struct Report {
    id: i64,
    revision: i64,
    events: Vec<proto::Event>,
    compacted: i64,
}

impl Watch {
    /// Returns true if the watch receives the events of that revision together with the others.
    fn follows(&self, revision: i64) -> bool {
        self.catches_up.is_none() && !self.compacted && self.next <= revision
    }

    fn catch_up(&mut self, id: i64, store: &Store, view: i64, reports: &mut Vec<Report>) {
        self.catches_up = None;
        if self.next < store.compacted() {
            reports.push(Report {
                id,
                revision: 0,
                events: Vec::new(),
                compacted: store.compacted(),
            });
            self.compacted = true;
            return;
        }
        let mut revisions = 0;
        for (_, events) in store.changes(self.next - 1, view) {
            let mine = events
                .iter()
                .filter_map(|event| self.of_interest(event, store));
            let mine: Vec<_> = mine.collect();
            if mine.is_empty() {
                continue;
            }
            match reports.last_mut() {
                Some(last) if last.id == id && revisions % BATCH != 0 => last.events.extend(mine),
                _ => reports.push(Report {
                    id,
                    revision: view,
                    events: mine,
                    compacted: 0,
                }),
            }
            revisions += 1;
        }
        self.next = view + 1;
    }

    /// Returns the event as the watch receives it, unless it concerns other keys or is of a kind that the watch
    /// excludes.
    fn of_interest(&self, event: &Event, store: &Store) -> Option<proto::Event> {
        let filtered = match event {
            Event::Put(_) => self.no_put,
            Event::Delete { .. } => self.no_delete,
        };
        if filtered || !self.keys.contains(event.key()) {
            return None;
        }
        let mut message = wire::event(event);
        // A key created by this transaction had no previous value, even if the same transaction deleted it.
        let created = matches!(event, Event::Put(kv) if kv.create_revision == kv.mod_revision);
        if self.prev_kv && !created {
            let before = store.at(event.key(), event.revision() - 1);
            message.prev_kv = before.map(wire::key_value);
        }
        Some(message)
    }
}

/// The watches of a stream, found by a key that changed.
#[derive(Debug, Default)]
struct Interests {
    /// Watches of one key or of one prefix, by that key or prefix.
    beginnings: HashMap<Vec<u8>, BTreeSet<i64>>,
    /// Watches of any other range.
    ranges: BTreeSet<i64>,
}

impl Interests {
    fn add(&mut self, keys: &Keys, id: i64) {
        match keys.beginning() {
            Some(beginning) => {
                let ids = self.beginnings.entry(beginning.to_vec()).or_default();
                ids.insert(id);
            }
            None => drop(self.ranges.insert(id)),
        }
    }

    fn remove(&mut self, keys: &Keys, id: i64) {
        self.ranges.remove(&id);
        let beginning = keys.beginning().unwrap_or_default();
        if let Some(ids) = self.beginnings.get_mut(beginning) {
            ids.remove(&id);
            if ids.is_empty() {
                self.beginnings.remove(beginning);
            }
        }
    }

    /// Returns the watches that a change of that key may concern, in no certain order.
    fn in_key(&self, key: &[u8]) -> Vec<i64> {
        let beginnings = (0..=key.len()).filter_map(|end| self.beginnings.get(&key[..end]));
        let ids = beginnings.flatten().chain(&self.ranges);
        ids.copied().collect()
    }
}

fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn below(prefix: &str) -> Keys {
        Keys::below(&prefix.as_bytes().into())
    }

    #[test]
    fn a_change_reaches_the_watches_of_its_key_and_of_no_other() {
        const WATCHES: i64 = 10_000;
        let mut interests = Interests::default();
        for id in 0..WATCHES {
            interests.add(&below(&format!("e{id}/")), id);
            interests.add(
                &Keys::new(format!("e{id}/a").into_bytes(), &[]),
                WATCHES + id,
            );
        }
        let found = |interests: &Interests, key: &str| {
            let mut ids = interests.in_key(key.as_bytes());
            ids.sort_unstable();
            ids
        };
        let looks = (0..WATCHES).map(|id| found(&interests, &format!("e{id}/a")).len());
        assert_eq!(looks.sum::<usize>(), 2 * WATCHES as usize);
        assert_eq!(found(&interests, "e7/b"), [7]);
        // A range that is no prefix is checked for every key.
        interests.add(&Keys::new(&b"e"[..], b"g"), -1);
        interests.add(&Keys::new(&b"e7"[..], &[0]), -2);
        assert_eq!(found(&interests, "e7/b"), [-2, -1, 7]);
        interests.remove(&Keys::new(&b"e7"[..], &[0]), -2);
        interests.remove(&below("e7/"), 7);
        assert_eq!(found(&interests, "e7/b"), [-1]);
    }
}

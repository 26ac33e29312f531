//! Serves one stream of watches: sends each watch its events, and decides when the stream may report progress.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::proto::{PbWatchRequest, PbWatchRequestUnion, PbWatchResponse};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::{Status, Streaming};

use super::errors;
use super::member::{Member, leader_lost};
use super::range::Keys;
use super::store::Store;
use crate::memory::proto::{Event, EventType, Header};

/// A watch that begins in the past is served by a round that etcd makes so often.
const ROUND: Duration = Duration::from_millis(100);
/// At most so many revisions are told in one message of a watch that catches up.
const BATCH: usize = 1000;
/// What answers that concern no watch carry as its id.
const NONE: i64 = -1;

type Answers = mpsc::Sender<Result<PbWatchResponse, Status>>;

#[expect(clippy::struct_excessive_bools, reason = "three are the request's")]
struct Watch {
    keys: Keys,
    prev_kv: bool,
    no_put: bool,
    no_delete: bool,
    /// The revision that it was created for; 0: from then on.
    start: i64,
    /// What is told next.
    next: i64,
    /// It began in the past, and is told at that time.
    catches_up: Option<Instant>,
    /// It was told that what it wants is compacted. Until its client cancels it, it keeps its id, and the stream from
    /// telling progress.
    compacted: bool,
}

struct Stream {
    member: Member,
    watches: BTreeMap<i64, Watch>,
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
        next_id: 0,
    };
    loop {
        let late = stream
            .watches
            .values()
            .filter_map(|watch| watch.catches_up)
            .min();
        let caught_up = async {
            match late {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let request = tokio::select! {
            biased;
            () = answers.closed() => return,
            () = leader_lost(&member, leader) => {
                // Whoever has gone needs no answer.
                let _ = answers.send(Err(errors::no_leader())).await;
                return;
            }
            () = changes.changed() => None,
            request = requests.message() => match request {
                Ok(Some(request)) => Some(request),
                _ => return,
            },
            () = caught_up => None,
        };
        member.cluster.thawed(member.me).await;
        // What was there before the request is told before its answer.
        let mut told = stream.tell();
        if let Some(request) = request {
            told.extend(stream.take(request));
            told.extend(stream.tell());
        }
        for message in told {
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
                self.watches.remove(&cancel.watch_id)?;
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

    /// Opens the watch under that id, or under a free one if it is 0, or says why not.
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
        self.watches.insert(answer.watch_id, watch);
        answer
    }

    /// Why such a watch is not opened.
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

    /// What there is to tell, watch by watch.
    fn tell(&mut self) -> Vec<PbWatchResponse> {
        let (cluster, me) = (self.member.cluster.clone(), self.member.me);
        let watches = &mut self.watches;
        let mut told = Vec::new();
        // Nothing, while the watches of the member are stalled.
        let _ = cluster.watched(me, |store, view| {
            for (id, watch) in watches {
                watch.tell(*id, store, view, &mut told);
            }
        });
        let signature = cluster.header(me);
        let mut messages = Vec::new();
        for Told {
            id,
            revision,
            events,
            compacted,
        } in told
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

struct Told {
    id: i64,
    revision: i64,
    events: Vec<Event>,
    compacted: i64,
}

impl Watch {
    fn tell(&mut self, id: i64, store: &Store, view: i64, told: &mut Vec<Told>) {
        let late = self.catches_up.is_some();
        if self.compacted || self.catches_up.is_some_and(|at| now() < at) {
            return;
        }
        if late && self.next < store.compacted() {
            told.push(Told {
                id,
                revision: 0,
                events: Vec::new(),
                compacted: store.compacted(),
            });
            self.compacted = true;
            self.catches_up = None;
            return;
        }
        self.catches_up = None;
        let mut revisions = 0;
        for (revision, events) in store.changes(self.next - 1, view) {
            let mine = self.of_interest(events, store);
            if mine.is_empty() {
                continue;
            }
            // A watch that has caught up hears of each revision by itself.
            let revision = if late { view } else { revision };
            match told.last_mut() {
                Some(last) if late && last.id == id && revisions % BATCH != 0 => {
                    last.events.extend(mine);
                }
                _ => told.push(Told {
                    id,
                    revision,
                    events: mine,
                    compacted: 0,
                }),
            }
            revisions += 1;
        }
        self.next = self.next.max(view + 1);
    }

    fn of_interest(&self, events: &Arc<[Event]>, store: &Store) -> Vec<Event> {
        let wanted = |event: &&Event| {
            let key = event.kv.as_ref().map_or(&[][..], |kv| &kv.key);
            let deleted = event.r#type == EventType::Delete as i32;
            let filtered = if deleted { self.no_delete } else { self.no_put };
            !filtered && self.keys.contains(key)
        };
        let with_previous = |event: &Event| {
            let mut event = event.clone();
            if self.prev_kv
                && let Some(kv) = &event.kv
                // What was created by this had nothing before it, even if it was deleted by the same transaction.
                && kv.create_revision != kv.mod_revision
            {
                event.prev_kv = store.at(&kv.key, kv.mod_revision - 1).cloned();
            }
            event
        };
        events.iter().filter(wanted).map(with_previous).collect()
    }
}

fn now() -> Instant {
    Instant::now()
}

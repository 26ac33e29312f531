//! Decides which connections a full server keeps, and which requests it still answers.
#![allow(clippy::disallowed_methods, reason = "sockets live in real time")]

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http_body::{Frame, SizeHint};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::problem::Problem;

/// How long a connection must have been idle before another one takes its place: long enough to begin a request.
const SETTLED: Duration = Duration::from_millis(250);

/// The paths that are answered from the reserve: load balancers and orchestrators need them to find the leader and the
/// nodes to restart.
const PROBES: [&str; 4] = ["/leader", "/primary", "/ready", "/live"];

/// The caller to whom a connection is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caller {
    /// A caller at this address.
    At(IpAddr),
    /// A process of this user, over a Unix socket.
    User(Option<u32>),
}

/// The limits on the number of connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) connections: usize,
    /// The number of connections that only probes may keep busy.
    pub(super) reserve: usize,
    pub(super) per_caller: usize,
}

/// The open connections of a server.
#[derive(Debug)]
pub(super) struct Room {
    size: Size,
    inner: Mutex<Inner>,
    /// Notified when a connection ends or becomes idle.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    open: HashMap<u64, Open>,
}

#[derive(Debug)]
struct Open {
    caller: Option<Caller>,
    /// The time since which the connection waits for a request. `None` while it answers one.
    idle_since: Option<Instant>,
    cut: CancellationToken,
}

/// The place of one connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    room: Arc<Room>,
    number: u64,
    /// Cancelled when another connection takes this place.
    pub(super) cut: CancellationToken,
}

/// The decision about a connection that wants to enter.
enum Entry {
    Let(Place),
    Refused,
    /// Decide again at that time, or after a change.
    Wait(Option<Instant>),
}

impl Room {
    pub(super) fn new(size: Size) -> Arc<Self> {
        Arc::new(Self {
            size,
            inner: Mutex::default(),
            changed: Notify::new(),
        })
    }

    /// Lets a connection in, if need be in the place of the one that has been idle longest. Returns `None` if its caller has
    /// too many, of which none has been idle for long enough.
    pub(super) async fn enter(self: &Arc<Self>, caller: Option<Caller>) -> Option<Place> {
        loop {
            let changed = self.changed.notified();
            match self.try_enter(caller) {
                Entry::Let(place) => return Some(place),
                Entry::Refused => return None,
                Entry::Wait(None) => changed.await,
                Entry::Wait(Some(until)) => {
                    let _ = tokio::time::timeout_at(until, changed).await;
                }
            }
        }
    }

    fn try_enter(self: &Arc<Self>, caller: Option<Caller>) -> Entry {
        let mut inner = self.lock();
        let same = |open: &Open| caller.is_some() && open.caller == caller;
        let of_caller = inner.open.values().filter(|open| same(open)).count();
        let is_greedy = of_caller >= self.size.per_caller;
        if is_greedy || inner.open.len() >= self.size.connections {
            let among = inner.open.iter();
            let among = among.filter(|(_, open)| !is_greedy || same(open));
            let idle = among.filter_map(|(number, open)| Some((open.idle_since?, *number)));
            let settled = |since: Instant| since + SETTLED;
            match idle.min() {
                Some((since, number)) if settled(since) <= Instant::now() => {
                    inner.open.remove(&number).iter().for_each(Open::cut);
                }
                // If this connection waited, connections of others could not be accepted behind it.
                _ if is_greedy => return Entry::Refused,
                Some((since, _)) => return Entry::Wait(Some(settled(since))),
                None => return Entry::Wait(None),
            }
        }
        let (number, cut) = (inner.next, CancellationToken::new());
        inner.next += 1;
        let open = Open {
            caller,
            idle_since: Some(Instant::now()),
            cut: cut.clone(),
        };
        inner.open.insert(number, open);
        Entry::Let(Place {
            room: Arc::clone(self),
            number,
            cut,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    fn cut(&self) {
        self.cut.cancel();
    }
}

impl Place {
    /// Records that the connection answers a request for that path, until the returned value is dropped. Returns the
    /// refusal if only the reserve is left and the path may not use it.
    pub(super) fn begin(self: &Arc<Self>, path: &str) -> Result<Busy, Problem> {
        let size = self.room.size;
        let mut inner = self.room.lock();
        if let Some(open) = inner.open.get_mut(&self.number) {
            open.idle_since = None;
        }
        let busy = inner.open.values().filter(|open| open.idle_since.is_none());
        let is_scarce = size.reserve > 0 && busy.count() > size.connections - size.reserve;
        drop(inner);
        let begun = Busy(Arc::clone(self));
        if is_scarce && !PROBES.contains(&path) {
            let detail = "this node answers too many requests at once; only /leader, /ready and /live are left";
            return Err(Problem::try_again("overloaded", detail));
        }
        Ok(begun)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.room.lock().open.remove(&self.number);
        self.room.changed.notify_one();
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(super) struct Busy(Arc<Place>);

impl Drop for Busy {
    fn drop(&mut self) {
        let Self(place) = self;
        if let Some(open) = place.room.lock().open.get_mut(&place.number) {
            open.idle_since = Some(Instant::now());
        }
        place.room.changed.notify_one();
    }
}

impl Busy {
    /// Counts the request as busy until the whole answer is sent.
    pub(super) fn until_sent(self, answer: Response) -> Response {
        answer.map(|body| Body::new(Answer { body, _busy: self }))
    }
}

/// The body of an answer.
struct Answer {
    body: Body,
    _busy: Busy,
}

impl http_body::Body for Answer {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures::FutureExt;

    use super::*;

    const SIZE: Size = Size {
        connections: 8,
        reserve: 2,
        per_caller: 6,
    };

    fn caller(number: u8) -> Caller {
        Caller::At(Ipv4Addr::new(10, 0, 0, number).into())
    }

    async fn enter(room: &Arc<Room>, number: u8) -> Arc<Place> {
        Arc::new(room.enter(Some(caller(number))).await.expect("a place"))
    }

    #[tokio::test(start_paused = true)]
    async fn full_server_closes_the_connection_that_is_idle_longest() {
        let room = Room::new(SIZE);
        let mut places = Vec::new();
        for number in 0..8 {
            places.push(enter(&room, number).await);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        let first = places[0].begin("/v1/events").unwrap();
        // The ninth waits until the second one has had the time to begin a request.
        let ninth = enter(&room, 9).await;
        let cut = |place: &Arc<Place>| place.cut.is_cancelled();
        let gone: Vec<usize> = (0..8).filter(|at| cut(&places[*at])).collect();
        assert_eq!(gone, [1], "the first one is busy");
        drop(first);
        tokio::time::advance(SETTLED).await;
        // The first connection became idle last.
        for number in 10..16 {
            places.push(enter(&room, number).await);
        }
        assert!(
            !cut(&places[0]) && !cut(&ninth),
            "they were busy or came later"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn caller_replaces_its_own_connections_and_never_the_last_ones() {
        let room = Room::new(SIZE);
        let mut places = Vec::new();
        for _ in 0..6 {
            places.push(enter(&room, 1).await);
        }
        places.push(enter(&room, 2).await);
        let at_once = room.enter(Some(caller(1))).now_or_never();
        assert!(at_once.expect("nobody waits behind it").is_none());
        tokio::time::advance(SETTLED).await;
        let own = enter(&room, 1).await;
        assert_eq!(
            places
                .iter()
                .filter(|place| place.cut.is_cancelled())
                .count(),
            1
        );
        assert!(!places[6].cut.is_cancelled(), "another caller's");
        let live = places
            .iter()
            .chain([&own])
            .filter(|place| !place.cut.is_cancelled());
        let busy: Vec<Busy> = live.map(|place| place.begin("/live").unwrap()).collect();
        assert!(
            room.enter(Some(caller(1))).await.is_none(),
            "all of them are busy"
        );
        assert!(room.enter(Some(caller(3))).now_or_never().is_some());
        drop(busy);
    }

    #[tokio::test]
    async fn the_reserve_answers_only_probes() {
        let room = Room::new(SIZE);
        let mut busy = Vec::new();
        for number in 0..6 {
            let place = enter(&room, number).await;
            busy.push(place.begin("/v1/events").unwrap());
        }
        let place = enter(&room, 7).await;
        for path in ["/v1/events", "/metrics", "/", "/leader/"] {
            let refused = place.begin(path).expect_err(path);
            assert_eq!(refused.code, "overloaded");
        }
        for path in PROBES {
            drop(place.begin(path).expect(path));
        }
        busy.pop();
        drop(place.begin("/metrics").expect("there is room again"));
    }
}

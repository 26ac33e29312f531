//! Asks other sessions for signs of life, and reports which of them are silent.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use eldest_core::time::Time;
use futures::StreamExt as _;
use futures::future::{BoxFuture, FutureExt as _, pending};
use futures::stream::FuturesUnordered;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use crate::machine::Machine;
use crate::pace::ASKING_EVERY;
use crate::peer::{Input, Output, Peer};
use crate::wire::{ASKING, Hello, Reply};

/// A session that is asked for signs of life.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(
    clippy::exhaustive_structs,
    reason = "for crates that pin the exact version"
)]
pub struct Watched {
    /// The session's port, as `host:port`.
    pub address: String,
    /// How long the session may lead after a clean read. A silence of a third of it, and at most 0.5 s, is suspect.
    pub lead: Duration,
}

/// A change in what is known of a watched session, which is named by its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The session is suspected: its connection was closed or cannot be made, it has sent no sign of life in time, or
    /// another session answers there.
    Silent(i64),
    /// The session was silent and speaks again. The next suspicion waits twice as long as the last one, with jitter, and
    /// at most a minute; a minute of signs of life without a gap ends these waits.
    Heard(i64),
}

/// The connections to the watched sessions: one for each session, however many elections share it.
pub struct Asking {
    machine: Arc<dyn Machine>,
    /// For each watched session, what was asked for, and what ends its connection when it is dropped.
    sessions: BTreeMap<i64, (Watched, oneshot::Sender<()>)>,
    connections: FuturesUnordered<BoxFuture<'static, ()>>,
    report: UnboundedSender<Event>,
    reports: UnboundedReceiver<Event>,
}

impl Asking {
    /// Makes an asker that watches no session.
    pub fn new(machine: Arc<dyn Machine>) -> Self {
        let (report, reports) = unbounded_channel();
        Self {
            machine,
            sessions: BTreeMap::new(),
            connections: FuturesUnordered::new(),
            report,
            reports,
        }
    }

    /// Replaces the set of watched sessions, by their leases. A session that is in both sets with the same address and
    /// lead keeps its connection. Each session needs one descriptor.
    pub fn watch(&mut self, sessions: BTreeMap<i64, Watched>) {
        self.sessions
            .retain(|lease, (watched, _)| sessions.get(lease) == Some(watched));
        for (lease, watched) in sessions {
            if self.sessions.contains_key(&lease) {
                continue;
            }
            let (end, ended) = oneshot::channel();
            let (machine, report) = (Arc::clone(&self.machine), self.report.clone());
            let ask = ask(machine, lease, watched.clone(), ended, report);
            self.connections.push(ask.boxed());
            self.sessions.insert(lease, (watched, end));
        }
    }

    /// Returns the next event. The connections are served only while this is polled.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe. No event is lost, and the connections stay open.
    pub async fn next(&mut self) -> Event {
        loop {
            let event = tokio::select! {
                biased;
                Some(event) = self.reports.recv() => event,
                Some(()) = self.connections.next() => continue,
            };
            let (Event::Silent(lease) | Event::Heard(lease)) = event;
            if self.sessions.contains_key(&lease) {
                return event;
            }
        }
    }
}

impl std::fmt::Debug for Asking {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let watched = self.sessions.iter();
        let watched = watched.map(|(lease, (watched, _))| (lease, watched));
        formatter.debug_map().entries(watched).finish()
    }
}

/// Asks one session until it is watched no longer.
async fn ask(
    machine: Arc<dyn Machine>,
    lease: i64,
    watched: Watched,
    mut ended: oneshot::Receiver<()>,
    report: UnboundedSender<Event>,
) {
    let random = Arc::clone(&machine);
    let mut peer = Peer::new(
        machine.now(),
        watched.lead,
        Box::new(move || random.random()),
    );
    let mut line = Line::Closed;
    loop {
        let left = peer.due().since(machine.now());
        let outputs = tokio::select! {
            biased;
            _ = &mut ended => return,
            // Before the timer: after a pause of this process, signs of life may be there already.
            input = line.next(&*machine) => peer.handle(machine.now(), input),
            () = machine.sleep(left) => peer.timeout(machine.now()),
        };
        for output in outputs {
            let event = match output {
                Output::Connect => {
                    line = Line::Connecting(connect(watched.address.clone(), lease).boxed());
                    continue;
                }
                Output::Close => {
                    line = Line::Closed;
                    continue;
                }
                Output::Silent => Event::Silent(lease),
                Output::Heard => Event::Heard(lease),
            };
            // The receiver lives as long as this future.
            let _ = report.send(event);
        }
    }
}

/// The connection to one session.
enum Line {
    Closed,
    Connecting(BoxFuture<'static, io::Result<TcpStream>>),
    /// Open, with the time at which the asker last said that it asks.
    Open(TcpStream, Time),
}

impl Line {
    /// Returns the next event of the connection. Cancel safe.
    async fn next(&mut self, machine: &dyn Machine) -> Input {
        match self {
            Self::Closed => pending().await,
            Self::Connecting(connecting) => match connecting.await {
                Ok(stream) => {
                    *self = Self::Open(stream, machine.now());
                    Input::Connected
                }
                Err(_) => self.closed(),
            },
            Self::Open(stream, asked) => {
                let mut bytes = [0; 64];
                let read = stream.read(&mut bytes).await;
                match read.ok().and_then(|count| Reply::decode(&bytes[..count])) {
                    Some(reply) => {
                        let now = machine.now();
                        // The system has room for one byte, or it is sent after the next sign of life.
                        if now.since(*asked) >= ASKING_EVERY && stream.try_write(&[ASKING]).is_ok()
                        {
                            *asked = now;
                        }
                        Input::Replied(reply)
                    }
                    None => self.closed(),
                }
            }
        }
    }

    fn closed(&mut self) -> Input {
        *self = Self::Closed;
        Input::Closed
    }
}

async fn connect(address: String, lease: i64) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    stream.write_all(&Hello::encode(lease)).await?;
    Ok(stream)
}

//! Answers the sessions that ask whether this one is alive.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use eldest_core::time::Time;
use futures::StreamExt as _;
use futures::future::{AbortHandle, abortable};
use futures::stream::FuturesUnordered;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::machine::{Machine, timeout};
use crate::pace::{ASKER_GONE, FIRST_REPLY, sign_every};
use crate::wire::{HELLO, Hello, Reply, still_asks};

/// How many askers are answered at a time, unless the session says otherwise.
const MOST: usize = 256;
/// How many connections may be without a hello. A further one closes the oldest of them.
const WITHOUT_HELLO: usize = 16;
/// The pause after the system refused a connection, such as for want of descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// The session that a port answers for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(
    clippy::exhaustive_structs,
    reason = "for crates that pin the exact version"
)]
pub struct Alive {
    /// The session's lease.
    pub lease: i64,
    /// How long the session may lead after a clean read. A sign of life is sent every fifth of it, at the latest every
    /// 0.2 s.
    pub lead: Duration,
    /// The end of the last clean read's effect. No sign of life is sent at that time or later.
    pub until: Time,
}

/// The port of a session.
#[derive(Debug)]
pub struct Answering {
    listener: TcpListener,
    most: usize,
    /// True while the system refuses connections.
    is_refused: AtomicBool,
}

impl Answering {
    /// Opens the port. It answers only while [`Answering::run`] is polled.
    ///
    /// # Errors
    ///
    /// The system refuses the address: another program listens there, or it is no address of this machine.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener: TcpListener::from_std(listener)?,
            most: MOST,
            is_refused: AtomicBool::new(false),
        })
    }

    /// Sets how many askers are answered at a time: 256 by default. Others receive [`Reply::Busy`], so they do not
    /// suspect this session. Beside these connections, 16 may be without a hello.
    pub fn at_most(mut self, askers: usize) -> Self {
        self.most = askers;
        self
    }

    /// Returns the address at which the port is open.
    ///
    /// # Errors
    ///
    /// The system does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers every asker. `alive` returns the present state of the session, or `None` if it has no lease; it is called
    /// for each sign of life, and must be quick. Never returns.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe. Every connection is closed, so askers suspect this session.
    pub async fn run(&self, machine: &dyn Machine, alive: &(dyn Fn() -> Option<Alive> + Sync)) {
        let mut hellos = FuturesUnordered::new();
        let mut answers = FuturesUnordered::new();
        // The connections without a hello, by the order in which they came.
        let mut waiting = BTreeMap::<u64, AbortHandle>::new();
        let mut last = 0;
        loop {
            tokio::select! {
                stream = self.accept(machine) => {
                    if waiting.len() >= WITHOUT_HELLO && let Some((_, oldest)) = waiting.pop_first() {
                        oldest.abort();
                    }
                    last += 1;
                    let (hello, handle) = abortable(hello(last, stream, machine));
                    waiting.insert(last, handle);
                    hellos.push(hello);
                }
                Some(done) = hellos.next() => {
                    let Ok((number, asked)) = done else {
                        continue; // It made room.
                    };
                    waiting.remove(&number);
                    match asked {
                        Some((stream, Hello::Asks(lease))) if answers.len() < self.most => {
                            answers.push(answer(stream, lease, machine, alive));
                        }
                        Some((stream, Hello::Asks(_))) => refuse(stream, Reply::Busy),
                        Some((stream, Hello::OtherVersion)) => refuse(stream, Reply::OtherVersion),
                        None => {}
                    }
                }
                Some(()) = answers.next() => {}
            }
        }
    }

    async fn accept(&self, machine: &dyn Machine) -> TcpStream {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    self.is_refused.store(false, Ordering::Relaxed);
                    return stream;
                }
                Err(error) => {
                    if !self.is_refused.swap(true, Ordering::Relaxed) {
                        machine.refuses_connections(&error);
                    }
                    machine.sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }
}

/// Awaits the hello of a connection; `None` if it sends another message, or none in time.
async fn hello(
    number: u64,
    mut stream: TcpStream,
    machine: &dyn Machine,
) -> (u64, Option<(TcpStream, Hello)>) {
    let mut bytes = [0; HELLO];
    let read = timeout(machine, FIRST_REPLY, stream.read_exact(&mut bytes)).await;
    let hello = match read {
        Some(Ok(_)) => Hello::decode(&bytes),
        _ => None,
    };
    // A sign of life that waits for others to fill a packet is late.
    let asked = hello.filter(|_| stream.set_nodelay(true).is_ok());
    (number, asked.map(|hello| (stream, hello)))
}

/// Sends signs of life while the session is alive, until the asker is gone or the lease is another one.
async fn answer(
    mut stream: TcpStream,
    lease: i64,
    machine: &dyn Machine,
    alive: &(dyn Fn() -> Option<Alive> + Sync),
) {
    let mut asked = machine.now();
    loop {
        let now = machine.now();
        let Some(session) = alive().filter(|session| session.lease == lease) else {
            return refuse(stream, Reply::Unknown);
        };
        if now.since(asked) > ASKER_GONE {
            return refuse(stream, Reply::Busy);
        }
        if now < session.until {
            let sign = [Reply::Alive as u8];
            let sent = timeout(machine, FIRST_REPLY, stream.write_all(&sign)).await;
            if !matches!(sent, Some(Ok(()))) {
                return;
            }
        }
        // At most one read for each sign of life, so an asker that sends without end costs no more than others.
        let mut pause = machine.sleep(sign_every(session.lead));
        let mut bytes = [0; 16];
        tokio::select! {
            read = stream.read(&mut bytes) => {
                if !read.is_ok_and(|count| still_asks(&bytes[..count])) {
                    return;
                }
                asked = machine.now();
                pause.await;
            }
            () = &mut pause => {}
        }
    }
}

/// Sends the last reply and closes the connection. Does not wait: if the system does not take the reply, the asker sees
/// the end of the connection.
fn refuse(stream: TcpStream, reply: Reply) {
    if let Ok(mut stream) = stream.into_std() {
        let _ = stream.write(&[reply as u8]);
    }
}

//! Attends to one session: verifies that a lease belongs to it, waits until its processes have ended, and then deletes
//! the keys of its leases, unless the session said goodbye.
//!
//! The proof of a lease is a key that is bound to it while the session is registered. Each deletion compares it once
//! more, because an earlier check of the proof does not show its present state: between two terms a lease has no keys
//! of its own, and etcd then lets any user bind a key to it.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use eldest_process::Pidfd;
use eldest_process::socket::{Received, Socket};

use crate::agent::{Agent, Guarded};
use crate::limits::{CONNECTION, Need, Share};
use crate::lives::Lives;
use crate::machine::timeout;
use crate::proof;
use crate::release::Dead;
use crate::timer;
use crate::wire::{Hello, Reply, Request, VERSION, hex};
use crate::{Claim, Proof, Unproven, check_linger};

/// How long a new connection may wait before it introduces itself.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// How long the reader of a status may take.
const STATUS_WITHIN: Duration = Duration::from_secs(10);
/// How often the guard checks that the proofs of a session without a connection still exist.
const FORGET_EVERY: Duration = Duration::from_secs(30);
/// The number of leases: the one that a session has, and the one that it had before.
const MOST_LEASES: usize = 2;
/// Serves the process behind a new connection, for as long as it has something to guard.
pub(crate) async fn attend(agent: Arc<Agent>, socket: Socket, share: Share) {
    let first = timeout(&*agent.machine, HELLO_WITHIN, socket.receive()).await;
    let Received { message, files } = match first {
        Some(Ok(Some(first))) => first,
        Some(Err(error)) => return refuse(&agent, &socket, unreadable(&error)),
        Some(Ok(None)) | None => return,
    };
    let request = Request::decode(&message);
    drop(message);
    match request {
        Some(Request::Status) => {
            // The other end may have stopped reading.
            let _ = timeout(
                &*agent.machine,
                STATUS_WITHIN,
                send_status(&agent, &socket, &share),
            )
            .await;
        }
        Some(Request::Hello(hello)) => {
            let refused = match Session::introduce(&agent, &socket, hello, files, share) {
                Ok(session) => return session.run(socket).await,
                Err(reason) => reason,
            };
            refuse(&agent, &socket, refused);
        }
        _ => {
            let reason = "the first message must be `hello` or `status`";
            refuse(&agent, &socket, reason.to_owned());
        }
    }
}

/// Refuses a connection.
fn refuse(agent: &Agent, socket: &Socket, reason: String) {
    agent.refused(None, &reason);
    socket.send_now(&Reply::Refused { reason }.encode());
}

fn unreadable(error: &io::Error) -> String {
    format!("the message cannot be read: {error}")
}

/// Sends the sessions one by one, and then the guard's own status, to one reader of each user at a time.
async fn send_status(agent: &Agent, socket: &Socket, share: &Share) -> io::Result<()> {
    let viewer = socket.peer()?.uid;
    let _turn = share.description().await;
    let mut last = None;
    while let Some((number, session)) = agent.describe_after(last, viewer) {
        socket.send(&Reply::Session(session).encode(), &[]).await?;
        last = Some(number);
    }
    socket
        .send(&Reply::Agent(agent.describe()).encode(), &[])
        .await
}

/// A session that is guarded.
struct Session {
    agent: Arc<Agent>,
    number: u64,
    identity: String,
    namespace: String,
    linger: Duration,
    /// The keys are deleted when all of these have ended.
    lives: Lives,
    /// The proofs of the session's leases, the newest first.
    proofs: VecDeque<Proof>,
    /// The lease that is being proven, and the key of its proof.
    proving: Option<(i64, String)>,
    /// How long the guard tries to delete the keys.
    patience: Duration,
    /// The share of its user's limits that the session needs without further lives.
    own: Need,
    share: Share,
}

/// The guard's reaction to a message.
enum Next {
    Answer(Reply),
    /// The session is not guarded any longer; the reply says why.
    Dismiss(Reply),
    Goodbye,
}

impl Session {
    fn introduce(
        agent: &Arc<Agent>,
        socket: &Socket,
        hello: Hello,
        files: Vec<OwnedFd>,
        mut share: Share,
    ) -> Result<Self, String> {
        let Hello {
            version,
            identity,
            namespace,
            linger_ms,
        } = hello;
        if version != VERSION {
            return Err(format!(
                "the session speaks version {version}, the guard version {VERSION}"
            ));
        }
        check_namespace(&namespace)?;
        let peer = socket
            .peer()
            .map_err(|error| format!("the peer is unknown: {error}"))?;
        let file = files.into_iter().next();
        let file = file.ok_or("the session sent no process descriptor")?;
        let process = Arc::new(Pidfd::new(file)?);
        if let (Some(sent), Some(peer)) = (process.pid(), peer.pid)
            && sent != peer
        {
            return Err(format!(
                "process {peer} sent a descriptor of process {sent}"
            ));
        }
        let linger = Duration::from_millis(linger_ms);
        check_linger(linger)?;
        let own = CONNECTION + Need::texts(identity.len() + namespace.len());
        share.hold(own)?;
        let number = agent.enlist(Guarded {
            identity: identity.clone(),
            namespace: namespace.clone(),
            process: Arc::clone(&process),
            uid: peer.uid,
            since: agent.machine.unix_time(),
            linger,
            leases: Vec::new(),
            connected: true,
            processes: 1,
            cgroups: 0,
            timers: Vec::new(),
        })?;
        Ok(Self {
            agent: Arc::clone(agent),
            number,
            identity,
            namespace,
            linger,
            lives: Lives::of(process),
            proofs: VecDeque::new(),
            proving: None,
            patience: Duration::ZERO,
            own,
            share,
        })
    }

    async fn run(mut self, socket: Socket) {
        let welcome = Reply::Welcome { version: VERSION };
        let mut socket = Some(socket);
        Self::answer(socket.as_ref(), &welcome);
        loop {
            tokio::select! {
                biased;
                received = receive(socket.as_ref()) => match received {
                    Ok(Some(received)) => {
                        if self.turn(received, socket.as_ref()).await {
                            return;
                        }
                    }
                    Ok(None) => {
                        self.disconnect(&mut socket);
                        if self.proofs.is_empty() && self.proving.is_none() {
                            // The session can no longer register a lease.
                            return;
                        }
                    }
                    Err(error) => return self.cannot_read(&error, socket.as_ref()),
                },
                () = self.lives.alone() => {
                    // Messages that the process sent before it died count, above all a goodbye and further lives.
                    while let Some(received) = socket.as_ref().map(Socket::try_receive) {
                        match received {
                            Ok(Some(received)) => {
                                if self.turn(received, socket.as_ref()).await {
                                    return;
                                }
                            }
                            Ok(None) => self.disconnect(&mut socket),
                            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                            Err(error) => return self.cannot_read(&error, socket.as_ref()),
                        }
                        // A child that keeps the socket may continue to send.
                        tokio::task::yield_now().await;
                    }
                    if self.lives.is_alone() {
                        return self.finish().await;
                    }
                }
                () = self.agent.machine.sleep(FORGET_EVERY), if socket.is_none() => {
                    if self.forget().await {
                        return;
                    }
                }
            }
        }
    }

    /// Handles a message and answers it. Returns `true` if it was the session's last.
    async fn turn(&mut self, received: Received, socket: Option<&Socket>) -> bool {
        let (reply, last) = match self.handle(received).await {
            Next::Answer(reply) => (reply, false),
            Next::Dismiss(reply) => (reply, true),
            Next::Goodbye => return true,
        };
        Self::answer(socket, &reply);
        last
    }

    /// Forgets the session, because the unreadable message may have named a life.
    fn cannot_read(self, error: &io::Error, socket: Option<&Socket>) {
        let identity = &self.identity;
        if self.may_log() {
            tracing::warn!(
                target: "eldest::guard", identity, %error,
                "a message of a session cannot be read: the guard forgets the session"
            );
        }
        let reason = unreadable(error);
        Self::answer(socket, &Reply::Refused { reason });
    }

    /// Waits for the remaining lives of the session to end, and then deletes its keys.
    async fn finish(mut self) {
        let machine = Arc::clone(&self.agent.machine);
        let identity = &self.identity;
        if let Some(left) = timer::longest(&self.lives.timers())
            && self.may_log()
        {
            tracing::info!(
                target: "eldest::guard", identity, ?left,
                "the processes of a session are dead: the guard waits until its promises have ended"
            );
        }
        loop {
            tokio::select! {
                biased;
                () = self.lives.end(&*machine, &self.identity, || self.may_log()) => break,
                () = machine.sleep(FORGET_EVERY) => {
                    if self.forget().await {
                        return;
                    }
                }
            }
        }
        let seen = machine.now();
        // The session may have put the key and died before it could report it. No other process knew the key.
        if let Some((lease, _)) = self.proving {
            let _ = self.prove(lease).await;
        }
        if !self.linger.is_zero() {
            machine.wake_at(seen.after(self.linger)).await;
        }
        let dead = Dead {
            agent: &self.agent,
            identity: &self.identity,
            namespace: &self.namespace,
            seen,
            share: &self.share,
            patience: self.patience,
        };
        dead.release(std::mem::take(&mut self.proofs)).await;
    }

    fn disconnect(&self, socket: &mut Option<Socket>) {
        *socket = None;
        self.agent
            .change(self.number, |session| session.connected = false);
    }

    /// Sends an answer; drops it if the session does not read its answers. The messages of a session that is gone are
    /// still read.
    fn answer(socket: Option<&Socket>, reply: &Reply) {
        if let Some(socket) = socket {
            socket.send_now(&reply.encode());
        }
    }

    async fn handle(&mut self, received: Received) -> Next {
        let refuse = |reason: String| Next::Answer(Reply::Refused { reason });
        let Received { message, files } = received;
        let request = Request::decode(&message);
        // Dropped here: the message may be far larger than the part that was read, and etcd may be slow to answer.
        drop(message);
        match request {
            Some(Request::Goodbye) => Next::Goodbye,
            Some(Request::Ping) => Next::Answer(Reply::Pong {
                problem: self.agent.problem(),
            }),
            Some(Request::Process { contained }) => {
                let added = self.lives.add_process(files, contained);
                self.added(added)
            }
            Some(Request::Cgroup) => {
                let added = self.lives.add_cgroup(files);
                self.added(added)
            }
            Some(Request::Timer) => {
                let added = self.lives.add_timer(files);
                self.added(added)
            }
            Some(Request::Guard { lease }) => {
                let key = proof::draw(&*self.agent.machine, &self.namespace);
                self.proving = Some((lease, key.clone()));
                Next::Answer(Reply::Prove { key })
            }
            Some(Request::Proven { lease }) => match self.prove(lease).await {
                Ok(()) => Next::Answer(Reply::Guarded),
                Err(reason) => {
                    self.agent.refused(Some(&self.identity), &reason);
                    refuse(reason)
                }
            },
            Some(Request::Hello(_) | Request::Status) => {
                refuse("a session that is guarded cannot say that".to_owned())
            }
            // The message may have named a life.
            None => {
                let reason = "the guard does not know this message".to_owned();
                self.agent.refused(Some(&self.identity), &reason);
                Next::Dismiss(Reply::Refused { reason })
            }
        }
    }

    /// Answers a new life. A session with a life that the guard does not know must not be guarded: its keys would be
    /// deleted while that life lives.
    fn added(&mut self, added: Result<(), String>) -> Next {
        match added.and_then(|()| self.share.hold(self.own + self.lives.need())) {
            Ok(()) => {
                let (processes, cgroups) = self.lives.count();
                let timers = self.lives.timers();
                self.agent.change(self.number, |session| {
                    (session.processes, session.cgroups) = (processes, cgroups);
                    session.timers = timers;
                });
                Next::Answer(Reply::Added)
            }
            Err(reason) => {
                self.agent.refused(Some(&self.identity), &reason);
                Next::Dismiss(Reply::Refused { reason })
            }
        }
    }

    /// Checks that the key is bound to the lease. Only a user that may write the namespace can have put it there.
    async fn prove(&mut self, lease: i64) -> Result<(), String> {
        let Some((_, key)) = self.proving.take().filter(|(asked, _)| *asked == lease) else {
            return Err(format!("no proof was asked for lease {}", hex(lease)));
        };
        let agent = &self.agent;
        let _asking = self.share.question().await;
        let claim = Claim {
            namespace: Some(&self.namespace),
            with_ttl: agent.patience.is_none(),
            ..Claim::of(&key, lease)
        };
        let proven = agent.etcd.prove(claim).await;
        let proven = proven.map_err(|unproven| unproven.to_string())?;
        self.patience = agent.patience.or(proven.granted).unwrap_or_default();
        let proof = proven.proof;
        self.proofs.retain(|known| known.lease != lease);
        self.proofs.push_front(proof);
        self.proofs.truncate(MOST_LEASES);
        self.list_leases();
        if self.may_log() {
            tracing::info!(
                target: "eldest::guard", identity = self.identity, lease = hex(lease),
                pid = self.lives.pid(), "lease guarded"
            );
        }
        Ok(())
    }

    fn may_log(&self) -> bool {
        self.agent.may_log_of(&self.share)
    }

    fn list_leases(&self) {
        let leases = self.proofs.iter().map(|proof| proof.lease).collect();
        self.agent
            .change(self.number, |session| session.leases = leases);
    }

    /// Forgets leases that are gone, and leases that the session has since proven over another connection. Returns
    /// `true` if none is left.
    async fn forget(&mut self) -> bool {
        let mut left = VecDeque::new();
        for proof in self.proofs.drain(..) {
            let claim = Claim::of(&proof.key, proof.lease);
            let stands = match self.agent.etcd.prove(claim).await {
                Ok(proven) => proven.proof == proof,
                Err(Unproven::Refused(_)) => false,
                // Without an answer, the proof may still exist.
                Err(Unproven::Unknown { .. }) => true,
            };
            if stands {
                left.push_back(proof);
            }
        }
        self.proofs = left;
        self.list_leases();
        self.proofs.is_empty()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.agent.strike_off(self.number);
    }
}

/// Refuses a namespace for which a session cannot prove a lease.
fn check_namespace(prefix: &str) -> Result<(), String> {
    if prefix.ends_with('/') {
        return Ok(());
    }
    Err(
        "a session without a namespace cannot be guarded: its keys have no common prefix, so it cannot prove that it may delete \
         them"
            .to_owned(),
    )
}

/// Waits for the next message; `None` when the other end is closed. Without a connection, waits for ever.
async fn receive(socket: Option<&Socket>) -> io::Result<Option<Received>> {
    match socket {
        Some(socket) => socket.receive().await,
        None => std::future::pending().await,
    }
}

//! Registers a session's lease with its guard: connects, proves that the lease is the session's own, and registers
//! again after the guard was replaced or the lease was lost. Owns the connection and the session's [`GuardState`].

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Display;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use eldest_guard::links::MOST_FORMER;
use eldest_guard::spawned::{self, Spawned};
use eldest_guard::wire::{Hello, Reply, Request, VERSION, hex};
use eldest_guard::{Proof, proof};
use eldest_process::pidfd;
use eldest_process::socket::{Received, Socket};
use tokio::sync::watch;

use super::{Guard, GuardState, Kind, Wiring};
use crate::metrics;
use crate::state::{SessionState, live_lease};
use eldest_core::pause::pause;
use eldest_etcd::runtime::timeout;

/// How long the guard may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How often a silent connection is checked.
const PING_EVERY: Duration = Duration::from_secs(10);
/// The longest pause between attempts to reach the guard.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The task that keeps a session registered.
pub(crate) struct Client {
    guard: Guard,
    wiring: Wiring,
    spawned: Option<Spawned>,
    /// The keys of proofs on which registrations may still depend, the eldest first.
    proofs: VecDeque<Proof>,
}

/// Why a connection to the guard ended.
enum Ended {
    /// The session was closed.
    Closed,
    /// The guard cannot be used at present.
    Failed(String),
}

impl Client {
    pub(crate) fn new(guard: Guard, wiring: Wiring) -> Self {
        Self {
            guard,
            wiring,
            spawned: None,
            proofs: VecDeque::new(),
        }
    }

    /// Runs until the session is closed.
    pub(crate) async fn run(mut self) {
        let mut failures = 0;
        loop {
            let Err(ended) = self.guarded(&mut failures).await;
            let reason = match ended {
                Ended::Closed => break,
                Ended::Failed(reason) => reason,
            };
            failures += 1;
            self.report_state(GuardState::Unguarded {
                reason: reason.into(),
            });
            let pause = self.wiring.env.sleep(pause(failures, LONGEST_PAUSE));
            tokio::select! {
                () = pause => {}
                () = closed(self.wiring.session.clone()) => break,
            }
        }
        self.wiring.links.leave();
        self.end_spawned();
        self.report_state(GuardState::Off);
    }

    fn end_spawned(&mut self) {
        if let Some(spawned) = self.spawned.take() {
            spawned.end();
        }
    }

    /// Runs one connection, until it breaks.
    async fn guarded(&mut self, failures: &mut u32) -> Result<Infallible, Ended> {
        let mut relisted = self.wiring.pool.relisted.subscribe();
        let socket = Arc::new(self.reach().await.map_err(Ended::Failed)?);
        let mut registered = None;
        let spawned = self.spawned.is_some();
        let outdated = async {
            if !spawned || relisted.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let Err(ended) = tokio::select! {
            biased;
            talked = self.talk(&socket, failures, &mut registered) => talked,
            () = outdated => Err(Ended::Failed(
                "it is started again, because the session's endpoints have changed".to_owned(),
            )),
        };
        self.wiring.links.retire(&socket, registered.is_some());
        Err(ended)
    }

    /// Introduces the session and its lives, and registers one lease after the other.
    async fn talk(
        &mut self,
        socket: &Arc<Socket>,
        failures: &mut u32,
        registered: &mut Option<i64>,
    ) -> Result<Infallible, Ended> {
        let hello = Request::Hello(Hello {
            version: VERSION,
            identity: self.wiring.identity.to_string(),
            namespace: self.wiring.namespace.clone(),
            linger_ms: u64::try_from(self.guard.linger.as_millis()).unwrap_or(u64::MAX),
        });
        let own = pidfd::own().map_err(|error| {
            Ended::Failed(format!(
                "this system has no process descriptors (Linux 5.3): {error}"
            ))
        })?;
        let welcome = self.ask(socket, &hello, &[own.as_fd()]).await?;
        expect(welcome, |reply| matches!(reply, Reply::Welcome { .. }))?;
        let joined = self.wiring.links.join(socket);
        joined.map_err(|error| {
            Ended::Failed(format!("the {} cannot be talked to: {error}", self.guard))
        })?;
        loop {
            // The former lease stays registered until there is another one.
            let lease = live_lease(&self.wiring.session.borrow_and_update());
            if self.is_closed() {
                return Err(Ended::Closed);
            }
            if let Some(present) = lease.filter(|present| *registered != Some(*present)) {
                self.register(socket, present, registered).await?;
                self.wiring.links.supersede(socket);
                *failures = 0;
                continue;
            }
            let problem = self.ping(socket).await?;
            self.report_state(match (problem, lease) {
                (Some(problem), _) => GuardState::Unguarded {
                    reason: format!("the guard does not reach etcd: {problem}").into(),
                },
                (None, Some(lease_id)) => GuardState::Guarded { lease_id },
                (None, None) => GuardState::Ready,
            });
            let env = Arc::clone(&self.wiring.env);
            let mut session = self.wiring.session.clone();
            tokio::select! {
                // With the driver gone, the session is closed, which the next turn sees.
                _ = session.changed() => {}
                () = env.sleep(PING_EVERY) => {}
                // The guard sends a message only as an answer, or when it has added a life.
                received = socket.receive() => self.hear(socket, received)?,
            }
        }
    }

    /// Handles a message that no request waits for.
    fn hear(
        &self,
        socket: &Arc<Socket>,
        received: std::io::Result<Option<Received>>,
    ) -> Result<(), Ended> {
        let reply = received.ok().flatten();
        match reply.and_then(|reply| Reply::decode(&reply.message)) {
            Some(Reply::Added) => {
                self.wiring.links.answered(socket);
                Ok(())
            }
            Some(other) => Err(unexpected(other)),
            None => Err(Ended::Failed(format!(
                "the connection to the {} broke",
                self.guard
            ))),
        }
    }

    fn is_closed(&self) -> bool {
        matches!(*self.wiring.session.borrow(), SessionState::Closed)
            || self.wiring.session.has_changed().is_err()
    }

    async fn reach(&mut self) -> Result<Socket, String> {
        match &self.guard.kind {
            Kind::Agent(path) => {
                let socket = Socket::connect(path).map_err(|error| match error.kind() {
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
                        format!("no agent listens at {}: start `eldest agent`", path.display())
                    }
                    std::io::ErrorKind::PermissionDenied => format!(
                        "this process may not use the agent at {}: its user must be in the socket's group",
                        path.display()
                    ),
                    _ => format!("the agent at {}: {error}", path.display()),
                })?;
                socket
                    .is_trusted(path)
                    .map_err(|reason| format!("the agent at {}: {reason}", path.display()))?;
                Ok(socket)
            }
            Kind::Spawned => {
                self.end_spawned();
                let (spawned, socket) = spawned::start(&self.wiring.pool.passed()?).await?;
                self.spawned = Some(spawned);
                Ok(socket)
            }
        }
    }

    /// Registers the lease with the guard. The proof stays bound to the lease for as long as a registration that it
    /// proved may count.
    async fn register(
        &mut self,
        socket: &Arc<Socket>,
        lease: i64,
        registered: &mut Option<i64>,
    ) -> Result<(), Ended> {
        let key = match self.ask(socket, &Request::Guard { lease }, &[]).await? {
            Reply::Prove { key } if proof::is_below(&self.wiring.namespace, &key) => key,
            Reply::Prove { .. } => {
                return Err(Ended::Failed(format!(
                    "the {} named a key that is no guard key of the session's namespace: nothing was written",
                    self.guard
                )));
            }
            other => return Err(unexpected(other)),
        };
        let failed = |why: &dyn Display| {
            Ended::Failed(format!("lease {} could not be proven: {why}", hex(lease)))
        };
        // From here on, the guard may guard the lease, even if no answer comes.
        *registered = Some(lease);
        let put = self.wiring.pool.put_proof(key, lease).await;
        let put = put.map_err(|failure| failed(&failure))?;
        self.proofs
            .push_back(put.ok_or_else(|| failed(&"the key that the guard drew exists"))?);
        let answer = self.ask(socket, &Request::Proven { lease }, &[]).await;
        let kept = match &answer {
            Ok(Reply::Guarded) => 1,
            // The guard may have registered the lease, and so may all earlier connections.
            Err(_) => MOST_FORMER + 1,
            Ok(_) => {
                self.forget_proof(VecDeque::pop_back).await;
                MOST_FORMER
            }
        };
        while self.proofs.len() > kept {
            self.forget_proof(VecDeque::pop_front).await;
        }
        expect(answer?, |reply| matches!(reply, Reply::Guarded))
    }

    /// Deletes the key of a proof that no registration needs.
    async fn forget_proof(&mut self, take: impl FnOnce(&mut VecDeque<Proof>) -> Option<Proof>) {
        if let Some(Proof {
            key,
            create_revision,
            ..
        }) = take(&mut self.proofs)
        {
            // A key that is not deleted now is deleted with the lease.
            let pool = &self.wiring.pool;
            if let Err(error) = pool.evict(key.as_bytes(), create_revision).await {
                tracing::debug!(target: "eldest::guard", %error, key, "proof key not deleted");
            }
        }
    }

    async fn ping(&self, socket: &Arc<Socket>) -> Result<Option<String>, Ended> {
        match self.ask(socket, &Request::Ping, &[]).await? {
            Reply::Pong { problem } => Ok(problem),
            other => Err(unexpected(other)),
        }
    }

    /// Sends a request and receives its answer. Answers about lives may arrive first.
    async fn ask(
        &self,
        socket: &Arc<Socket>,
        request: &Request,
        files: &[BorrowedFd<'_>],
    ) -> Result<Reply, Ended> {
        let failed = |what: String| Ended::Failed(format!("the {} {what}", self.guard));
        let asked = async {
            socket.send(&request.encode(), files).await?;
            loop {
                let Some(received) = socket.receive().await? else {
                    return Ok(None);
                };
                match Reply::decode(&received.message) {
                    Some(Reply::Added) => self.wiring.links.answered(socket),
                    reply => return Ok(Some(reply)),
                }
            }
        };
        let env = &*self.wiring.env;
        match timeout(env, ANSWER_WITHIN, asked).await {
            None => Err(failed(format!("did not answer within {ANSWER_WITHIN:?}"))),
            Some(Err(error)) => {
                let error: std::io::Error = error;
                Err(failed(format!("cannot be talked to: {error}")))
            }
            Some(Ok(None)) => Err(failed("closed the connection".to_owned())),
            Some(Ok(Some(reply))) => reply
                .ok_or_else(|| failed("gave an answer that this version does not know".to_owned())),
        }
    }

    fn report_state(&self, state: GuardState) {
        let identity = &*self.wiring.identity;
        metrics::guarded(identity, state.is_guarded());
        self.wiring.state.send_if_modified(|present| {
            if *present == state {
                return false;
            }
            match &state {
                GuardState::Guarded { lease_id } => {
                    tracing::info!(
                        target: "eldest::guard", identity, guard = %self.guard, lease = hex(*lease_id),
                        "session guarded"
                    );
                }
                GuardState::Unguarded { reason } => {
                    tracing::warn!(
                        target: "eldest::guard", identity, %reason,
                        "session not guarded: after a crash, its keys stay until the lease expires"
                    );
                }
                GuardState::Ready | GuardState::Off => {}
            }
            *present = state;
            true
        });
    }
}

fn expect(reply: Reply, wanted: impl Fn(&Reply) -> bool) -> Result<(), Ended> {
    if wanted(&reply) {
        return Ok(());
    }
    Err(unexpected(reply))
}

fn unexpected(reply: Reply) -> Ended {
    Ended::Failed(match reply {
        Reply::Refused { reason } => format!("the guard refused the session: {reason}"),
        other => format!("the guard gave an unexpected answer: {}", other.encode()),
    })
}

async fn closed(mut session: watch::Receiver<SessionState>) {
    // An error means that the driver is gone.
    let _ = session
        .wait_for(|state| matches!(state, SessionState::Closed))
        .await;
}

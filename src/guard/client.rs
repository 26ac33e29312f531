//! Registers a session's lease with its guard: connects, proves that the lease is the session's own, and registers again
//! after the guard was replaced or the lease was lost. Owns the connection and the session's [`GuardState`].

use std::convert::Infallible;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::process;
use super::socket::Socket;
use super::spawned::{self, Spawned};
use super::wire::{Reply, Request, VERSION, hex};
use super::{Guard, GuardState, Kind};
use crate::etcd::Pool;
use crate::metrics;
use crate::runtime::{SharedEnv, timeout};
use crate::state::SessionState;
use eldest_core::pause::pause;

/// How long the guard may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How often a silent connection is tried out.
const PING_EVERY: Duration = Duration::from_secs(10);
/// The longest pause between attempts to reach the guard.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The session that is guarded.
pub(crate) struct Wiring {
    pub(crate) env: SharedEnv,
    pub(crate) pool: Arc<Pool>,
    pub(crate) identity: Arc<str>,
    /// The prefix of all keys of the session.
    pub(crate) namespace: String,
    pub(crate) session: watch::Receiver<SessionState>,
    pub(crate) state: watch::Sender<GuardState>,
}

/// The task that keeps a session registered.
pub(crate) struct Client {
    guard: Guard,
    wiring: Wiring,
    spawned: Option<Spawned>,
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
            self.tell(GuardState::Unguarded {
                reason: reason.into(),
            });
            let pause = self.wiring.env.sleep(pause(failures, LONGEST_PAUSE));
            tokio::select! {
                () = pause => {}
                () = closed(self.wiring.session.clone()) => break,
            }
        }
        self.tell(GuardState::Off);
    }

    /// One connection, until it breaks.
    async fn guarded(&mut self, failures: &mut u32) -> Result<Infallible, Ended> {
        let socket = self.reach().await.map_err(Ended::Failed)?;
        let hello = Request::Hello {
            version: VERSION,
            identity: self.wiring.identity.to_string(),
            namespace: self.wiring.namespace.clone(),
            linger_ms: u64::try_from(self.guard.linger.as_millis()).unwrap_or(u64::MAX),
        };
        let own = process::own().map_err(|error| {
            Ended::Failed(format!(
                "this system has no process descriptors (Linux 5.3): {error}"
            ))
        })?;
        let welcome = self.ask(&socket, &hello, Some(own.as_fd())).await?;
        expect(welcome, |reply| matches!(reply, Reply::Welcome { .. }))?;
        let mut registered = None;
        loop {
            let lease = match &*self.wiring.session.borrow_and_update() {
                SessionState::Live(lease) => Some(lease.lease_id()),
                SessionState::Closed => None,
                // The former lease stays registered until there is another one.
                _ => registered.filter(|_| false),
            };
            if self.is_closed() {
                // The guard sees the end of the process otherwise, and revokes a lease that is gone.
                let _ = socket.send(&Request::Goodbye.encode(), None).await;
                return Err(Ended::Closed);
            }
            if lease.is_some() && lease != registered {
                self.register(&socket, lease.unwrap_or_default()).await?;
                registered = lease;
                *failures = 0;
                continue;
            }
            let problem = self.ping(&socket).await?;
            self.tell(match (problem, lease) {
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
                // The guard speaks only when it is asked.
                _ = socket.receive() => {
                    return Err(Ended::Failed(format!("the connection to the {} broke", self.guard)));
                }
            }
        }
    }

    fn is_closed(&self) -> bool {
        matches!(*self.wiring.session.borrow(), SessionState::Closed)
            || self.wiring.session.has_changed().is_err()
    }

    async fn reach(&mut self) -> Result<Socket, String> {
        match &self.guard.kind {
            Kind::Agent(path) => Socket::connect(path).map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
                    format!("no agent listens at {}: start `eldest agent`", path.display())
                }
                std::io::ErrorKind::PermissionDenied => format!(
                    "this process may not use the agent at {}: its user must be in the socket's group",
                    path.display()
                ),
                _ => format!("the agent at {}: {error}", path.display()),
            }),
            Kind::Spawned => {
                self.spawned = None;
                let (spawned, socket) = spawned::start(&self.wiring.pool).await?;
                self.spawned = Some(spawned);
                Ok(socket)
            }
        }
    }

    /// Has the guard guard that lease.
    async fn register(&self, socket: &Socket, lease: i64) -> Result<(), Ended> {
        let pool = &self.wiring.pool;
        let key = match self.ask(socket, &Request::Guard { lease }, None).await? {
            Reply::Prove { key } => key,
            other => return Err(unexpected(other)),
        };
        let put = pool.put_proof(key.as_bytes(), lease).await;
        let put = put.map_err(|failure| {
            Ended::Failed(format!(
                "lease {} could not be proven: {failure}",
                hex(lease)
            ))
        })?;
        let answer = self.ask(socket, &Request::Proven { lease }, None).await;
        if let Some(create_revision) = put {
            // What is not deleted now goes with the lease.
            let deleted = pool.evict(key.as_bytes(), create_revision).await;
            if let Err(error) = deleted {
                tracing::debug!(target: "eldest::guard", %error, key, "proof key not deleted");
            }
        }
        expect(answer?, |reply| matches!(reply, Reply::Guarded))
    }

    async fn ping(&self, socket: &Socket) -> Result<Option<String>, Ended> {
        match self.ask(socket, &Request::Ping, None).await? {
            Reply::Pong { problem } => Ok(problem),
            other => Err(unexpected(other)),
        }
    }

    /// Sends a request and receives its answer.
    async fn ask(
        &self,
        socket: &Socket,
        request: &Request,
        file: Option<std::os::fd::BorrowedFd<'_>>,
    ) -> Result<Reply, Ended> {
        let failed = |what: String| Ended::Failed(format!("the {} {what}", self.guard));
        let asked = async {
            socket.send(&request.encode(), file).await?;
            socket.receive().await
        };
        let env = &*self.wiring.env;
        match timeout(env, ANSWER_WITHIN, asked).await {
            None => Err(failed(format!("did not answer within {ANSWER_WITHIN:?}"))),
            Some(Err(error)) => Err(failed(format!("cannot be talked to: {error}"))),
            Some(Ok(None)) => Err(failed("closed the connection".to_owned())),
            Some(Ok(Some(received))) => Reply::decode(&received.message)
                .ok_or_else(|| failed("gave an answer that this version does not know".to_owned())),
        }
    }

    fn tell(&self, state: GuardState) {
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

//! Shares one lease, one keepalive stream and one watch stream among all handles of a session.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::{oneshot, watch};
use tracing::Instrument;

use crate::announcement::Announced;
use crate::driver::lookout::{self, Lookout};
use crate::driver::{Command, Commands, Driver, Parts, Room, several};
use crate::election::Election;
use crate::env::{SharedEnv, System, Watched, timeout};
use crate::error::{Error, ErrorKind, Result};
use crate::etcd::{Class, Failure, Pool};
use crate::lock::Lock;
use crate::names::{Names, Use};
use crate::options::{ETCD_ELECTION_TIMEOUT, SessionOptions, Settings, check_name};
use crate::own::Owns;
use crate::partitions::Partitions;
use crate::resource::Resource;
use crate::semaphore::{Semaphore, check_capacity};
use crate::term::{Belief, Beliefs};
use eldest_core::action::{SlotId, TermId};
use eldest_core::candidate::LONG_QUEUE;
use eldest_core::machine::BATCH;
use eldest_core::machine::Config;
use eldest_core::reason::LostReason;

/// One node's stay in etcd: one lease, one keepalive stream and one watch stream for every election and lock of a
/// process.
///
/// A cheap handle; clone it freely. The lease is granted at the first campaign or lock, so a session that only looks on
/// holds none. A lost lease is replaced, and candidates rejoin at the back of their queues, by themselves.
///
/// When the last handle is dropped (sessions, elections, candidates, leaderships, locks and observers all are handles),
/// the session closes itself in the background, as [`Session::close`] does, for as long as the runtime lives. A
/// process that ends right afterwards leaves its keys to expire: call [`Session::close`] and await it.
///
/// One session per process is enough for any number of elections, in each of which it can be one candidate.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), eldest::BoxError> {
/// # use eldest::{Session, SessionOptions};
/// # let etcd = eldest_testing::Etcd::start().await?;
/// # let endpoints = [etcd.endpoint()];
/// use std::time::Duration;
/// use eldest::SessionState;
///
/// let options = SessionOptions::new("node-a").ttl(Duration::from_secs(5));
/// let session = Session::connect(endpoints, options).await?;
/// let candidate = session.election("billing/scheduler")?.campaign().await?;
/// if let SessionState::Live(lease) = &*session.state().borrow() {
///     println!("lease {:x} is good for {:?} more", lease.lease_id(), lease.time_left());
/// }
/// session.close().await?; // the key and the lease are gone
/// # assert_eq!(etcd.client().await.leases().await?.leases().len(), 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Session {
    handle: Handle,
}

/// How a session is doing.
#[non_exhaustive]
#[derive(Debug, Clone)]
pub enum SessionState {
    /// etcd has not answered yet.
    Connecting,
    /// Connected; there is no lease, for nobody campaigned yet.
    Ready,
    /// The lease is believed in.
    Live(LeaseView),
    /// The lease is lost, or no renewal could be verified in time; a new one is on its way.
    Lost {
        /// Why.
        reason: LostReason,
    },
    /// The session was closed, or its runtime is gone.
    Closed,
}

impl SessionState {
    /// The state at this moment in one word, as HTTP says it: `connecting`, `ready`, `live`, `lost`, `closed`. A lease whose
    /// deadline has passed is `lost`.
    pub fn as_str(&self) -> &'static str {
        match self {
            SessionState::Connecting => "connecting",
            SessionState::Ready => "ready",
            SessionState::Live(lease) if !lease.time_left().is_zero() => "live",
            SessionState::Live(_) | SessionState::Lost { .. } => "lost",
            SessionState::Closed => "closed",
        }
    }
}

/// The lease of a session that is live.
#[derive(Clone)]
pub struct LeaseView {
    lease: i64,
    belief: Arc<Belief>,
    env: SharedEnv,
}

impl LeaseView {
    pub(crate) fn new(lease: i64, belief: Arc<Belief>, env: SharedEnv) -> Self {
        Self { lease, belief, env }
    }

    /// etcd's id of the lease.
    pub fn lease_id(&self) -> i64 {
        self.lease
    }

    /// How much longer the lease is believed in if no renewal succeeds; computed at each call.
    pub fn time_left(&self) -> Duration {
        self.belief.deadline().since(self.env.now())
    }
}

impl fmt::Debug for LeaseView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "LeaseView({:x}, {:?} left)",
            self.lease,
            self.time_left()
        )
    }
}

/// What keeps a session alive.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) commands: Commands,
    pub(crate) shared: Arc<SessionShared>,
}

pub(crate) struct SessionShared {
    pub(crate) env: SharedEnv,
    pub(crate) pool: Arc<Pool>,
    pub(crate) settings: Settings,
    pub(crate) state: watch::Receiver<SessionState>,
    slots: AtomicU64,
    pub(crate) room: Room,
    pub(crate) names: Names,
    pub(crate) owns: Owns,
    pub(crate) lookout: Lookout,
    // The watchdog holds it weakly: with the session gone, nobody is watched.
    _beliefs: Arc<Beliefs>,
}

impl Handle {
    /// Sends at once what a handle says a few times at most. Fails only when the driver is gone.
    pub(crate) fn send(&self, command: Command) -> Result<()> {
        self.commands.tell(command)
    }

    /// Sends what a user may ask for any number of times, when there is room. Fails only when the driver is gone.
    ///
    /// # Cancellation safety
    /// Dropped before it is ready, nothing is sent.
    pub(crate) async fn call(&self, command: Command) -> Result<()> {
        self.commands.call(&self.shared.room, command).await
    }

    pub(crate) fn new_slot(&self) -> SlotId {
        self.shared.slots.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn announced(&self, announced: &Announced) -> Result<Arc<[u8]>> {
        announced.encode(self.shared.env.unix_time())
    }

    /// Waits until a candidacy is over and its key is gone for certain.
    pub(crate) async fn ended(&self, slot: SlotId) -> Result<()> {
        self.ended_within(slot, self.patience()).await
    }

    /// As [`Handle::ended`], where work is awaited first.
    pub(crate) async fn ended_within(&self, slot: SlotId, patience: Duration) -> Result<()> {
        let (reply, done) = oneshot::channel();
        self.call(Command::AwaitEnd { slot, reply }).await?;
        self.confirmed(done, patience).await
    }

    /// Waits until the key of that term is gone for certain.
    pub(crate) async fn released(&self, slot: SlotId, term: TermId) -> Result<()> {
        self.released_within(slot, term, self.patience()).await
    }

    /// As [`Handle::released`], where work is awaited first.
    pub(crate) async fn released_within(
        &self,
        slot: SlotId,
        term: TermId,
        patience: Duration,
    ) -> Result<()> {
        let (reply, done) = oneshot::channel();
        self.call(Command::AwaitRelease { slot, term, reply })
            .await?;
        self.confirmed(done, patience).await
    }

    async fn confirmed(&self, done: oneshot::Receiver<()>, patience: Duration) -> Result<()> {
        match timeout(&*self.shared.env, patience, done).await {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) => Err(Error::closed()),
            None => Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "the key's deletion was not confirmed within {patience:?}; it is retried in the background"
                ),
            )),
        }
    }

    /// How long calls wait for etcd to confirm that a key is gone.
    pub(crate) fn patience(&self) -> Duration {
        several(self.shared.settings.request_timeout)
    }
}

impl Session {
    /// Connects to etcd, through whichever endpoint answers first.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: an endpoint or an option breaks a rule, or there is no tokio runtime. `Unavailable`: no
    /// endpoint answered a linearizable read within the connect timeout (default 5 s). `Unauthenticated`,
    /// `PermissionDenied`: etcd refused us.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: dropped before it is ready, nothing is left.
    pub async fn connect<E: AsRef<str>>(
        endpoints: impl IntoIterator<Item = E>,
        options: SessionOptions,
    ) -> Result<Self> {
        let session = Self::connect_lazy(endpoints, options)?;
        session.handle.shared.reach().await?;
        session.handle.send(Command::Connected)?;
        Ok(session)
    }

    /// Makes a session without connecting: campaigns and observers wait until etcd can be reached.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: an endpoint or an option breaks a rule, or there is no tokio runtime.
    pub fn connect_lazy<E: AsRef<str>>(
        endpoints: impl IntoIterator<Item = E>,
        options: SessionOptions,
    ) -> Result<Self> {
        let invalid = |message: String| Error::new(ErrorKind::InvalidInput, message);
        let settings = options.settle()?;
        #[cfg(feature = "unstable-sim")]
        let given = settings.env.clone();
        #[cfg(not(feature = "unstable-sim"))]
        let given: Option<SharedEnv> = None;
        let env = match given {
            Some(env) => env,
            None => Arc::new(System::new().map_err(|e| invalid(e.to_string()))?),
        };
        let endpoints: Vec<String> = endpoints
            .into_iter()
            .map(|e| e.as_ref().to_owned())
            .collect();
        let pool = Pool::new(
            Arc::clone(&env),
            endpoints,
            settings.access(),
            settings.request_timeout,
        )
        .map_err(invalid)?;
        if !settings.survives(ETCD_ELECTION_TIMEOUT) {
            tracing::warn!(
                target: "eldest::session", identity = settings.identity, ttl = ?settings.ttl,
                "with this ttl a change of etcd's own leader may cost the leadership",
            );
        }
        Ok(Self::start(env, Arc::new(pool), settings))
    }

    pub(crate) fn of(handle: Handle) -> Self {
        Self { handle }
    }

    pub(crate) fn shared(&self) -> &SessionShared {
        &self.handle.shared
    }

    fn start(env: SharedEnv, pool: Arc<Pool>, settings: Settings) -> Self {
        let (commands, commands_in) = Commands::channel();
        let (state, state_seen) = watch::channel(SessionState::Connecting);
        let beliefs = Beliefs::new(settings.grace);
        let watched: Arc<dyn Watched> = Arc::clone(&beliefs) as Arc<dyn Watched>;
        env.watch(Arc::downgrade(&watched));
        let probe_key = settings.prefix("~").into_bytes();
        let config = Config {
            ttl: settings.ttl,
            trust: settings.trust,
            grace: settings.grace,
            request_timeout: settings.request_timeout,
            probe_key: probe_key.into(),
            long_queue: LONG_QUEUE,
            batch: BATCH,
        };
        // Whatever the session's tasks log lies within it.
        let span = tracing::info_span!(
            target: "eldest::session", "session",
            identity = settings.identity, namespace = settings.namespace,
        );
        let identity: Arc<str> = settings.identity.as_str().into();
        let namespace: Arc<[u8]> = settings.namespace_prefix().into_bytes().into();
        let lookout = Lookout::new(lookout::Parts {
            env: Arc::clone(&env),
            pool: Arc::clone(&pool),
            config: config.clone(),
            state: state_seen.clone(),
            driver: commands.downgrade(),
            identity: Arc::clone(&identity),
            namespace: Arc::clone(&namespace),
            span: span.clone(),
        });
        env.spawn(
            Driver::run(Parts {
                env: Arc::clone(&env),
                pool: Arc::clone(&pool),
                config,
                beliefs: Arc::clone(&beliefs),
                state,
                commands: commands_in,
                identity,
                namespace,
            })
            .instrument(span)
            .boxed(),
        );
        let shared = SessionShared {
            env,
            pool,
            settings,
            state: state_seen,
            slots: AtomicU64::new(1),
            room: Room::default(),
            names: Names::default(),
            owns: Owns::default(),
            lookout,
            _beliefs: beliefs,
        };
        Self {
            handle: Handle {
                commands,
                shared: Arc::new(shared),
            },
        }
    }

    /// Who this node is, as given to [`SessionOptions::new`].
    pub fn identity(&self) -> &str {
        &self.handle.shared.settings.identity
    }

    /// Where the session's keys live, without the final `/`; see [`SessionOptions::namespace`].
    pub fn namespace(&self) -> &str {
        &self.handle.shared.settings.namespace
    }

    /// How the session is doing: the current state at once, then every change.
    pub fn state(&self) -> watch::Receiver<SessionState> {
        self.handle.shared.state.clone()
    }

    /// An election by name. Sends nothing.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: the name is empty, begins or ends with `/`, contains `//` or control characters, is longer
    /// than 512 bytes, begins with `~` (this crate's own keys do), is in use for a [`Lock`] of this session, or lies
    /// inside (or around) another election or lock of this session that is in use: `a` and `a/b` may not be used
    /// together, because other programs would count the keys of `a/b` in `a`.
    pub fn election(&self, name: impl AsRef<str>) -> Result<Election> {
        let name = name.as_ref();
        check_name(name)?;
        let shared = &self.handle.shared;
        let (name, _) = shared.names.register(name, Use::Election)?;
        let prefix = shared.settings.prefix(&name);
        Ok(Election::new(self.handle.clone(), name, prefix.into()))
    }

    /// So many partitions by name, 1 to 65,536, which all sessions that [join](Partitions::join) share among them. Sends
    /// nothing.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: the count is out of bounds, or the name is as it must not be for [`Session::election`]. Partitions
    /// have names of their own, apart from those of elections, locks and semaphores. `CountMismatch`: this session uses
    /// the name with another count.
    pub fn partitions(&self, name: impl AsRef<str>, count: u32) -> Result<Partitions> {
        Partitions::new(self.handle.clone(), name.as_ref(), count)
    }

    /// A lock by name. Sends nothing.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: as for [`Session::election`]. Elections and locks share their names.
    pub fn lock(&self, name: impl AsRef<str>) -> Result<Lock> {
        let resource = Resource::new(self.handle.clone(), name.as_ref(), Use::Lock)?;
        Ok(Lock::new(resource))
    }

    /// A semaphore by name, with 1 to 1024 permits. Sends nothing.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: the capacity is out of bounds, or the name is as it must not be for [`Session::election`].
    /// Semaphores have names of their own, apart from those of elections and locks. `CapacityMismatch`: this session uses
    /// it with another capacity.
    pub fn semaphore(&self, name: impl AsRef<str>, capacity: usize) -> Result<Semaphore> {
        check_capacity(capacity)?;
        let what = Use::Semaphore { capacity };
        let resource = Resource::new(self.handle.clone(), name.as_ref(), what)?;
        Ok(Semaphore::new(resource, capacity))
    }

    /// Ends every term (tokens cancelled, work awaited until its frozen deadline), of locks too, leaves every queue and
    /// revokes the lease. Handles of this session answer [`ErrorKind::Closed`] afterwards. Calling it again is no error.
    ///
    /// # Errors
    ///
    /// `Unavailable`: etcd did not confirm it within the TTL and four request timeouts; it is retried in the
    /// background until the lease must have expired by itself.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: closing goes on in the background.
    pub async fn close(&self) -> Result<()> {
        let (reply, done) = oneshot::channel();
        if self.handle.call(Command::Close { reply }).await.is_err() {
            return Ok(());
        }
        let shared = &self.handle.shared;
        let patience = shared.settings.ttl + self.handle.patience();
        match timeout(&*shared.env, patience, done).await {
            // An error means that the driver is gone, which is what was asked for.
            Some(_) => Ok(()),
            None => Err(Error::new(
                ErrorKind::Unavailable,
                format!("etcd did not confirm the end of the lease within {patience:?}"),
            )),
        }
    }
}

impl SessionShared {
    /// Asks again, for as long as connecting may take, while another try may do better. Only for what may be done twice.
    pub(crate) async fn persist<T, A>(&self, mut ask: impl FnMut() -> A) -> Result<T>
    where
        A: Future<Output = Result<T, Failure>>,
    {
        let end = self.env.now().after(self.settings.connect_timeout);
        loop {
            match ask().await {
                Ok(answer) => return Ok(answer),
                Err(failure) => {
                    let again = matches!(failure.class, Class::Retry | Class::Compacted);
                    if !again || self.env.now() >= end {
                        return Err(Error::from_failure(&failure));
                    }
                }
            }
            self.env.sleep(Duration::from_millis(20)).await;
        }
    }

    /// One linearizable read through any endpoint.
    async fn reach(&self) -> Result<()> {
        let patience = self.settings.connect_timeout;
        let end = self.env.now().after(patience);
        let probe = self.settings.prefix("~").into_bytes();
        let (mut failures, mut proxies) = (0, 0);
        loop {
            let Err(failure) = self.pool.probe(&probe).await else {
                return Ok(());
            };
            let error = Error::from_failure(&failure);
            // Without a namespace there is no key that every role may read; being denied one is an answer too.
            if self.settings.is_everywhere() && error.kind() == ErrorKind::PermissionDenied {
                return Ok(());
            }
            let hopeless = matches!(
                error.kind(),
                ErrorKind::PermissionDenied | ErrorKind::Unauthenticated | ErrorKind::Rejected
            );
            // Each of them moves on to the next endpoint, which may be a member.
            proxies += usize::from(error.kind() == ErrorKind::Proxied);
            let hopeless = hopeless || proxies >= self.pool.size();
            let left = end.since(self.env.now());
            if hopeless {
                return Err(error);
            }
            if left.is_zero() {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!("no endpoint answered within {patience:?}; the last one: {failure}"),
                ));
            }
            failures += 1;
            let pause = Duration::from_millis(20 * failures.min(10));
            self.env.sleep(pause.min(left)).await;
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("identity", &self.identity())
            .field("namespace", &self.namespace())
            .field("state", &*self.handle.shared.state.borrow())
            .finish_non_exhaustive()
    }
}

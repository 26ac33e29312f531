//! Defines the session: one lease, one keepalive stream and one watch stream for all of its handles.

mod evacuating;
mod guarding;
mod names;
mod options;
mod ready;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use eldest_peers::Answering;
use futures::FutureExt;
use tokio::sync::{oneshot, watch};
use tracing::Instrument;

use crate::driver::{
    Command, Commands, Driver, ObserverParts, Observers, Parts, Room, WeakCommands, several,
};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::GuardState;
use crate::state::{
    Announcement, AsOf, Challenged, Deadlines, LocalStatuses, Roster, SessionState, check_room,
};
use eldest_core::Config;
use eldest_core::action::{SlotId, TermId};
use eldest_core::error::{Class, RequestError};
use eldest_core::kv::Reach;
use eldest_etcd::runtime::{SharedEnv, System, Watched, timeout};
use eldest_etcd::{Endpoint, EndpointStatus, Pool};
use names::Names;
use options::ETCD_ELECTION_TIMEOUT;

pub(crate) use names::{
    CHECKPOINTS, LOCK_TURNS, MAX_CAPACITY, MAX_COUNT, Path, SCHEDULES, Use, is_hidden,
};
pub use options::{Challenges, LOST_PACKET, SessionOptions};
pub(crate) use options::{Settings, check_exact, check_name};

/// A node's connection to etcd, with one lease, one keepalive stream and one watch stream for all its elections and
/// locks.
///
/// A session is a cheap handle; clone it freely. The first campaign or lock grants the lease, so a session that only
/// observes has no lease. The session replaces a lost lease, and its candidates join their queues again, at the end.
///
/// Sessions, elections, candidates, leaderships, locks and observers are all handles of the session. When the last
/// handle is dropped, the session closes in the background, as [`Session::close`] does, as long as the runtime runs. If
/// the process exits right afterwards, its keys stay until they expire, so await [`Session::close`] first.
///
/// One session per process is enough for any number of elections. A session can have one candidate in each of them.
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

/// The parts that keep a session alive.
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
    pub(crate) challenged: watch::Receiver<Challenged>,
    guarding: guarding::Guarding,
    slots: AtomicU64,
    pub(crate) room: Room,
    pub(crate) names: Names,
    pub(crate) local_statuses: LocalStatuses,
    pub(crate) observers: Observers,
    // Kept here, because the watchdog holds it weakly: after the session's end, no deadline is watched.
    _deadlines: Arc<Deadlines>,
}

/// A handle that does not keep the session alive.
pub(crate) struct WeakHandle {
    commands: WeakCommands,
    shared: Weak<SessionShared>,
}

impl WeakHandle {
    pub(crate) fn upgrade(&self) -> Option<Handle> {
        Some(Handle {
            commands: self.commands.upgrade()?,
            shared: self.shared.upgrade()?,
        })
    }
}

impl Handle {
    pub(crate) fn downgrade(&self) -> WeakHandle {
        WeakHandle {
            commands: self.commands.downgrade(),
            shared: Arc::downgrade(&self.shared),
        }
    }

    /// Sends a command at once, for commands that a handle sends only a few times. Fails only if the driver is gone.
    pub(crate) fn send(&self, command: Command) -> Result<()> {
        self.commands.send_at_once(command)
    }

    /// Sends a command when there is room, for commands that a user may send any number of times. Fails only if the
    /// driver is gone.
    ///
    /// # Cancellation safety
    /// If the call is dropped before it is ready, nothing is sent.
    pub(crate) async fn call(&self, command: Command) -> Result<()> {
        self.commands.call(&self.shared.room, command).await
    }

    pub(crate) fn new_slot(&self) -> SlotId {
        self.shared.slots.fetch_add(1, Ordering::Relaxed)
    }

    /// Encodes the announcement for etcd, for a candidate that joined at `since`.
    pub(crate) fn encode(&self, announcement: &Announcement, since: Duration) -> Result<Arc<[u8]>> {
        let settings = &self.shared.settings;
        let home = settings.data_center.as_deref();
        let value = announcement.encode((&settings.identity, home), since)?;
        if settings.challenges.is_some() {
            check_room(&value)?;
        }
        Ok(value)
    }

    /// Waits until a candidacy is over and its key is certainly gone.
    pub(crate) async fn ended(&self, slot: SlotId) -> Result<()> {
        self.ended_within(slot, self.patience()).await
    }

    /// Waits as [`Handle::ended`] does, for keys whose work is awaited first.
    pub(crate) async fn ended_within(&self, slot: SlotId, patience: Duration) -> Result<()> {
        let (reply, done) = oneshot::channel();
        self.call(Command::AwaitEnd { slot, reply }).await?;
        self.confirmed(done, patience).await
    }

    /// Waits until the key of that term is certainly gone.
    pub(crate) async fn released(&self, slot: SlotId, term: TermId) -> Result<()> {
        self.released_within(slot, term, self.patience()).await
    }

    /// Waits as [`Handle::released`] does, for keys whose work is awaited first.
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
                    "etcd did not confirm the key's deletion within {patience:?}; the session repeats it in the background"
                ),
            )),
        }
    }

    /// Returns how long calls wait for etcd to confirm that a key is gone.
    pub(crate) fn patience(&self) -> Duration {
        several(self.shared.settings.request_timeout)
    }
}

impl Session {
    /// Connects to etcd, through the first endpoint that answers: those of [the session's data
    /// center](SessionOptions::data_center), then the others, in the order of the list.
    ///
    /// The endpoints are URLs, or each an [`Endpoint`] with its data centre. While the session lives, it prefers the
    /// nearest of them ([`Session::endpoints`]).
    ///
    /// # Errors
    ///
    /// `InvalidInput`: an endpoint or an option breaks a rule, a file of certificates is missing or cannot be used, the
    /// port of [challenges](SessionOptions::challenges) cannot be opened, or there is no tokio runtime. `Unavailable`: no
    /// endpoint answered a linearizable read within the connect timeout (default 5 s). `Unauthenticated`,
    /// `PermissionDenied`: etcd refused the session's user. `Unguarded`: the guard that the options require cannot be
    /// reached, or refuses.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: if the call is dropped before it completes, it leaves nothing behind.
    pub async fn connect<E: Into<Endpoint>>(
        endpoints: impl IntoIterator<Item = E>,
        options: SessionOptions,
    ) -> Result<Self> {
        let session = Self::connect_lazy(endpoints, options)?;
        let shared = session.shared();
        let files = shared.settings.access().check(&*shared.env).await;
        files.map_err(|why| Error::new(ErrorKind::InvalidInput, why))?;
        shared.reach().await?;
        shared.may_be_challenged().await?;
        session.handle.send(Command::Connected)?;
        session.handle.meet_guard().await?;
        Ok(session)
    }

    /// Makes a session without connecting. Campaigns and observers wait until etcd can be reached.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: an endpoint or an option breaks a rule, the port of [challenges](SessionOptions::challenges) cannot
    /// be opened, or there is no tokio runtime.
    pub fn connect_lazy<E: Into<Endpoint>>(
        endpoints: impl IntoIterator<Item = E>,
        options: SessionOptions,
    ) -> Result<Self> {
        let invalid = |message: String| Error::new(ErrorKind::InvalidInput, message);
        let settings = options.settle()?;
        let env = match &settings.env {
            Some(env) => Arc::clone(env),
            None => Arc::new(System::new().map_err(|e| invalid(e.to_string()))?),
        };
        let pool = Pool::new(
            Arc::clone(&env),
            endpoints,
            settings.access(),
            settings.request_timeout,
        )
        .and_then(|pool| pool.for_session(&settings.identity, settings.data_center.as_deref()))
        .map_err(invalid)?
        .following_members(settings.follow_members)
        .with_challenge_timeout(settings.challenge_timeout())
        .with_fresh_reads(settings.challenges.is_some());
        if !settings.survives(ETCD_ELECTION_TIMEOUT) {
            tracing::warn!(
                target: "eldest::session", identity = settings.identity, ttl = ?settings.ttl,
                "the ttl is short: a change of etcd's own leader may cost the leadership",
            );
        }
        let (port, address) = settings.open_port()?.unzip();
        let config = settings.core_config(&address.unwrap_or_default());
        Ok(Self::start(env, Arc::new(pool), settings, (config, port)))
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    pub(crate) fn of(handle: Handle) -> Self {
        Self { handle }
    }

    pub(crate) fn shared(&self) -> &SessionShared {
        &self.handle.shared
    }

    fn start(
        env: SharedEnv,
        pool: Arc<Pool>,
        settings: Settings,
        (config, port): (Config, Option<Answering>),
    ) -> Self {
        let (commands, commands_in) = Commands::channel();
        let (state, state_seen) = watch::channel(SessionState::Connecting);
        let (challenged, challenged_seen) = watch::channel(Challenged::default());
        let deadlines = Deadlines::new(settings.grace, config.challenges.is_some());
        env.watch(Arc::downgrade(&deadlines) as Weak<dyn Watched>);
        // Log lines of the session's tasks belong to this span.
        let span = tracing::info_span!(
            target: "eldest::session", "session",
            identity = settings.identity, namespace = settings.namespace,
        );
        pool.keep_near(Arc::clone(&config.probe_key), span.clone());
        let identity: Arc<str> = settings.identity.as_str().into();
        let namespace: Arc<[u8]> = settings.namespace_prefix().into_bytes().into();
        let observers = Observers::new(ObserverParts {
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
                deadlines: Arc::clone(&deadlines),
                state,
                challenged,
                commands: commands_in,
                inward: commands.downgrade(),
                port,
                identity,
                namespace,
            })
            .instrument(span)
            .boxed(),
        );
        let guarding = guarding::start(&env, &pool, &settings, &state_seen);
        let shared = SessionShared {
            env,
            pool,
            names: Names::new(settings.namespace_prefix()),
            settings,
            state: state_seen,
            challenged: challenged_seen,
            guarding,
            slots: AtomicU64::new(1),
            room: Room::default(),
            local_statuses: LocalStatuses::default(),
            observers,
            _deadlines: deadlines,
        };
        Self {
            handle: Handle {
                commands,
                shared: Arc::new(shared),
            },
        }
    }

    /// Returns the name of this node, as given to [`SessionOptions::new`].
    pub fn identity(&self) -> &str {
        &self.handle.shared.settings.identity
    }

    /// Returns the namespace of the session's keys, without the final `/` ([`SessionOptions::namespace`]).
    pub fn namespace(&self) -> &str {
        &self.handle.shared.settings.namespace
    }

    /// Returns a channel with the session's state: the current state at once, then every change.
    pub fn state(&self) -> watch::Receiver<SessionState> {
        self.handle.shared.state.clone()
    }

    /// Returns a channel with the state of the session's [guard](SessionOptions::guard): the current state at once,
    /// then every change.
    pub fn guard_state(&self) -> watch::Receiver<GuardState> {
        self.handle.shared.guarding.state.clone()
    }

    /// Returns a channel with what the session knows of its endpoints: the current state at once, then every change.
    ///
    /// It shows the endpoint in use, its round trip, and why the session uses it. A session prefers the endpoint with
    /// the shortest round trip, or those of [its data centre](SessionOptions::data_center). It leaves an endpoint that
    /// fails at once, and returns when the endpoint answers again, which ends no term and delays no renewal.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # use eldest::{Session, SessionOptions};
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
    /// for endpoint in session.endpoints().borrow().iter() {
    ///     if let Some(why) = endpoint.renewals() {
    ///         println!("{} ({})", endpoint.url(), why.as_str());
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn endpoints(&self) -> watch::Receiver<Arc<[EndpointStatus]>> {
        self.handle.shared.pool.endpoints_seen()
    }

    /// Replaces the session's endpoints, without ending a term.
    ///
    /// The session first makes a linearizable read at each new endpoint. Endpoints that are in both lists keep their
    /// connections and measurements. Requests to an endpoint that is no longer listed move to one of the new list, once
    /// a connection to that is ready. When the call returns, new requests go to the new list. The stream of renewals
    /// follows with the next renewal, after a third of the TTL at the latest, and the other streams follow at once.
    ///
    /// Endpoints that do not answer are accepted if another one does. Without a change, the call has no effect.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # use eldest::{Session, SessionOptions};
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
    /// # let [first, second] = [etcd.endpoint(), etcd.endpoint().replace("127.0.0.1", "localhost")];
    /// session.set_endpoints([first, second]).await?;
    /// assert_eq!(session.endpoints().borrow().len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// After an error, the endpoints are the same as before.
    ///
    /// `InvalidInput`: an endpoint breaks a rule of [`Session::connect`], is a member of another cluster, or shows an
    /// older state than the present endpoints; the message names it. `Unavailable`: no endpoint of the new list
    /// answered within the connect timeout (default 5 s). `Unauthenticated`, `Proxied`, `CertificateRefused`: as for
    /// [`Session::connect`], if no other endpoint answered. `Closed`: the session was closed.
    ///
    /// # Cancellation safety
    ///
    /// If the call is dropped, the session uses either list. It does not use both.
    pub async fn set_endpoints<E: Into<Endpoint>>(
        &self,
        endpoints: impl IntoIterator<Item = E>,
    ) -> Result<()> {
        let endpoints = endpoints.into_iter().map(Into::into).collect();
        let shared = &self.handle.shared;
        let invalid = |message: String| Error::new(ErrorKind::InvalidInput, message);
        let endpoints = shared.pool.checked(endpoints).map_err(invalid)?;
        if matches!(*shared.state.borrow(), SessionState::Closed) {
            return Err(Error::closed());
        }
        let key = shared.settings.probe_key();
        let set = || shared.pool.set_endpoints(endpoints.clone(), &key);
        shared.persist(set).await?.map_err(invalid)
    }

    /// Ends every term, leaves every queue and revokes the lease.
    ///
    /// The tokens of all terms, including those of locks, are cancelled. Work is awaited until its frozen deadline.
    /// Afterwards, the handles of this session return [`ErrorKind::Closed`]. A second call is not an error.
    ///
    /// # Errors
    ///
    /// `Unavailable`: etcd did not confirm the end of the lease within the TTL plus four request timeouts. The session
    /// keeps trying in the background until the lease must have expired.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: closing continues in the background.
    pub async fn close(&self) -> Result<()> {
        let (reply, done) = oneshot::channel();
        if self.handle.call(Command::Close { reply }).await.is_err() {
            return Ok(());
        }
        let shared = &self.handle.shared;
        let patience = shared.settings.ttl + self.handle.patience();
        match timeout(&*shared.env, patience, done).await {
            // An error means that the driver is gone, so the session is closed.
            Some(_) => Ok(()),
            None => Err(Error::new(
                ErrorKind::Unavailable,
                format!("etcd did not confirm the end of the lease within {patience:?}"),
            )),
        }
    }
}

impl SessionShared {
    /// Reads the keys under the prefix by a linearizable read, and repeats it for as long as connecting may take.
    pub(crate) async fn roster(&self, prefix: &[u8], reach: Reach) -> Result<Roster> {
        let read = || async {
            let sent = AsOf::now(&self.env);
            Ok((sent, self.pool.list(prefix, reach).await?))
        };
        let (sent, listed) = self.persist(read).await?;
        Ok(Roster::new(listed.header.revision, listed.entries).with_as_of(Some(sent)))
    }

    /// Repeats a request while another attempt may succeed, for as long as connecting may take. Only for requests that
    /// may be sent twice.
    pub(crate) async fn persist<T, A>(&self, mut ask: impl FnMut() -> A) -> Result<T>
    where
        A: Future<Output = Result<T, RequestError>>,
    {
        let end = self.env.now().after(self.settings.connect_timeout);
        loop {
            match ask().await {
                Ok(answer) => return Ok(answer),
                Err(failure) => {
                    let again = matches!(
                        failure.class,
                        Class::Retry | Class::Compacted | Class::Certificate
                    );
                    if !again || self.env.now() >= end {
                        return Err(Error::from_request(&failure));
                    }
                }
            }
            self.env.sleep(Duration::from_millis(20)).await;
        }
    }

    /// Checks that the user may read and delete the keys of challenges, if the session allows them.
    async fn may_be_challenged(&self) -> Result<()> {
        if self.settings.challenges.is_none() {
            return Ok(());
        }
        let anchors = self.settings.anchors();
        let allowed = self.persist(|| self.pool.permissions(&anchors)).await?;
        if allowed.read && allowed.write {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::PermissionDenied,
            format!(
                "a session that allows challenges must read, write and delete keys below {}",
                String::from_utf8_lossy(&anchors)
            ),
        ))
    }

    /// Makes one linearizable read through any endpoint.
    async fn reach(&self) -> Result<()> {
        let patience = self.settings.connect_timeout;
        let end = self.env.now().after(patience);
        let probe = self.settings.probe_key();
        let (mut failures, mut refusing) = (0, BTreeSet::new());
        loop {
            let Err(failure) = self.pool.probe(&probe).await else {
                return Ok(());
            };
            let error = Error::from_request(&failure);
            // Without a namespace there is no key that every role may read; a denied read is an answer too.
            if self.settings.is_everywhere() && error.kind() == ErrorKind::PermissionDenied {
                return Ok(());
            }
            let hopeless = matches!(failure.class, Class::Denied | Class::Auth | Class::Invalid);
            // Each of these attempts moves on to the next endpoint, which may be a member, or have another certificate or
            // version.
            if matches!(
                failure.class,
                Class::Proxy | Class::Certificate | Class::Outdated
            ) {
                refusing.insert(failure.endpoint.clone());
            }
            let hopeless = hopeless || refusing.len() >= self.pool.size();
            let left = end.since(self.env.now());
            if hopeless {
                return Err(error);
            }
            if left.is_zero() {
                let mut message = format!("no endpoint answered within {patience:?}");
                if let Some(instead) = self.pool.misnamed(&failure.endpoint).await {
                    message = format!("{message}: {instead}");
                }
                return Err(Error::of_request(ErrorKind::Unavailable, message, &failure));
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

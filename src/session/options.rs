//! Defines a session's options, and refuses values of TTL, timeouts, grace and margin that do not fit together.

mod challenges;
#[cfg(feature = "serde")]
mod config;

use std::fmt;
use std::time::Duration;

use eldest_peers::Answering;

pub use self::challenges::Challenges;
use super::names::{SESSIONS, is_own_level};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::state::{
    Announcement, EVACUATED, MAX_IDENTITY, SHARES, announce, announced, home, is_cold, marked,
    ready, set_aside, version,
};
use eldest_core::candidate::LONG_QUEUE;
use eldest_core::challenge::ChallengeConfig;
use eldest_core::evacuation::Homes;
use eldest_core::lease::Trust;
use eldest_core::time::Time;
use eldest_core::{BATCH, Config};
#[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
use eldest_etcd::TlsOptions;
use eldest_etcd::{Access, Credentials};

/// The smallest TTL that a default etcd grants: 1.5 times its election timeout, rounded up.
const MIN_TTL: Duration = Duration::from_secs(2);
/// The largest TTL. From a longer one on, etcd checkpoints leases, so a lease could expire earlier than its renewal
/// promises.
const MAX_TTL: Duration = Duration::from_secs(300);
/// etcd's default election timeout.
pub(crate) const ETCD_ELECTION_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest distance for which [`SessionOptions::wan`] finds a TTL.
const MAX_ROUND_TRIP: Duration = Duration::from_millis(4_950);
/// The time for one lost packet's repetition, beside the round trips that a request takes.
pub const LOST_PACKET: Duration = Duration::from_millis(250);
/// The longest namespace or name, in bytes.
const MAX_NAME: usize = 512;
/// The longest exact prefix, in bytes: as long as a namespace and a name.
const MAX_EXACT: usize = 2 * MAX_NAME + 1;

/// The settings of a session: its identity, its namespace, and its times.
///
/// # Default
///
/// | option | default |
/// |---|---|
/// | namespace | `eldest` |
/// | TTL | 10 s |
/// | margin | TTL / 20, at most 2 s |
/// | grace | TTL / 5, at most 10 s |
/// | request timeout | TTL / 20, at least 300 ms, at most 2 s |
/// | connect timeout | 5 s |
/// | clock drift | 1000 ppm |
/// | guard | none |
/// | challenges | not allowed; no port |
/// | members that etcd lists | not followed |
///
/// With these values, one lost renewal does not cost the leadership. With a TTL of at least 4 s, a change of etcd's own
/// leader does not cost it either. This holds if etcd elects another leader within its default election timeout of 1 s.
/// A session with a smaller TTL logs a warning. If etcd takes longer, use a larger TTL.
///
/// A session is refused if its times do not fit together: `ttl / 3 + 2 * request_timeout + grace + margin` must be at
/// most the TTL less clock drift.
///
/// ```
/// use std::time::Duration;
/// use eldest::{Announcement, SessionOptions};
///
/// let options = SessionOptions::new("node-a")
///     .ttl(Duration::from_secs(5))
///     .announcement(Announcement::default().with_address("10.0.0.1:8080"));
/// # let _ = options;
/// ```
///
/// With the feature `serde`, a program can deserialize options from its configuration. The configuration has `identity`
/// and every option that differs from the default, named as the methods here. Times are in milliseconds (`ttl_ms`,
/// `grace_ms`). `credentials` has `user` and either `password` or `password_file`; `tls` has the files `authorities`,
/// `certificate` and `key`, and `server_name`. `challenges` is `steady`, `fast` or `{answer_within_ms: ...}`, with the
/// addresses `challenges_listen` and `challenges_advertise`. Any other name is an error. Options cannot be serialized,
/// because that would write the password.
#[must_use = "options do nothing until a session is made with them"]
#[derive(Clone)]
pub struct SessionOptions {
    identity: String,
    namespace: String,
    ttl: Duration,
    margin: Option<Duration>,
    grace: Option<Duration>,
    request_timeout: Option<Duration>,
    /// The round trip given to [`SessionOptions::wan`].
    round_trip: Option<Duration>,
    connect_timeout: Duration,
    clock_drift_ppm: u32,
    announcement: Option<Announcement>,
    data_center: Option<String>,
    follow_members: bool,
    credentials: Option<Credentials>,
    guard: Option<Guard>,
    challenges: Option<Challenges>,
    #[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
    tls: Option<TlsOptions>,
    env: Option<eldest_etcd::runtime::SharedEnv>,
}

impl SessionOptions {
    /// Makes options for a node with the name `identity`, which has 1 to 1024 bytes. Two nodes with the same name are
    /// two candidates.
    pub fn new(identity: impl Into<String>) -> Self {
        Self {
            identity: identity.into(),
            namespace: "eldest".to_owned(),
            ttl: Duration::from_secs(10),
            margin: None,
            grace: None,
            request_timeout: None,
            round_trip: None,
            connect_timeout: Duration::from_secs(5),
            clock_drift_ppm: 1000,
            announcement: None,
            data_center: None,
            follow_members: false,
            credentials: None,
            guard: None,
            challenges: None,
            #[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
            tls: None,
            env: None,
        }
    }

    /// Sets the prefix of all keys of the session; `eldest` by default.
    ///
    /// An etcd role with `readwrite` on the prefix `<namespace>/` suffices. The namespace has at most 512 bytes. It may
    /// begin with a `/`, but not end with one.
    ///
    /// With an empty namespace, names are whole prefixes. Use it to take part in an election, or to share a lock, with
    /// programs that have no namespace. The role then needs the prefixes of the elections and locks, and `~semaphore/`
    /// for semaphores, `~partitions/` for partitions, `~members/` for groups,
    /// `~schedule/` for schedules and `~checkpoint/` for checkpoints of partitions. The namespace `/` does the same for
    /// programs whose names begin with a slash.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Sets how long etcd keeps the keys of a crashed node: whole seconds from 2 to 300, 10 s by default.
    ///
    /// After a crash, the next node leads within TTL + 0.5 s of the crashed leader's last renewal, provided that etcd's
    /// own leader does not change. After a change of etcd's leader, etcd extends every lease by a whole TTL and its
    /// election timeout.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets the time that is subtracted from the TTL on top of clock drift. Default: TTL / 20, at most 2 s.
    pub fn margin(mut self, margin: Duration) -> Self {
        self.margin = Some(margin);
        self
    }

    /// Sets the grace period: the time between the cancellation of a term's token and the end of its validity, if no
    /// renewal was verified in time. Default: TTL / 5, at most 10 s.
    ///
    /// If the key was deleted or the leader resigned, work is also dropped after this time, although validity ended at
    /// once.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }

    /// Sets how long to wait for one answer of etcd, including the time to connect, before the next endpoint is tried.
    /// Default: TTL / 20, at least 300 ms, at most 2 s. [Challenges](Challenges) and the reads that look for them have
    /// at most a quarter of the time to answer.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = Some(timeout);
        self
    }

    /// Sets how long [`Session::connect`](crate::Session::connect), [`Election::leader`](crate::Election::leader) and
    /// [`Election::roster`](crate::Election::roster) retry if etcd does not answer. Default: 5 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets the largest difference between the rates of this machine's clock and of etcd's clocks, in parts per
    /// million; 1000 by default, at most 100000.
    ///
    /// Only the *rate* matters, never the time of day. Quartz clocks deviate by less than 100 ppm, and NTP slews by at
    /// most 500 ppm.
    pub fn clock_drift_ppm(mut self, ppm: u32) -> Self {
        self.clock_drift_ppm = ppm;
        self
    }

    /// Sets the announcement of this session's candidates: an [`Announcement`], a string or bytes, at most 32 KiB. By
    /// default, candidates announce their identity.
    ///
    /// An [`Election`](crate::Election::announcement) or a [`Group`](crate::Group::announcement) may have its own
    /// announcement, and a candidate changes it with [`Candidate::proclaim`](crate::Candidate::proclaim).
    pub fn announcement(mut self, announcement: impl Into<Announcement>) -> Self {
        self.announcement = Some(announcement.into());
        self
    }

    /// Names the data centre that this node is in. The session then prefers [endpoints](crate::Endpoint::data_center)
    /// of the same data centre, and uses others only while none of those answers. By default, a session prefers the
    /// endpoint with the shortest measured round trip.
    ///
    /// At least one endpoint must name its data centre. Candidates announce the name, unless they announce [another
    /// one](Announcement::with_data_center), or a plain string.
    pub fn data_center(mut self, data_center: impl Into<String>) -> Self {
        self.data_center = Some(data_center.into());
        self
    }

    /// Replaces the endpoints by the members that etcd lists, while the session lives, so that it follows every
    /// replacement of a member. By default, a session keeps the endpoints that it was given.
    ///
    /// The session reads the list at the start, when a request fails, and every 30 s on average. It uses one client URL
    /// of each member: one that is an endpoint already, or else the first one that fits. It uses no learner, no `http`
    /// URL if an endpoint is `https`, no unspecified address, and no loopback address unless all endpoints are. As with
    /// [`Session::set_endpoints`](crate::Session::set_endpoints), members of another cluster are not used, and a change
    /// ends no term. An endpoint that stays keeps its data centre. New members have none.
    ///
    /// Every user of etcd may read the list. If etcd refuses, the session logs a warning and keeps its endpoints.
    pub fn follow_members(mut self) -> Self {
        self.follow_members = true;
        self
    }

    /// Sets etcd's user and password. Without credentials, etcd must allow access without authentication.
    ///
    /// To rotate the password while the session lives, use [`Credentials::from_file`] or
    /// [`Credentials::from_provider`].
    ///
    /// ```
    /// use eldest::{Credentials, SessionOptions};
    ///
    /// let password = std::env::var("ETCD_PASSWORD").unwrap_or_default();
    /// let options = SessionOptions::new("node-a").credentials(Credentials::new("billing", password));
    /// # let _ = options;
    /// ```
    pub fn credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = Some(credentials);
        self
    }

    /// Lets another process delete the session's keys as soon as this process has ended, so that after a crash the next
    /// candidate leads within milliseconds instead of a TTL. None by default.
    ///
    /// ```
    /// use eldest::SessionOptions;
    /// use eldest::guard::Guard;
    ///
    /// let options = SessionOptions::new("node-a").guard(Guard::agent());
    /// # let _ = options;
    /// ```
    pub fn guard(mut self, guard: Guard) -> Self {
        self.guard = Some(guard);
        self
    }

    /// Lets the sessions that wait behind this one take over after a time D without its answer, instead of a TTL. Not
    /// allowed by default.
    ///
    /// The session then leads only while it reads, at least every 0.3 s, that no other session challenges it. A session
    /// that leads or is next in a queue costs etcd up to 3.3 linearizable reads a second, or 7.5 with
    /// [`Challenges::fast`]. It writes one more key for each lease, below `<namespace>/~session/`, and its candidates
    /// announce that key. Candidates that announce a plain string or bytes do not, and are succeeded after the TTL as
    /// before.
    ///
    /// The [limits](Challenges#limits) differ from those of the lease: read them first.
    ///
    /// # Defaults
    ///
    /// The grace period is D / 10 and the request timeout at most D / 4, unless they are set. The grace period is that
    /// of the lease too.
    ///
    /// # Errors
    ///
    /// [`Session::connect`](crate::Session::connect) returns `InvalidInput` if D is less than 0.2 s or not less than
    /// the TTL, or if one lost read would cost the leadership: the time from one read to the next + `2 *
    /// request_timeout + grace + D / 20` must be at most D less clock drift. It returns `PermissionDenied` if the user may
    /// not read, write and delete below `~session/`. It refuses versions of etcd whose linearizable reads may be stale
    /// after a pause (`Rejected`): before 3.4.42, 3.5 before 3.5.28, 3.6 before 3.6.9. It returns `InvalidInput`, and
    /// leaves nothing in etcd, if the addresses break a rule of [`Challenges::advertise`], or if the port cannot be
    /// opened; the message names both.
    ///
    /// ```
    /// use eldest::{Challenges, SessionOptions};
    ///
    /// let challenges = Challenges::steady()
    ///     .listen(([0, 0, 0, 0], 7400))
    ///     .advertise("10.0.0.1:7400");
    /// let options = SessionOptions::new("node-a").challenges(challenges);
    /// # let _ = options;
    /// ```
    pub fn challenges(mut self, challenges: Challenges) -> Self {
        self.challenges = Some(challenges);
        self
    }

    /// Sets the authorities to trust and the certificate to show for TLS.
    ///
    /// With it, endpoints without a scheme are `https`, and `http` endpoints are refused. Without it, `https` endpoints
    /// work if an authority that this machine trusts signed etcd's certificate, and etcd asks for no client
    /// certificate.
    ///
    /// ```
    /// use eldest::{SessionOptions, TlsOptions};
    ///
    /// let tls = TlsOptions::new()
    ///     .authorities("/etc/billing/etcd-ca.pem")
    ///     .identity("/etc/billing/node.pem", "/etc/billing/node.key");
    /// let options = SessionOptions::new("node-a").tls(tls);
    /// # let _ = options;
    /// ```
    #[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
    pub fn tls(mut self, tls: TlsOptions) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets TTL and request timeout for etcd members that are `round_trip` away: more than 0 and at most 4.95 s.
    ///
    /// The request timeout is six round trips (connecting with TLS takes four) plus 250 ms, at least 500 ms. The TTL is
    /// ten request timeouts, at least 15 s. Both replace earlier values of [`SessionOptions::ttl`] and
    /// [`SessionOptions::request_timeout`].
    pub fn wan(mut self, round_trip: Duration) -> Self {
        let request = wan_request_timeout(round_trip);
        let ttl = request.saturating_mul(10);
        let ttl = ttl.clamp(Duration::from_secs(15), MAX_TTL);
        self.ttl = Duration::from_secs(ttl.as_secs_f64().ceil() as u64);
        self.request_timeout = Some(request);
        self.round_trip = Some(round_trip);
        self
    }

    /// Returns the TTL, which may break a rule.
    pub(crate) fn chosen_ttl(&self) -> Duration {
        self.ttl
    }

    /// Runs the session in a simulated environment.
    #[doc(hidden)]
    pub fn env(mut self, env: eldest_etcd::runtime::SharedEnv) -> Self {
        self.env = Some(env);
        self
    }

    /// Checks that one renewal may be lost without losing the leadership.
    fn check_spare(
        &self,
        request_timeout: Duration,
        grace: Duration,
        margin: Duration,
    ) -> Result<()> {
        let ttl = self.ttl;
        let trusted = ttl.saturating_sub(ttl.mul_f64(f64::from(self.clock_drift_ppm) / 1e6));
        let needed = [request_timeout, request_timeout, grace, margin]
            .iter()
            .fold(ttl / 3, |sum, time| sum.saturating_add(*time));
        if needed > trusted {
            let given = self.round_trip;
            let given = given.filter(|it| wan_request_timeout(*it) == request_timeout);
            let why = given.map_or_else(String::new, |round_trip| {
                format!("; the request timeout follows from round_trip = {round_trip:?}")
            });
            return Err(invalid(format!(
                "one lost renewal would cost the leadership: ttl/3 + 2 * request_timeout + grace + margin \
                 = {:?} + 2 * {request_timeout:?} + {grace:?} + {margin:?} = {needed:?} \
                 must be at most ttl less clock drift = {trusted:?}{why}",
                ttl / 3,
            )));
        }
        Ok(())
    }

    fn check_round_trip(&self) -> Result<()> {
        match self.round_trip {
            Some(round_trip) if round_trip.is_zero() || round_trip > MAX_ROUND_TRIP => {
                Err(invalid(format!(
                    "round_trip is {round_trip:?}; it must be more than 0 and at most {MAX_ROUND_TRIP:?}, so that ten \
                     request timeouts of six round trips and {LOST_PACKET:?} fit into the longest TTL, {MAX_TTL:?}"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Returns margin, grace period and request timeout: as set, or scaled with the TTL. The time to answer challenges
    /// scales the grace period.
    fn scaled(&self) -> (Duration, Duration, Duration) {
        let (ttl, allowed) = (self.ttl, self.challenges.as_ref());
        let margin = (ttl / 20).min(Duration::from_secs(2));
        let grace = (ttl / 5).min(Duration::from_secs(10));
        let grace = allowed.map_or(grace, Challenges::grace);
        let request = (ttl / 20).clamp(Duration::from_millis(300), Duration::from_secs(2));
        (
            self.margin.unwrap_or(margin),
            self.grace.unwrap_or(grace),
            self.request_timeout.unwrap_or(request),
        )
    }

    pub(crate) fn settle(self) -> Result<Settings> {
        check_identity(&self.identity)?;
        check_namespace(&self.namespace)?;
        self.check_round_trip()?;
        let ttl = self.ttl;
        if ttl < MIN_TTL || ttl > MAX_TTL || ttl.subsec_nanos() != 0 {
            return Err(invalid(format!(
                "ttl is {ttl:?}; it must be whole seconds from {MIN_TTL:?} to {MAX_TTL:?}"
            )));
        }
        let (margin, grace, request_timeout) = self.scaled();
        if self.clock_drift_ppm > 100_000 {
            return Err(invalid(format!(
                "clock_drift_ppm is {}; at most 100000 (10 %) makes sense",
                self.clock_drift_ppm
            )));
        }
        for (name, value) in [
            ("request_timeout", request_timeout),
            ("connect_timeout", self.connect_timeout),
        ] {
            if value.is_zero() {
                return Err(invalid(format!("{name} is zero")));
            }
        }
        self.check_spare(request_timeout, grace, margin)?;
        if let Some(allowed) = &self.challenges {
            let read = allowed.read_timeout(request_timeout);
            allowed.check(ttl, (read, grace, self.clock_drift_ppm), self.round_trip)?;
        }
        if let Some(guard) = &self.guard {
            guard.check().map_err(invalid)?;
        }
        let spare = (ttl * 2 / 3).saturating_sub(margin).saturating_sub(grace);
        let access = Access::new(self.credentials);
        #[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
        let access = access.with_tls(self.tls);
        Ok(Settings {
            identity: self.identity,
            namespace: self.namespace,
            ttl,
            trust: Trust {
                margin,
                drift_ppm: self.clock_drift_ppm,
            },
            grace,
            request_timeout,
            connect_timeout: self.connect_timeout,
            announcement: self.announcement.unwrap_or_default(),
            data_center: self.data_center,
            follow_members: self.follow_members,
            access,
            guard: self.guard,
            challenges: self.challenges,
            spare,
            env: self.env,
        })
    }
}

impl fmt::Debug for SessionOptions {
    /// Writes the options without credentials and certificates.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionOptions")
            .field("identity", &self.identity)
            .field("namespace", &self.namespace)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}

/// Options that passed the checks.
pub(crate) struct Settings {
    pub(crate) identity: String,
    pub(crate) namespace: String,
    pub(crate) ttl: Duration,
    pub(crate) trust: Trust,
    pub(crate) grace: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) announcement: Announcement,
    pub(crate) data_center: Option<String>,
    pub(crate) follow_members: bool,
    access: Access,
    pub(crate) guard: Option<Guard>,
    pub(crate) challenges: Option<Challenges>,
    /// How late after its due time another renewal may still arrive.
    spare: Duration,
    pub(crate) env: Option<eldest_etcd::runtime::SharedEnv>,
}

impl Settings {
    /// Returns the settings that the core needs. The session's anchor announces `address`, at which others reach its port;
    /// it is empty if there is no port.
    pub(crate) fn core_config(&self, address: &str) -> Config {
        Config {
            ttl: self.ttl,
            trust: self.trust,
            grace: self.grace,
            request_timeout: self.request_timeout,
            probe_key: self.probe_key().into(),
            homes: self.homes(),
            long_queue: LONG_QUEUE,
            batch: BATCH,
            challenges: self.challenge_config(address),
        }
    }

    fn challenge_config(&self, address: &str) -> Option<ChallengeConfig> {
        let allowed = self.challenges.as_ref()?;
        Some(ChallengeConfig {
            sessions: self.anchors().into(),
            lead: allowed.time(),
            trust: allowed.trust(self.trust.drift_ppm),
            grace: self.grace,
            interval: allowed.interval(),
            address: address.as_bytes().into(),
            announce,
            announced,
        })
    }

    /// Opens the port at which the session gives signs of life, if it has one. Returns the port with the address that the
    /// session announces.
    pub(super) fn open_port(&self) -> Result<Option<(Answering, String)>> {
        let challenges = self.challenges.as_ref();
        let Some((challenges, listen)) = challenges.and_then(|c| Some((c, c.listens()?))) else {
            return Ok(None);
        };
        let opened = Answering::bind(listen).and_then(|port| {
            let bound = port.address()?;
            Ok((port, challenges.advertised(bound)))
        });
        let opened = opened
            .map_err(|error| invalid(format!("challenges cannot listen at {listen}: {error}")))?;
        Ok(Some(opened))
    }

    /// Returns the prefix of the anchors of sessions that allow challenges.
    pub(crate) fn anchors(&self) -> Vec<u8> {
        format!("{}{SESSIONS}", self.namespace_prefix()).into_bytes()
    }

    /// Returns a key that the session may read, whether it exists or not.
    pub(crate) fn probe_key(&self) -> Vec<u8> {
        self.prefix("~").into_bytes()
    }

    /// Returns how the core reads announcements, and where the marks of evacuated data centres and of versions are.
    fn homes(&self) -> Homes {
        Homes {
            marks: self.marks().into(),
            home,
            is_cold,
            version,
            ready,
            marked,
            set_aside,
            shares: SHARES,
        }
    }

    /// Returns the prefix of the marks of evacuated data centres.
    pub(crate) fn marks(&self) -> Vec<u8> {
        format!("{}{EVACUATED}", self.namespace_prefix()).into_bytes()
    }

    /// Returns the credentials and certificates for connections.
    pub(crate) fn access(&self) -> Access {
        self.access.clone()
    }

    /// Returns the prefix of an election's keys, with its final `/`, so that `xy` and `xyz` never share one.
    pub(crate) fn prefix(&self, name: &str) -> String {
        format!("{}{name}/", self.namespace_prefix())
    }

    /// Returns `true` if no leadership is lost when etcd elects a new leader after its election timeout.
    pub(crate) fn survives(&self, election_timeout: Duration) -> bool {
        self.spare >= self.request_timeout * 2 + election_timeout
    }

    /// Returns the timeout of the transactions by which sessions challenge each other and answer.
    pub(crate) fn challenge_timeout(&self) -> Duration {
        let allowed = self.challenges.as_ref();
        allowed.map_or(self.request_timeout, |it| {
            it.read_timeout(self.request_timeout)
        })
    }

    /// Returns how long the session may answer no challenge, if it allows challenges.
    pub(crate) fn answer_within(&self) -> Option<Duration> {
        self.challenges.as_ref().map(Challenges::time)
    }

    /// Returns how late the answer to a read may come that looks for challenges, if the session allows them.
    pub(crate) fn read_spare(&self) -> Option<Duration> {
        let challenges = self.challenge_config("")?;
        let trusted = challenges.trust.deadline(Time::ZERO, challenges.lead);
        let used = challenges.grace + challenges.interval;
        Some(trusted.since(Time::ZERO).saturating_sub(used))
    }

    /// Returns how late a renewal may be verified.
    pub(crate) fn spare(&self) -> Duration {
        self.spare
    }

    /// Returns the prefix of all keys.
    pub(crate) fn namespace_prefix(&self) -> String {
        if self.is_everywhere() {
            self.namespace.clone()
        } else {
            format!("{}/", self.namespace)
        }
    }

    /// Returns `true` if names are whole prefixes, because the session has no namespace of its own.
    pub(crate) fn is_everywhere(&self) -> bool {
        matches!(self.namespace.as_str(), "" | "/")
    }
}

/// Returns the request timeout of [`SessionOptions::wan`].
fn wan_request_timeout(round_trip: Duration) -> Duration {
    let needed = round_trip.saturating_mul(6).saturating_add(LOST_PACKET);
    needed.max(Duration::from_millis(500))
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}

fn check_identity(identity: &str) -> Result<()> {
    if identity.is_empty() || identity.len() > MAX_IDENTITY {
        return Err(invalid(format!(
            "the identity has {} bytes; 1 to {MAX_IDENTITY} are allowed",
            identity.len()
        )));
    }
    Ok(())
}

fn check_namespace(namespace: &str) -> Result<()> {
    let rest = namespace.strip_prefix('/').unwrap_or(namespace);
    if namespace.is_empty() || namespace == "/" {
        return Ok(());
    }
    check_path("namespace", namespace, rest)
}

/// Checks a name that becomes part of keys: no level may be empty, so that every prefix ends where its name ends. Names
/// that begin with `~` are this crate's own.
pub(crate) fn check_name(name: &str) -> Result<()> {
    check_path("name", name, name)?;
    if name.starts_with('~') {
        return Err(invalid(format!(
            "the name {name:?} must not begin with '~'"
        )));
    }
    Ok(())
}

/// Checks an exact prefix, which other programs chose. Refuses a prefix that would name other keys than theirs, or keys
/// that this crate uses otherwise. `namespace` is the session's, with its final `/`.
pub(crate) fn check_exact(prefix: &str, namespace: &str) -> Result<()> {
    let within = prefix.strip_prefix(namespace);
    let rule = if prefix.is_empty() {
        "must not be empty"
    } else if prefix.ends_with('/') {
        "must not end with '/', which is added before the lease id"
    } else if prefix.chars().any(char::is_control) {
        "must not contain control characters"
    } else if prefix.len() > MAX_EXACT {
        return Err(invalid(format!(
            "the prefix has {} bytes; at most {MAX_EXACT} are allowed",
            prefix.len()
        )));
    } else if prefix.split('/').any(is_own_level)
        || within.is_some_and(|name| name.starts_with('~'))
    {
        "must not have a level such as '~semaphore', below which this crate keeps other keys"
    } else {
        return Ok(());
    };
    Err(invalid(format!("the prefix {prefix:?} {rule}")))
}

fn check_path(what: &str, whole: &str, rest: &str) -> Result<()> {
    let rule = if rest.is_empty() {
        "must not be empty"
    } else if rest.starts_with('/') || rest.ends_with('/') {
        "must not begin or end with '/'"
    } else if rest.contains("//") {
        "must not contain '//'"
    } else if rest.chars().any(char::is_control) {
        "must not contain control characters"
    } else if whole.len() > MAX_NAME {
        return Err(invalid(format!(
            "the {what} has {} bytes; at most {MAX_NAME} are allowed",
            whole.len()
        )));
    } else {
        return Ok(());
    };
    Err(invalid(format!("the {what} {whole:?} {rule}")))
}

#[cfg(test)]
mod tests;

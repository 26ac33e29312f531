//! Serves operators of etcd and the nodes, through the command `eldest`: it deletes other nodes' keys, and finds out
//! what is wrong with an etcd. Programs that take part in elections do not need it.
//!
//! Not covered by semver: `eldest-cli` pins the exact version of this crate.
#![allow(
    clippy::exhaustive_enums,
    clippy::exhaustive_structs,
    reason = "hidden: for crates that pin the exact version"
)]

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::election::{Checkpoint, key_of_leader, prefix_of_partitions};
use crate::error::{Error, ErrorKind, Result};
pub use crate::session::LOST_PACKET;
use crate::session::{Session, SessionOptions, Settings, check_name};
use crate::state::{Member, announced, say_the_same};
use eldest_core::error::{Class, RequestError};
use eldest_core::kv::Reach;
use eldest_core::time::Time;
use eldest_etcd::runtime::{SharedEnv, System};
use eldest_etcd::{Comparison, Condition, Lane, Op, Pool};
pub use eldest_etcd::{
    EtcdMember, EtcdMemberStatus, PING_EVERY, PING_REMEDY, Permissions, preferred,
};

/// Deletes the key of any candidate, holder or blocker, if it still is exactly the key that was seen; another key of
/// the same path stays. Returns `true` if the key existed until now.
///
/// **Two nodes may act as leader for a moment**: the owner of the key leads until its watch reports the deletion,
/// usually for milliseconds, at the latest until its local deadline, while the next node leads already. If possible,
/// stop the process instead, or let it [step down](crate::Leadership::step_down). A node of this library rejoins at the
/// back.
///
/// # Errors
///
/// `PermissionDenied`, `Unauthenticated`: etcd refused us. `Unavailable`: no endpoint answered within the connect
/// timeout; the key may be gone or not, and repeating the call is safe.
///
/// # Cancellation safety
///
/// If the call is dropped midway, the key may be gone or not.
pub async fn evict(session: &Session, member: &Member) -> Result<bool> {
    let shared = session.shared();
    // An earlier attempt may have deleted the key although its answer was lost.
    let tried = AtomicBool::new(false);
    let stood = shared
        .persist(|| async {
            let asked = shared.pool.evict(member.key(), member.create_revision());
            asked.await.inspect_err(|failure| {
                tried.fetch_or(failure.ambiguous, Ordering::Relaxed);
            })
        })
        .await?;
    Ok(stood || tried.load(Ordering::Relaxed))
}

/// A checkpoint as etcd stores it.
#[derive(Debug, Clone)]
pub struct StoredCheckpoint {
    /// The state, or why it cannot be read.
    pub read: std::result::Result<Checkpoint, String>,
    key: String,
    revision: i64,
}

/// Reads the last checkpoint of an election's leader, or of the partition with that number and count. `None`: nobody
/// has saved one.
///
/// # Errors
///
/// As [`evict`]. `InvalidInput`: the name breaks a rule.
///
/// # Cancellation safety
///
/// Cancel safe: it only reads.
pub async fn checkpoint(
    session: &Session,
    name: &str,
    partition: Option<(u32, u32)>,
) -> Result<Option<StoredCheckpoint>> {
    check_name(name)?;
    let shared = session.shared();
    let namespace = shared.settings.namespace_prefix();
    let key = match partition {
        None => key_of_leader(&namespace, name),
        Some((number, count)) => {
            let prefix = prefix_of_partitions(&namespace, name, count);
            format!("{prefix}{number}")
        }
    };
    let read = || async { shared.pool.read(Lane::Data, key.as_bytes()).await };
    let (_, found) = shared.persist(read).await?;
    Ok(found.map(|found| StoredCheckpoint {
        read: Checkpoint::read(&key, &found.value).map_err(|error| error.to_string()),
        revision: found.mod_revision,
        key,
    }))
}

/// Removes a checkpoint, if it still is the one that was read. Returns `true` if it was.
///
/// # Errors
///
/// As [`evict`].
///
/// # Cancellation safety
///
/// If the call is dropped midway, the checkpoint may be gone or not.
pub async fn remove_checkpoint(session: &Session, stored: &StoredCheckpoint) -> Result<bool> {
    let shared = session.shared();
    let last = Condition::mod_revision(&*stored.key, Comparison::Equal, stored.revision);
    let key = &*stored.key;
    let remove = Op::when([last], [Op::delete(key)], [Op::get(key)]);
    // An earlier attempt may have removed the checkpoint although its answer was lost.
    let tried = AtomicBool::new(false);
    let outcome = shared
        .persist(|| async {
            let asked = shared.pool.fenced_txn(Vec::new(), vec![remove.clone()]);
            asked.await.inspect_err(|failure| {
                tried.fetch_or(failure.ambiguous, Ordering::Relaxed);
            })
        })
        .await?;
    Ok(outcome.is_some_and(|outcome| {
        let is_gone = outcome.found().next().is_none();
        outcome.all_held() || (is_gone && tried.load(Ordering::Relaxed))
    }))
}

/// The anchors of the sessions of a namespace that allow challenges, and the challenges that stand.
#[derive(Debug)]
pub struct Anchors {
    revision: i64,
    /// The create revisions of the anchors, by their keys.
    created: HashMap<Vec<u8>, i64>,
    /// The leases of the challengers, by the anchors' keys.
    challengers: HashMap<Vec<u8>, Vec<i64>>,
    prefix: Vec<u8>,
}

/// Reads all anchors and challenges of the session's namespace. An overview that is read later shows their sessions.
///
/// # Errors
///
/// As [`Session::overview`].
pub async fn anchors(session: &Session) -> Result<Anchors> {
    let shared = session.shared();
    let prefix = shared.settings.anchors();
    let read = shared.roster(&prefix, Reach::Everything).await?;
    let mut anchors = Anchors {
        revision: read.revision(),
        created: HashMap::new(),
        challengers: HashMap::new(),
        prefix,
    };
    for member in read.members() {
        let text = std::str::from_utf8(member.key()).unwrap_or_default();
        if let Some((anchor, _)) = text.rsplit_once("/challenges/") {
            let all = anchors.challengers.entry(anchor.into()).or_default();
            all.push(member.lease_id());
        } else {
            let created = member.create_revision();
            anchors.created.insert(member.key().to_vec(), created);
        }
    }
    Ok(anchors)
}

impl Anchors {
    /// Returns the leases of the sessions that challenge the member's session, and `true` if that session was condemned.
    /// `None`: the member announces no anchor of this namespace, or a newer one than was read.
    pub fn of(&self, member: &Member) -> Option<(&[i64], bool)> {
        let announced = announced(member.value())?;
        let (key, created) = (&*announced.anchor, announced.create_revision);
        if !key.starts_with(&self.prefix) || created > self.revision {
            return None;
        }
        let challengers = self.challengers.get(key).map_or(&[][..], Vec::as_slice);
        Some((challengers, self.created.get(key) != Some(&created)))
    }
}

/// Returns `true` if both announce the same. The beginning of a term does not count, nor the term in which the leader
/// serves: a leader announces them once in each term.
pub fn announce_the_same(one: &Member, other: &Member) -> bool {
    say_the_same(one.value(), other.value())
}

/// Returns the shortest TTL with which a session of these options works; its other times are set or follow from the
/// TTL. Answers that take as long as `answer` come in time. Neither a lost renewal nor a change of etcd's own leader,
/// which etcd notices after `election_timeout`, costs the leadership. `None`: no TTL up to 300 s works.
pub fn ttl_floor(
    options: &SessionOptions,
    answer: Duration,
    election_timeout: Duration,
) -> Option<Duration> {
    let good = |ttl: &Duration| {
        let settings = options.clone().ttl(*ttl).settle();
        settings.is_ok_and(|settings| {
            settings.request_timeout >= answer && settings.survives(election_timeout)
        })
    };
    (2..=300).map(Duration::from_secs).find(good)
}

/// The times of a session, set by its options or derived from its TTL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// How long etcd keeps the lease of a node that has crashed.
    pub ttl: Duration,
    /// How long one answer may take.
    pub request_timeout: Duration,
    /// The time subtracted from the TTL on top of clock drift.
    pub margin: Duration,
    /// The time from the cancellation of a term's token to the end of its validity.
    pub grace: Duration,
    /// How late a renewal may be verified: `2/3 ttl - margin - grace`.
    pub spare: Duration,
    /// How long the session may answer no challenge, if it allows challenges.
    pub answer_within: Option<Duration>,
    /// How late the answer to a read may come that looks for challenges, if the session allows them.
    pub read_spare: Option<Duration>,
}

/// Returns the times of a session with these options.
///
/// # Errors
///
/// `InvalidInput`: an option breaks a rule.
pub fn times(options: &SessionOptions) -> Result<Times> {
    let settings = options.clone().settle()?;
    Ok(Times {
        ttl: settings.ttl,
        request_timeout: settings.request_timeout,
        margin: settings.trust.margin,
        grace: settings.grace,
        spare: settings.spare(),
        answer_within: settings.answer_within(),
        read_spare: settings.read_spare(),
    })
}

/// Returns the TTL that the options set, even if the options do not fit together.
pub fn ttl(options: &SessionOptions) -> Duration {
    options.chosen_ttl()
}

/// An endpoint, named or found by a lookup.
#[derive(Debug, Clone)]
pub struct Found {
    /// The endpoint's URL.
    pub url: String,
    /// The data centre named for the endpoint.
    pub data_center: Option<String>,
    /// The endpoint, for connecting to it.
    pub endpoint: crate::Endpoint,
}

/// Looks up the endpoints once, as a session with these options does.
///
/// # Errors
///
/// `InvalidInput`: an endpoint or an option breaks a rule, or there is no tokio runtime. `Unavailable`: a name was not
/// found.
pub async fn look_up(
    endpoints: Vec<crate::Endpoint>,
    options: SessionOptions,
) -> Result<Vec<Found>> {
    let invalid = |message: String| Error::new(ErrorKind::InvalidInput, message);
    let settings = options.settle()?;
    let env: SharedEnv = Arc::new(System::new().map_err(|error| invalid(error.to_string()))?);
    let pool = Pool::new(env, endpoints, settings.access(), settings.request_timeout);
    let found = pool.map_err(invalid)?.found_once().await;
    let found = found.map_err(|why| Error::new(ErrorKind::Unavailable, why))?;
    let found = found.into_iter().map(|(url, data_center, endpoint)| Found {
        url,
        data_center,
        endpoint,
    });
    Ok(found.collect())
}

/// One member of etcd, which the calls query directly. Every call ends within two request timeouts, one of them for
/// connecting, and no call is retried.
pub struct Endpoint {
    url: String,
    env: SharedEnv,
    pool: Arc<Pool>,
    settings: Settings,
}

impl Endpoint {
    /// Makes the endpoint without connecting to it.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: the endpoint or an option breaks a rule, or there is no tokio runtime.
    pub fn new(endpoint: impl Into<crate::Endpoint>, options: SessionOptions) -> Result<Self> {
        let invalid = |message: String| Error::new(ErrorKind::InvalidInput, message);
        let (endpoint, settings) = (endpoint.into(), options.settle()?);
        let url = endpoint.url().to_owned();
        let env: SharedEnv = Arc::new(System::new().map_err(|error| invalid(error.to_string()))?);
        let pool = Pool::new(
            Arc::clone(&env),
            [endpoint],
            settings.access(),
            settings.request_timeout,
        );
        Ok(Self {
            url,
            env,
            pool: Arc::new(pool.map_err(invalid)?.for_operators()),
            settings,
        })
    }

    /// Returns the URL as it was given.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns how long a call waits for an answer.
    pub fn request_timeout(&self) -> Duration {
        self.settings.request_timeout
    }

    /// Returns the status that the member reports of itself. Needs no permission.
    ///
    /// # Errors
    ///
    /// `Unavailable`: the member does not answer. `Unauthenticated`: the member refused the password.
    pub async fn status(&self) -> Result<EtcdMemberStatus> {
        convert_error(self.pool.status().await)
    }

    /// Returns the correct URL scheme or port to name, if the port speaks another protocol than the URL names. Call it
    /// when the member does not answer; it takes up to 3 s.
    pub async fn misnamed(&self) -> Option<&'static str> {
        self.pool.misnamed(&self.url).await
    }

    /// Returns the members of the cluster.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::status`], and `Unauthenticated`: with users enabled, only users may read the list.
    pub async fn members(&self) -> Result<Vec<EtcdMember>> {
        convert_error(self.pool.members().await)
    }

    /// Measures `count` round trips to the member, one after the other, after one that may connect. The member answers
    /// by itself, as it does to the probes of sessions.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::status`].
    pub async fn round_trips(&self, count: usize) -> Result<Vec<Duration>> {
        let mut all = Vec::with_capacity(count);
        for attempt in 0..=count {
            let before = self.env.now();
            match self.pool.status().await {
                // With users, etcd 3.4 shows its status to root alone.
                Err(failure) if failure.class == Class::Denied => {}
                answer => drop(convert_error(answer)?),
            }
            if attempt > 0 {
                all.push(self.env.now().since(before));
            }
        }
        Ok(all)
    }

    /// Measures a linearizable read below the namespace. The first call includes connecting.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::members`].
    pub async fn read_time(&self) -> Result<Duration> {
        let before = self.env.now();
        convert_error(self.pool.probe(self.settings.prefix("~").as_bytes()).await)?;
        Ok(self.env.now().since(before))
    }

    /// Returns the user's permissions for all keys of that name and below it; for the whole namespace if the name is
    /// empty. The check changes nothing in etcd.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::status`].
    pub async fn permissions(&self, below: &str) -> Result<Permissions> {
        let prefix = if below.is_empty() {
            self.settings.namespace_prefix()
        } else {
            self.settings.prefix(below)
        };
        convert_error(self.pool.permissions(prefix.as_bytes()).await)
    }

    /// Returns `true` if connections are made as the user. Returns `false` if no user is given, or while etcd has
    /// authentication disabled.
    pub fn is_as_user(&self) -> bool {
        self.pool.is_as_user()
    }

    /// Returns `true` if etcd accepts a transaction of `count` operations. The transaction reads one key that many
    /// times.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::members`], and `PermissionDenied`.
    pub async fn takes_operations(&self, count: usize) -> Result<bool> {
        let key = self.settings.probe_key();
        match self.pool.read_often(&key, count).await {
            Ok(()) => Ok(true),
            Err(failure) if failure.message.contains(TOO_MANY_OPERATIONS) => Ok(false),
            Err(failure) => Err(Error::from_request(&failure)),
        }
    }

    /// Returns `true` if a request is answered on a connection that carries a stream of renewals. The check grants a
    /// lease and revokes it.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::shortest_ttl`].
    pub async fn takes_requests_beside_a_stream(&self) -> Result<bool> {
        let granted = convert_error(self.pool.grant(10).await)?;
        let opened = self.pool.keepalive(granted.id).await.map(drop);
        let revoked = self.pool.revoke(granted.id).await;
        convert_error(revoked)?;
        match opened {
            // etcd answers other requests: it granted and revoked the lease.
            Err(failure) if failure.class == Class::Retry => Ok(false),
            opened => convert_error(opened).map(|()| true),
        }
    }

    /// Returns the shortest TTL that this etcd grants: its election timeout times 1.5, rounded up to whole seconds. The
    /// call grants a lease and revokes it.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::members`], and `Overloaded`: out of space.
    pub async fn shortest_ttl(&self) -> Result<Duration> {
        convert_error(self.pool.shortest_term().await)
    }

    /// Measures how fast the clock of etcd's leader, which lets leases expire, runs compared to this machine's clock.
    /// The call observes how a lease runs down, for `span`, and revokes it. `None`: etcd changed its leader meanwhile,
    /// or answered too slowly.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::shortest_ttl`].
    pub async fn clock_rate(&self, span: Duration) -> Result<Option<ClockRate>> {
        let term = span.as_secs().saturating_add(10);
        let granted = convert_error(
            self.pool
                .grant(i64::try_from(term).unwrap_or(i64::MAX))
                .await,
        )?;
        let rate = self.rate_of(granted.id, granted.ttl, span).await;
        let revoked = self.pool.revoke(granted.id).await;
        let rate = rate?;
        convert_error(revoked)?;
        Ok(rate)
    }

    /// Measures two ticks of the lease's countdown, some seconds apart, each between two moments of our clock.
    async fn rate_of(
        &self,
        lease: i64,
        granted: Duration,
        span: Duration,
    ) -> Result<Option<ClockRate>> {
        let Some(rough) = self.tick(lease, ROUGH).await? else {
            return Ok(None);
        };
        let unsure = rough.after.since(rough.before) + AHEAD;
        self.sleep_until(rough.after.after(SECOND), unsure).await;
        let Some(first) = self.tick(lease, Duration::ZERO).await? else {
            return Ok(None);
        };
        let seconds = span
            .as_secs()
            .clamp(1, granted.as_secs().saturating_sub(5).max(1));
        let last = first.before.after(Duration::from_secs(seconds));
        self.sleep_until(last, unsure).await;
        let Some(second) = self.tick(lease, Duration::ZERO).await? else {
            return Ok(None);
        };
        let ticks = first.left.saturating_sub(second.left);
        Ok(ClockRate::between(&first, &second, ticks))
    }

    /// Waits for the countdown's next second, with a request after each pause.
    async fn tick(&self, lease: i64, pause: Duration) -> Result<Option<Tick>> {
        let mut last = None;
        let end = self.env.now().after(SECOND * 2);
        loop {
            let asked = self.env.now();
            if asked > end {
                return Ok(None);
            }
            let term = convert_error(self.pool.lease_term(lease).await)?;
            let answered = self.env.now();
            let Some(left) = term.map(|term| term.left) else {
                return Ok(None);
            };
            match last {
                Some((before, more)) if left < more => {
                    return Ok(Some(Tick {
                        before,
                        after: answered,
                        left,
                    }));
                }
                // A new leader of etcd restarts every lease with its full TTL.
                Some((_, less)) if left > less => return Ok(None),
                _ => last = Some((asked, left)),
            }
            if !pause.is_zero() {
                self.env.sleep(pause).await;
            }
        }
    }

    /// Sleeps until `ahead` before the moment.
    async fn sleep_until(&self, moment: Time, ahead: Duration) {
        let left = moment.since(self.env.now());
        self.env.sleep(left.saturating_sub(ahead)).await;
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Endpoint").field(&self.url).finish()
    }
}

const SECOND: Duration = Duration::from_secs(1);
/// etcd's message about a transaction beyond --max-txn-ops.
const TOO_MANY_OPERATIONS: &str = "too many operations";
/// How often the first tick is polled.
const ROUGH: Duration = Duration::from_millis(5);
/// How long before its expected time a tick is polled without a pause.
const AHEAD: Duration = Duration::from_millis(10);

/// A second of a lease's countdown: when it began, by our clock.
#[derive(Debug, Clone, Copy)]
struct Tick {
    /// The sending time of a request whose answer still had the second before.
    before: Time,
    /// The arrival time of an answer that had the new second.
    after: Time,
    left: Duration,
}

/// How much faster (or slower, if negative) the clock of etcd's leader runs than this machine's, in millionths. The
/// rate is between the two bounds, because requests cannot measure it more exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockRate {
    /// The lower bound of the rate.
    pub low_ppm: i64,
    /// The upper bound of the rate.
    pub high_ppm: i64,
}

impl ClockRate {
    fn between(first: &Tick, second: &Tick, ticks: Duration) -> Option<Self> {
        let longest = second.after.since(first.before);
        let shortest = second.before.since(first.after);
        if ticks.is_zero() || shortest.is_zero() {
            return None;
        }
        let ppm = |ours: Duration| ((ticks.as_secs_f64() / ours.as_secs_f64() - 1.0) * 1e6) as i64;
        Some(Self {
            low_ppm: ppm(longest),
            high_ppm: ppm(shortest),
        })
    }
}

fn convert_error<T>(asked: Result<T, RequestError>) -> Result<T> {
    asked.map_err(|failure| Error::from_request(&failure))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::ZERO.after(Duration::from_millis(ms))
    }

    #[test]
    fn the_rate_is_reported_with_its_uncertainty() {
        let tick = |before, after| Tick {
            before: at(before),
            after: at(after),
            left: Duration::ZERO,
        };
        let rate = |first, second| ClockRate::between(&first, &second, Duration::from_secs(10));
        let exact = rate(tick(100, 100), tick(10_100, 10_100)).unwrap();
        assert_eq!((exact.low_ppm, exact.high_ppm), (0, 0));
        let vague = rate(tick(100, 101), tick(10_100, 10_101)).unwrap();
        assert_eq!((vague.low_ppm, vague.high_ppm), (-99, 100));
        let slow = rate(tick(100, 101), tick(10_200, 10_201)).unwrap();
        assert!(slow.high_ppm < -9_000 && slow.low_ppm > -11_000, "{slow:?}");
        assert_eq!(
            rate(tick(100, 200), tick(150, 250)),
            None,
            "no time between"
        );
    }

    #[test]
    fn the_floor_grows_with_the_latency_and_with_etcds_election_timeout() {
        let options = SessionOptions::new("n");
        let floor = |answer: u64, election: u64| {
            let ms = Duration::from_millis;
            ttl_floor(&options, ms(answer), ms(election)).map(|ttl| ttl.as_secs())
        };
        assert_eq!(floor(1, 1_000), Some(4), "as SessionOptions says");
        assert!(floor(1, 5_000) > floor(1, 1_000));
        assert_eq!(
            floor(1_000, 1_000),
            Some(20),
            "a request timeout of a second is a twentieth"
        );
        assert_eq!(floor(60_000, 1_000), None);
    }
}

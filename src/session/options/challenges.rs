//! Defines how long a session may answer nothing before others take over, the times that follow from it, and the address
//! at which the session gives signs of life.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use super::invalid;
use crate::error::Result;
use eldest_core::lease::Trust;

/// The shortest time to answer: below it, ordinary delays of a busy machine end terms.
const SHORTEST: Duration = Duration::from_millis(200);
/// The longest time from one clean read to the next.
const INTERVAL: Duration = Duration::from_millis(300);
/// The number of round trips that a linearizable read may take: from the session to its member, from there to etcd's
/// leader, and from the leader to a majority.
const READ: u32 = 3;
/// The longest host of an address, in bytes: the longest name in DNS.
const MAX_HOST: usize = 253;

/// How long a session may answer nothing before the sessions that wait behind it take over, and the port at which it
/// gives signs of life.
///
/// The time D runs from the last read by which the session has seen that no other session challenges it. The session
/// leads for D less clock drift and D / 20 after it sent that read. It sends one at least every D / 3, and at least
/// every 0.3 s. A session that challenges it waits for D with clock drift and D / 20 more.
///
/// | preset | D | a silent leader is succeeded, counted from the suspicion | ends terms when etcd's own leader changes |
/// |---|---|---|---|
/// | [`Challenges::steady`] | 4 s | after 4.2 s | no, if etcd elects another one within 2 s |
/// | [`Challenges::fast`] | 0.4 s | after 0.42 s | yes |
///
/// # Who suspects
///
/// The next candidate and the one behind it suspect the sessions ahead of them. A suspicion may be wrong: it costs two
/// small writes, and ends no term of a session that answers in etcd. The pauses between wrong ones double, up to a minute.
///
/// | the session ahead | is suspected |
/// |---|---|
/// | [listens](Challenges::listen), and its process has ended | at once |
/// | listens, and its process hangs, or its machine or network is down | after D / 3, at most 0.5 s |
/// | listens, and can no longer read from etcd | after D and then D / 3, at most 0.5 s |
/// | has no port, and does not renew its lease | when its renewal is a second and at most D / 2 late: up to a third of the TTL and some 2 s |
/// | has no port, and is first in a queue, perhaps without leading | once, after 2 D |
///
/// # Limits
///
/// * At most one session leads as long as the clocks of *all* sessions keep the bound on
///   [drift](crate::SessionOptions::clock_drift_ppm). Without challenges, only the leader's own clock counts.
/// * A virtual machine whose clocks stand still while it is frozen is covered up to D, no longer up to a TTL.
///   Fencing covers it ([`Term::txn`](crate::Term::txn)).
/// * A user who may write below `~session/` can end the terms of these sessions. If such a user deletes an anchor there by
///   hand, the successor may lead for up to D before the predecessor notices, as after the deletion of a key by hand.
#[must_use = "challenges are allowed by `SessionOptions::challenges`"]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Challenges {
    answer_within: Duration,
    listen: Option<SocketAddr>,
    advertise: Option<String>,
}

impl Challenges {
    /// Allows 4 s, which suits most clusters: a change of etcd's own leader costs no leadership.
    pub fn steady() -> Self {
        Self::answer_within(Duration::from_secs(4))
    }

    /// Allows 0.4 s, for etcd within a few milliseconds. Each change of etcd's own leader ends terms.
    pub fn fast() -> Self {
        Self::answer_within(Duration::from_millis(400))
    }

    /// Allows that time: at least 0.2 s, and less than the TTL.
    pub fn answer_within(time: Duration) -> Self {
        Self {
            answer_within: time,
            listen: None,
            advertise: None,
        }
    }

    /// Gives signs of life at that address of this machine, so that a silent leader is suspected at once or after D / 3,
    /// and at most 0.5 s. By default, the session opens no port.
    ///
    /// The port 0 lets the system choose one. Sessions connect directly to each other, without encryption; the messages
    /// carry no secret and no authority. Let every node of the namespace reach the port, and no one else.
    pub fn listen(mut self, address: impl Into<SocketAddr>) -> Self {
        self.listen = Some(address.into());
        self
    }

    /// Sets the address at which other sessions reach the port of [`Challenges::listen`], as `host:port`, such as
    /// `10.0.0.1:7400`, `[fd00::1]:7400` or `node-a:7400`. By default, the address at which the session listens.
    ///
    /// An address that leads nowhere, or to another session, is no danger: the session answers the challenges that
    /// follow, and goes on leading.
    pub fn advertise(mut self, address: impl Into<String>) -> Self {
        self.advertise = Some(address.into());
        self
    }

    /// Returns the address at which the session listens.
    pub(super) fn listens(&self) -> Option<SocketAddr> {
        self.listen
    }

    /// Returns the address that the session announces, if it listens at `bound`.
    pub(super) fn advertised(&self, bound: SocketAddr) -> String {
        let advertised = self.advertise.clone();
        advertised.unwrap_or_else(|| bound.to_string())
    }

    pub(super) fn time(&self) -> Duration {
        self.answer_within
    }

    /// Returns the default of the grace period.
    pub(super) fn grace(&self) -> Duration {
        self.answer_within / 10
    }

    /// Returns the timeout of a read, so short that one may be lost.
    pub(super) fn read_timeout(&self, request_timeout: Duration) -> Duration {
        eldest_core::challenge::read_timeout(self.answer_within, request_timeout)
    }

    pub(super) fn interval(&self) -> Duration {
        (self.answer_within / 3).min(INTERVAL)
    }

    pub(super) fn trust(&self, drift_ppm: u32) -> Trust {
        Trust {
            margin: self.answer_within / 20,
            drift_ppm,
        }
    }

    /// Checks that the time fits the session's other times, and that one read may be lost without losing the
    /// leadership.
    pub(super) fn check(
        &self,
        ttl: Duration,
        (read_timeout, grace, drift_ppm): (Duration, Duration, u32),
        round_trip: Option<Duration>,
    ) -> Result<()> {
        let time = self.answer_within;
        if time < SHORTEST || time >= ttl {
            return Err(invalid(format!(
                "challenges must be answered within {time:?}; that time must be at least {SHORTEST:?}, and less than the \
                 ttl = {ttl:?}, after which a silent leader is succeeded anyway"
            )));
        }
        let (interval, margin) = (self.interval(), time / 20);
        let trusted = time.saturating_sub(time.mul_f64(f64::from(drift_ppm) / 1e6));
        let needed = interval + read_timeout * 2 + grace + margin;
        if needed > trusted {
            return Err(invalid(format!(
                "one lost read would cost the leadership: with challenges that must be answered within {time:?}, the \
                 interval of reads + 2 * the timeout of a read + grace + a twentieth of that time = {interval:?} + 2 * \
                 {read_timeout:?} + {grace:?} + {margin:?} = {needed:?} must be at most that time less clock drift = \
                 {trusted:?}"
            )));
        }
        let slowest = round_trip.unwrap_or_default() * READ;
        if slowest > read_timeout {
            return Err(invalid(format!(
                "round_trip is {round_trip:?}; a read may take {READ} round trips = {slowest:?}, and with challenges that \
                 must be answered within {time:?}, it must be answered within {read_timeout:?}, a quarter of that time"
            )));
        }
        self.check_addresses()
    }

    /// Checks that other sessions can reach the port, as far as the addresses show.
    fn check_addresses(&self) -> Result<()> {
        let message = match (self.listen, &self.advertise) {
            (None, Some(advertised)) => format!(
                "challenges advertise {advertised:?}, but the session listens nowhere; set the address to listen at too"
            ),
            (Some(listen), None) if listen.ip().is_unspecified() => format!(
                "challenges listen at {listen}, to which no other session can connect; set the address to advertise, as \
                 host:port"
            ),
            (_, Some(advertised)) if !is_place(advertised) => format!(
                "challenges advertise {advertised:?}; it must be host:port, such as 10.0.0.1:7400, [fd00::1]:7400 or \
                 node-a:7400, with a port from 1 to 65535 and an address to which others can connect"
            ),
            _ => return Ok(()),
        };
        Err(invalid(message))
    }
}

/// Returns true for `host:port`, with a name, an IPv4 address or an IPv6 address in brackets.
fn is_place(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let is_port = port.bytes().all(|byte| byte.is_ascii_digit())
        && port.parse::<u16>().is_ok_and(|port| port != 0);
    let bracketed = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let is_host = match (bracketed, host.parse::<Ipv4Addr>()) {
        (Some(ip), _) => ip.parse::<Ipv6Addr>().is_ok_and(|ip| !ip.is_unspecified()),
        (None, Ok(ip)) => !ip.is_unspecified(),
        (None, Err(_)) => {
            let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            (1..=MAX_HOST).contains(&host.len()) && host.bytes().all(is_allowed)
        }
    };
    is_port && is_host
}

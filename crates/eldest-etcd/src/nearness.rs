//! Decides which endpoint a lane uses, and when each endpoint is measured. Does no I/O: time, chance and measurements
//! are arguments.
//!
//! Endpoints of the session's own data centre come first, then those with the shorter round trip. An endpoint that
//! fails is left at once. It is used again when it is preferred by a clear margin, has answered two probes in a row,
//! and was away for a while. So a lane does not oscillate because of noise or of two endpoints that are equally near.

use std::time::Duration;

use super::lane::Lane;
use eldest_core::time::Time;

/// How many probes in a row an endpoint must answer before a lane moves to it.
const PROBES: u32 = 2;
/// The time from the start of a session to its first probes.
const SETTLE: Duration = Duration::from_secs(1);
/// The time between probes of an endpoint that would be preferred if it answered; it doubles with each unanswered
/// probe.
const SOON: Duration = Duration::from_secs(2);
/// The longest time between probes of such an endpoint.
const LATER: Duration = Duration::from_secs(60);
/// The time between probes of every other endpoint, in case the network's paths have changed, or a busy machine has
/// distorted the first measurements.
const RARELY: Duration = Duration::from_secs(120);
/// The shortest time for which no lane moves to an endpoint that failed.
const AWAY: Duration = Duration::from_secs(5);
/// The longest such time, for an endpoint that repeatedly fails soon after lanes moved to it.
const LONG_AWAY: Duration = Duration::from_secs(600);
/// A difference between two round trips that is too small to matter.
const NOISE: Duration = Duration::from_millis(5);

/// One endpoint, with everything that the decision depends on.
#[derive(Debug, Clone)]
struct Known {
    /// The endpoint's number, which no other endpoint ever has.
    number: usize,
    /// True if the endpoint is in the session's data centre.
    own: bool,
    /// The latest two measurements, the newest first.
    round_trips: [Option<Duration>; 2],
    /// How many probes it has answered in a row since it last failed.
    answered: u32,
    /// How many probes in a row it has not answered.
    unanswered: u32,
    /// True if the endpoint failed and has not answered a probe since.
    failing: bool,
    /// The time before which no lane moves to the endpoint.
    away_until: Time,
    /// How many times in a row the endpoint failed again soon, although it had answered probes in between.
    relapses: u32,
    /// The number of each lane's last failure at the endpoint; zero for none.
    failures: [u64; Lane::ALL.len()],
    /// The time of the last probe or failure.
    since: Time,
    /// Stretches the time until the next probe, so that many sessions do not probe at the same time.
    jitter: f64,
}

impl Known {
    fn new(number: usize, own: bool, now: Time, jitter: f64) -> Self {
        Self {
            number,
            own,
            round_trips: [None; 2],
            answered: 0,
            unanswered: 0,
            failing: false,
            away_until: Time::ZERO,
            relapses: 0,
            failures: [0; Lane::ALL.len()],
            since: now,
            jitter,
        }
    }

    fn best(&self) -> Option<Duration> {
        self.round_trips.into_iter().flatten().min()
    }

    fn worst(&self) -> Option<Duration> {
        self.round_trips.into_iter().flatten().max()
    }

    fn is_measured(&self) -> bool {
        self.round_trips[0].is_some()
    }

    /// Returns `true` if the endpoint is preferred to `other` by a clear margin, provided that both answer.
    fn beats(&self, other: &Known) -> bool {
        if self.own != other.own {
            return self.own;
        }
        let (Some(worst), Some(best)) = (self.worst(), other.best()) else {
            return false;
        };
        worst.saturating_add(NOISE.max(best / 4)) <= best
    }

    /// Returns `true` if the endpoint may turn out to be preferred to `other` once it answers.
    fn may_beat(&self, other: &Known) -> bool {
        self.beats(other) || (self.own == other.own && !self.is_known())
    }

    /// Returns `true` if enough was measured to know how near the endpoint is.
    fn is_known(&self) -> bool {
        self.round_trips[1].is_some()
    }

    /// Returns `true` if the endpoint failed and has not recovered since: lanes try every other endpoint first.
    fn is_doubtful(&self, now: Time) -> bool {
        self.failing || now < self.away_until
    }

    fn fail(&mut self, now: Time, chance: u64) {
        if now >= self.away_until.after(LONG_AWAY) {
            self.relapses = 0;
        } else if self.answered > 0 && self.away_until > Time::ZERO {
            self.relapses += 1;
        }
        let away = AWAY.saturating_mul(1 << self.relapses.min(10));
        let away_until = now.after(away.min(LONG_AWAY));
        self.away_until = self.away_until.max(away_until);
        self.failing = true;
        self.answered = 0;
        self.unanswered = 0;
        self.since = now;
        self.jitter = jitter(chance);
    }
}

/// Why a lane uses its endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndpointReason {
    /// The session has only this endpoint.
    Only,
    /// The endpoint is in the session's data centre.
    OwnDataCenter,
    /// No other endpoint that answers is clearly nearer, by measured round trip.
    Nearest,
    /// A preferred endpoint failed, and is used again once it answers.
    PreferredFailed,
    /// A preferred endpoint answers, and requests are about to move to it.
    Moving,
    /// Too little is measured yet. The first endpoint of the list that answers is used.
    Unmeasured,
}

impl EndpointReason {
    /// Returns the reason's name: `only`, `own_data_center`, `nearest`, `preferred_failed`, `moving` or `unmeasured`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Only => "only",
            Self::OwnDataCenter => "own_data_center",
            Self::Nearest => "nearest",
            Self::PreferredFailed => "preferred_failed",
            Self::Moving => "moving",
            Self::Unmeasured => "unmeasured",
        }
    }
}

/// The measurements of all endpoints, in the order of the list. A number that was removed from the list has none.
#[derive(Debug, Clone)]
pub(super) struct Nearness {
    known: Vec<Known>,
    failures: u64,
}

impl Nearness {
    /// Makes the measurements of endpoints numbered from zero. `own`: whether each endpoint is in the session's data
    /// centre. `chance` draws a random number.
    pub(super) fn new(
        own: impl IntoIterator<Item = bool>,
        now: Time,
        chance: impl FnMut() -> u64,
    ) -> Self {
        let mut nearness = Self {
            known: Vec::new(),
            failures: 0,
        };
        nearness.replace(own.into_iter().enumerate(), now, chance);
        nearness
    }

    /// Takes another list: the number of each endpoint, and whether it is in the session's data centre. Keeps the
    /// measurements of endpoints that stay.
    pub(super) fn replace(
        &mut self,
        list: impl IntoIterator<Item = (usize, bool)>,
        now: Time,
        mut chance: impl FnMut() -> u64,
    ) {
        let mut before = std::mem::take(&mut self.known);
        let known = |(number, own)| match before.iter().position(|it| it.number == number) {
            Some(at) => Known {
                own,
                ..before.swap_remove(at)
            },
            None => Known::new(number, own, now, jitter(chance())),
        };
        self.known = list.into_iter().map(known).collect();
    }

    fn get(&self, number: usize) -> Option<&Known> {
        self.known.iter().find(|known| known.number == number)
    }

    fn get_mut(&mut self, number: usize) -> Option<&mut Known> {
        self.known.iter_mut().find(|known| known.number == number)
    }

    /// Returns the endpoint at which lanes begin: the first in the session's data centre, or else the first of the
    /// list.
    pub(super) fn first(&self) -> usize {
        let own = self.known.iter().find(|known| known.own);
        own.or(self.known.first()).map_or(0, |known| known.number)
    }

    /// Returns the latest round trip to the endpoint.
    pub(super) fn round_trip(&self, at: usize) -> Option<Duration> {
        self.get(at)?.round_trips[0]
    }

    /// Returns `true` if the endpoint failed, or left a probe without an answer, and has not answered a probe since.
    pub(super) fn is_failing(&self, at: usize) -> bool {
        self.get(at).is_some_and(|known| known.failing)
    }

    /// Records that a lane's request failed at the endpoint in a way that another endpoint may not. Returns the lane's
    /// next endpoint: the preferred one of those that answer, or else the one at which this lane's last failure is
    /// oldest. So in an outage of all endpoints, each lane tries each endpoint in turn, however near it is and however
    /// often others fail there.
    pub(super) fn failed(&mut self, lane: Lane, at: usize, now: Time, chance: u64) -> usize {
        self.failures += 1;
        let failures = self.failures;
        if let Some(known) = self.get_mut(at) {
            known.failures[lane as usize] = failures;
            known.fail(now, chance);
        }
        self.instead_of(lane, at, now).unwrap_or(at)
    }

    /// Returns the next endpoint of a lane that may not stay at this one; `None` if there is no other.
    pub(super) fn instead_of(&self, lane: Lane, at: usize, now: Time) -> Option<usize> {
        let here = self.known.iter().position(|known| known.number == at);
        let (before, after) = self.known.split_at(here.unwrap_or(0));
        let others = after.iter().chain(before);
        let others = others.filter(|known| known.number != at);
        let rank = |known: &&Known| {
            if known.is_doubtful(now) {
                return (true, false, Duration::ZERO, known.failures[lane as usize]);
            }
            let round_trip = known.worst().unwrap_or(Duration::MAX);
            (false, !known.own, round_trip, 0)
        };
        // If several are equal, the next one in the list.
        others.min_by_key(rank).map(|known| known.number)
    }

    /// Records that a lane could not be moved to the endpoint although it answers probes.
    pub(super) fn refused(&mut self, at: usize, now: Time, chance: u64) {
        if let Some(known) = self.get_mut(at) {
            known.fail(now, chance);
        }
    }

    /// Records a probe; `round_trip` is `None` if it was not answered.
    pub(super) fn probed(
        &mut self,
        at: usize,
        now: Time,
        round_trip: Option<Duration>,
        chance: u64,
    ) {
        let Some(known) = self.get_mut(at) else {
            return;
        };
        known.since = now;
        known.jitter = jitter(chance);
        known.failing = round_trip.is_none();
        if round_trip.is_some() {
            known.round_trips = [round_trip, known.round_trips[0]];
            known.answered = known.answered.saturating_add(1);
            known.unanswered = 0;
        } else {
            known.answered = 0;
            known.unanswered = known.unanswered.saturating_add(1);
        }
    }

    /// Returns the endpoint to which a lane at `from` should move, if any.
    pub(super) fn better_than(&self, from: usize, now: Time) -> Option<usize> {
        let current = self.get(from)?;
        let ready = |known: &Known| known.answered >= PROBES && now >= known.away_until;
        let better = self
            .known
            .iter()
            .filter(|known| known.number != from && ready(known) && known.beats(current));
        better
            .min_by_key(|known| known.worst().unwrap_or(Duration::MAX))
            .map(|known| known.number)
    }

    /// Returns why a lane is at the endpoint.
    pub(super) fn why(&self, at: usize, now: Time) -> EndpointReason {
        let Some(current) = self.get(at) else {
            return EndpointReason::Unmeasured;
        };
        let others = || self.known.iter().filter(|known| known.number != at);
        if self.known.len() == 1 {
            EndpointReason::Only
        } else if let Some(better) = others().find(|other| other.beats(current)) {
            if better.is_doubtful(now) {
                EndpointReason::PreferredFailed
            } else {
                EndpointReason::Moving
            }
        } else if current.own {
            EndpointReason::OwnDataCenter
        } else if current.is_measured()
            && others().all(|other| !other.may_beat(current) || other.is_doubtful(now))
        {
            EndpointReason::Nearest
        } else {
            EndpointReason::Unmeasured
        }
    }

    /// Returns when an endpoint should be probed again while lanes are at `used`; `None` if a probe would decide
    /// nothing.
    fn probe_at(&self, known: &Known, used: &[usize]) -> Option<Time> {
        if self.known.len() == 1 {
            return None;
        }
        let others = || {
            let lanes = used.iter().filter(|lane| **lane != known.number);
            lanes.filter_map(|lane| self.get(*lane))
        };
        // An endpoint that works again after an outage of all must not count as failing.
        let recovers = known.failing && used.contains(&known.number);
        let pause = if recovers || others().any(|lane| known.may_beat(lane)) {
            if !known.is_measured() && !known.failing {
                SETTLE
            } else {
                SOON.saturating_mul(1 << known.unanswered.min(10))
                    .min(LATER)
            }
        } else if others().any(|lane| known.own == lane.own) {
            RARELY
        } else {
            return None;
        };
        let due = known.since.after(pause.mul_f64(known.jitter));
        // An endpoint that answers and may not be used yet is probed again when it may.
        let waits = known.answered >= PROBES;
        Some(if waits {
            due.max(known.away_until)
        } else {
            due
        })
    }

    /// Returns when the next probe is due while lanes are at `used`; `None` if there is nothing to decide.
    pub(super) fn next(&self, used: &[usize]) -> Option<Time> {
        let all = self.known.iter();
        all.filter_map(|known| self.probe_at(known, used)).min()
    }

    /// Returns the endpoints to probe now: those that are due, those in use for comparison, and those without enough
    /// measurements, so that a lane moves to the best one at once.
    pub(super) fn due(&self, used: &[usize], now: Time) -> Vec<usize> {
        let is_due = |known: &&Known| self.probe_at(known, used).is_some_and(|due| now >= due);
        let numbers = |which: &dyn Fn(&&Known) -> bool| -> Vec<usize> {
            let which = self.known.iter().filter(which);
            which.map(|known| known.number).collect()
        };
        let mut due = numbers(&is_due);
        if !due.is_empty() {
            let is_used = |known: &&Known| used.contains(&known.number);
            let is_new = |known: &&Known| {
                let decides = self.probe_at(known, used).is_some();
                decides && !known.is_known() && !known.failing
            };
            due = numbers(&|known| is_due(known) || is_used(known) || is_new(known));
        }
        due
    }
}

/// Returns a factor from a half to one and a half.
pub(super) fn jitter(chance: u64) -> f64 {
    0.5 + (chance >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests;

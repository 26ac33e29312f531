//! Decides which endpoint a lane uses, and which endpoints are to be measured when. Pure: time, chance and measurements
//! are arguments.
//!
//! Endpoints of the session's own data centre come first, then those with the shorter round trip. An endpoint that fails
//! is left at once. It is used again when it is preferred by a clear margin, has answered two probes in a row, and was
//! away for a while. So neither noise nor two endpoints that are equally near make a lane go to and fro.

use std::time::Duration;

use eldest_core::time::Time;

/// How many probes in a row an endpoint answers before a lane moves to it.
const PROBES: u32 = 2;
/// From the start of a session to its first probes.
const SETTLE: Duration = Duration::from_secs(1);
/// Between the probes of an endpoint that would be preferred if it answered; doubled for each one that is not answered.
const SOON: Duration = Duration::from_secs(2);
/// The longest time between those.
const LATER: Duration = Duration::from_secs(60);
/// Between the probes of every other endpoint, in case that the network's paths have changed.
const RARELY: Duration = Duration::from_secs(600);
/// The shortest time for which an endpoint that failed is not moved to.
const AWAY: Duration = Duration::from_secs(5);
/// The longest one, for an endpoint that fails again and again soon after lanes moved to it.
const LONG_AWAY: Duration = Duration::from_secs(600);
/// A difference between two round trips that is too small to matter.
const NOISE: Duration = Duration::from_millis(5);

/// One endpoint, as far as the decision depends on it.
#[derive(Debug, Clone)]
struct Known {
    /// Whether it is in the session's data centre.
    own: bool,
    /// The latest two measurements, the newest first.
    round_trips: [Option<Duration>; 2],
    /// How many probes it has answered in a row since it last failed.
    answered: u32,
    /// How many probes in a row it has not answered.
    unanswered: u32,
    /// Whether it failed, and has not answered a probe since: the number of the failure.
    failure: Option<u64>,
    /// No lane moves to it before.
    away_until: Time,
    /// When a lane moved to it, if it has not failed since.
    moved_at: Option<Time>,
    /// How many times in a row it failed soon after a lane had moved to it.
    relapses: u32,
    /// When it was probed last, or failed.
    since: Time,
    /// Stretches the time until the next probe, so that many sessions do not probe at the same time.
    jitter: f64,
}

impl Known {
    fn new(own: bool, now: Time, jitter: f64) -> Self {
        Self {
            own,
            round_trips: [None; 2],
            answered: 0,
            unanswered: 0,
            failure: None,
            away_until: Time::ZERO,
            moved_at: None,
            relapses: 0,
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

    /// Whether it is preferred to `other` by a clear margin, provided that both answer.
    fn beats(&self, other: &Known) -> bool {
        if self.own != other.own {
            return self.own;
        }
        let (Some(worst), Some(best)) = (self.worst(), other.best()) else {
            return false;
        };
        worst.saturating_add(NOISE.max(best / 4)) <= best
    }

    /// Whether it may turn out to be preferred to `other` once it answers.
    fn may_beat(&self, other: &Known) -> bool {
        self.beats(other) || (self.own == other.own && !self.is_known())
    }

    /// Whether enough was measured to tell how near it is.
    fn is_known(&self) -> bool {
        self.round_trips[1].is_some()
    }

    fn is_doubtful(&self, now: Time) -> bool {
        now < self.away_until || self.unanswered > 0
    }
}

/// Why a lane uses its endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndpointReason {
    /// The session has only this endpoint.
    Only,
    /// It is in the session's data centre.
    OwnDataCenter,
    /// No other endpoint that answers is clearly nearer, by measured round trip.
    Nearest,
    /// A preferred endpoint failed, and is used again when it is well.
    PreferredFailed,
    /// A preferred endpoint answers, and requests are about to move to it.
    Moving,
    /// Too little is measured yet. The first endpoint of the list that answers is used.
    Unmeasured,
}

impl EndpointReason {
    /// Returns its name: `only`, `own_data_center`, `nearest`, `preferred_failed`, `moving` or `unmeasured`.
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

/// What is known of all endpoints. An endpoint's number is its place in the list.
#[derive(Debug, Clone)]
pub(super) struct Nearness {
    known: Vec<Known>,
    failures: u64,
}

impl Nearness {
    /// `own`: whether each endpoint is in the session's data centre. `chance` draws a random number.
    pub(super) fn new(
        own: impl IntoIterator<Item = bool>,
        now: Time,
        mut chance: impl FnMut() -> u64,
    ) -> Self {
        let known = own.into_iter();
        Self {
            known: known
                .map(|own| Known::new(own, now, jitter(chance())))
                .collect(),
            failures: 0,
        }
    }

    /// Where lanes begin: at the first endpoint of the session's data centre, or else at the first of the list.
    pub(super) fn first(&self) -> usize {
        self.known.iter().position(|known| known.own).unwrap_or(0)
    }

    /// The latest round trip to it.
    pub(super) fn round_trip(&self, at: usize) -> Option<Duration> {
        self.known[at].round_trips[0]
    }

    /// Whether it failed, or left a probe without an answer, and has not answered one since.
    pub(super) fn is_failing(&self, at: usize) -> bool {
        let known = &self.known[at];
        known.failure.is_some() || known.unanswered > 0
    }

    /// A request to it failed in a way that another endpoint may not.
    pub(super) fn failed(&mut self, at: usize, now: Time, chance: u64) {
        self.failures += 1;
        let number = self.failures;
        let known = &mut self.known[at];
        let soon = |moved: Time| now.since(moved) < LONG_AWAY;
        match known.moved_at.take() {
            Some(moved) if soon(moved) => known.relapses += 1,
            Some(_) => known.relapses = 0,
            None => {}
        }
        let away = AWAY
            .saturating_mul(1 << known.relapses.min(10))
            .min(LONG_AWAY);
        known.away_until = known.away_until.max(now.after(away));
        known.failure = Some(number);
        known.answered = 0;
        known.unanswered = 0;
        known.since = now;
        known.jitter = jitter(chance);
    }

    /// A lane could not be moved to it although it answers probes.
    pub(super) fn refused(&mut self, at: usize, now: Time, chance: u64) {
        self.known[at].moved_at = Some(now);
        self.failed(at, now, chance);
    }

    /// A lane was moved to it.
    pub(super) fn moved(&mut self, at: usize, now: Time) {
        self.known[at].moved_at = Some(now);
    }

    /// It was probed; `round_trip`: if it answered.
    pub(super) fn probed(
        &mut self,
        at: usize,
        now: Time,
        round_trip: Option<Duration>,
        chance: u64,
    ) {
        let known = &mut self.known[at];
        known.since = now;
        known.jitter = jitter(chance);
        if round_trip.is_some() {
            known.round_trips = [round_trip, known.round_trips[0]];
            known.answered = known.answered.saturating_add(1);
            known.unanswered = 0;
            known.failure = None;
            return;
        }
        known.answered = 0;
        known.unanswered = known.unanswered.saturating_add(1);
        self.failures += 1;
        known.failure = Some(self.failures);
    }

    /// Where a lane goes after a failure at `from`: to the preferred one of those that are not known to fail, otherwise to
    /// the one whose failure is the longest ago, so that all of them have their turn.
    pub(super) fn after_failure(&self, from: usize, now: Time) -> usize {
        let count = self.known.len();
        let others = (1..count).map(|step| (from + step) % count);
        let rank = |at: &usize| {
            let known = &self.known[*at];
            if known.is_doubtful(now) {
                let failure = known.failure.unwrap_or_default();
                return (true, failure, false, Duration::ZERO);
            }
            let round_trip = known.worst().unwrap_or(Duration::MAX);
            (false, 0, !known.own, round_trip)
        };
        // The first of several that are equal: the next one in the list.
        others.min_by_key(rank).unwrap_or(from)
    }

    /// The endpoint that a lane at `from` is to move to, if any.
    pub(super) fn better_than(&self, from: usize, now: Time) -> Option<usize> {
        let current = &self.known[from];
        let ready = |known: &Known| known.answered >= PROBES && now >= known.away_until;
        let better = self
            .known
            .iter()
            .enumerate()
            .filter(|(at, known)| *at != from && ready(known) && known.beats(current));
        better
            .min_by_key(|(_, known)| known.worst().unwrap_or(Duration::MAX))
            .map(|(at, _)| at)
    }

    /// Why a lane is at that endpoint.
    pub(super) fn why(&self, at: usize, now: Time) -> EndpointReason {
        let current = &self.known[at];
        let others = || {
            let all = self.known.iter().enumerate();
            all.filter(|(other, _)| *other != at)
                .map(|(_, known)| known)
        };
        let away = |other: &Known| other.failure.is_some() || now < other.away_until;
        if self.known.len() == 1 {
            EndpointReason::Only
        } else if let Some(better) = others().find(|other| other.beats(current)) {
            if away(better) {
                EndpointReason::PreferredFailed
            } else {
                EndpointReason::Moving
            }
        } else if current.own {
            EndpointReason::OwnDataCenter
        } else if current.is_measured()
            && others().all(|other| !other.may_beat(current) || away(other))
        {
            EndpointReason::Nearest
        } else {
            EndpointReason::Unmeasured
        }
    }

    /// When an endpoint is to be probed again while lanes are at `used`; never if that decides nothing.
    fn probe_at(&self, at: usize, used: &[usize]) -> Option<Time> {
        let known = &self.known[at];
        let others = || {
            let lanes = used.iter().filter(|lane| **lane != at);
            lanes.map(|lane| &self.known[*lane])
        };
        let pause = if others().any(|lane| known.may_beat(lane)) {
            if !known.is_measured() && known.failure.is_none() {
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
        // One that answers and may not be used yet is asked again when it may.
        let waits = known.answered >= PROBES;
        Some(if waits {
            due.max(known.away_until)
        } else {
            due
        })
    }

    /// When the next probe is due while lanes are at `used`; never if there is nothing to decide.
    pub(super) fn next(&self, used: &[usize]) -> Option<Time> {
        let all = 0..self.known.len();
        all.filter_map(|at| self.probe_at(at, used)).min()
    }

    /// The endpoints to probe now: those that are due, and beside them those in use, to which they are compared, and those
    /// that are not known well enough yet, so that a lane moves to the best one at once.
    pub(super) fn due(&self, used: &[usize], now: Time) -> Vec<usize> {
        let is_due = |at: &usize| self.probe_at(*at, used).is_some_and(|due| now >= due);
        let mut due: Vec<usize> = (0..self.known.len()).filter(is_due).collect();
        if !due.is_empty() {
            due.extend_from_slice(used);
            let is_new = |at: &usize| {
                let known = &self.known[*at];
                let decides = self.probe_at(*at, used).is_some();
                decides && !known.is_known() && known.failure.is_none()
            };
            due.extend((0..self.known.len()).filter(is_new));
            due.sort_unstable();
            due.dedup();
        }
        due
    }
}

/// From a half to one and a half.
fn jitter(chance: u64) -> f64 {
    0.5 + (chance >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests;

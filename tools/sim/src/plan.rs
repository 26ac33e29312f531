//! Turns a seed into a plan: nodes with their clocks, and storms of faults, each followed by a calm.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::kind::Kind;
use crate::notation::{seconds, seconds_or_ever};
use crate::once::Request;
use crate::world::cluster::{ELECTIONS, FAMILY, PERMITS};
use crate::world::home::Home;
use crate::world::settings::Settings;
use crate::world::store::ELECTION;
use eldest_core::BATCH;
use eldest_core::candidate::{LONG_QUEUE, WatchScope};
use eldest_core::kv::Reach;

/// The lock and the semaphore, which take the place of the elections of a fault.
pub(crate) const HELD: [&[u8]; 2] = [b"l/", PERMITS];
/// The number of partitions.
pub(crate) const COUNT: u32 = 9;

/// The length of a drawn storm, in which all its faults begin and end.
pub(crate) const STORM: Duration = Duration::from_secs(18);
/// The time from the end of all faults until there is one leader, beside a TTL and a change of etcd's leader.
const RECOVERY: Duration = Duration::from_millis(3500);
pub(crate) const STORMS: u32 = 3;
/// There is at least one fault for so many seconds of a node.
const NODE_SECONDS: u32 = 10;

/// One story of so many has a crowd: so many nodes that may challenge one leader.
const CROWDED: u8 = 48;
const CROWD: usize = 22;

pub(crate) const SETTINGS: Settings = Settings::FAST;

/// I5: the time within which there is a leader again.
pub(crate) const HEALING: Duration = SETTINGS
    .ttl
    .saturating_add(ELECTION)
    .saturating_add(RECOVERY);
/// The time after that within which everything comes to rest.
pub(crate) const SETTLING: Duration = SETTINGS.ttl.saturating_mul(4);
/// The length of a calm.
const CALM: Duration = HEALING.saturating_add(SETTLING);
pub(crate) const ROUND: Duration = STORM.saturating_add(CALM);

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fault {
    #[serde(with = "seconds")]
    pub(crate) at: Duration,
    #[serde(default)]
    pub(crate) node: usize,
    #[serde(default)]
    pub(crate) election: usize,
    #[serde(default, with = "seconds")]
    pub(crate) lasts: Duration,
    pub(crate) kind: Kind,
    /// The request that one of [`Kind::ONCE`] hits; without it, `dice` decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) of: Option<Request>,
    /// Decides the open details of the fault.
    #[serde(default)]
    pub(crate) dice: u64,
}

impl Fault {
    /// Returns the fault of that kind at the first node and election, without a length.
    pub(crate) fn at(at: Duration, kind: Kind) -> Self {
        Self {
            at,
            node: 0,
            election: 0,
            lasts: Duration::ZERO,
            kind,
            of: None,
            dice: 0,
        }
    }

    /// Returns true if the whole fault lies in one storm of that length; no fault may reach into a calm.
    pub(crate) fn lies_in_a_storm(&self, storm: Duration) -> bool {
        let ends = self.at.saturating_add(self.lasts);
        ends_of(STORMS, storm).any(|(healed, _)| {
            healed < self.at.saturating_add(storm) && self.at < healed && ends <= healed
        })
    }
}

/// The nodes' activity beside elections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Beside {
    Nothing,
    /// A lock, and a semaphore with two permits.
    Locks,
    Partitions,
}

impl Beside {
    /// Returns true if this kind can happen with that activity beside the elections.
    pub(crate) fn fits(self, kind: Kind) -> bool {
        match kind {
            Kind::Acquire | Kind::Try | Kind::Release | Kind::GiveUp => self == Beside::Locks,
            Kind::LeavePartitions | Kind::DropOwned | Kind::KeptShare => self == Beside::Partitions,
            Kind::DeleteHeld => self != Beside::Nothing,
            _ => true,
        }
    }
}

/// The view of an observing node. The library gives observers a core of their own, without a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Looks {
    /// The node is no observer.
    Nothing,
    /// The candidates of the first election.
    Election,
    /// All keys below one prefix: the first election's, or that of the locks or partitions beside it.
    Family,
}

impl Looks {
    pub(crate) fn at(self, beside: Beside) -> Option<(&'static [u8], Reach)> {
        match (self, beside) {
            (Looks::Nothing, _) => None,
            (Looks::Election, _) => Some((ELECTIONS[0], Reach::Children)),
            (Looks::Family, Beside::Nothing) => Some((ELECTIONS[0], Reach::Everything)),
            (Looks::Family, Beside::Locks) => Some((FAMILY, Reach::Everything)),
            (Looks::Family, Beside::Partitions) => Some((b"p/", Reach::Everything)),
        }
    }
}

/// A node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Member {
    pub(crate) rate_ppm: i64,
    pub(crate) follow: WatchScope,
    /// How long its work continues after a term; `None` for work that ignores its token until the next calm.
    #[serde(with = "seconds_or_ever")]
    pub(crate) work: Option<Duration>,
    pub(crate) looks: Looks,
    pub(crate) home: Home,
    /// The version that the node requires in elections; 0 if it requires none.
    pub(crate) version: u32,
    /// The node's capacity, as a member that shares partitions.
    pub(crate) capacity: u32,
    /// True if the node wants data centres to own equal shares.
    pub(crate) spread: bool,
    /// True if the node prepares for its terms, and for the partitions that are coming to it.
    pub(crate) prepares: bool,
    /// How long it prepares for partitions before it announces that it is ready for them.
    #[serde(with = "seconds")]
    pub(crate) prepares_for: Duration,
    /// How long its leaders wait for a warm successor, and how long it keeps a partition whose next owner is not ready.
    #[serde(with = "seconds")]
    pub(crate) warm_within: Duration,
    /// How much of the plan's `lead` a clean read lets the node lead; zero if its session allows no challenges.
    pub(crate) lead_percent: u32,
}

/// All decisions made before the world begins. A kept plan names its differences from `Plan::default()`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Plan {
    /// The seed of the world's draws while it runs.
    pub(crate) seed: u64,
    pub(crate) members: Vec<Member>,
    /// The longest time of a message.
    #[serde(with = "seconds")]
    pub(crate) delay: Duration,
    /// True if the time of each message is drawn; otherwise each takes `delay`, and earlier draws do not change the
    /// story.
    pub(crate) drawn: bool,
    pub(crate) lag: usize,
    pub(crate) beside: Beside,
    /// The number of other candidates above which a candidate follows its predecessor.
    pub(crate) long_queue: usize,
    /// The number of partitions that are taken or released in one transaction.
    pub(crate) batch: usize,
    /// The longest turn of a driver; zero if it takes up each input at once.
    #[serde(with = "seconds")]
    pub(crate) cost: Duration,
    /// True if a driver's requests of one turn share a transaction, where they may.
    pub(crate) together: bool,
    /// True if the keys of a lease are read in two pages, one after the other.
    pub(crate) pages: bool,
    /// True if some tasks share the lock.
    pub(crate) readers: bool,
    /// How long a clean read lets a session lead; zero if no session allows challenges.
    #[serde(with = "seconds")]
    pub(crate) lead: Duration,
    /// True if challenges have no margin beside the bound on the drift of clocks.
    pub(crate) tight: bool,
    /// True if sessions give signs of life while they read from etcd, not while their link to it works.
    pub(crate) by_reads: bool,
    /// True if each node is also a member of a group.
    pub(crate) grouped: bool,
    /// One of so many terms leaves a state; zero if none does.
    pub(crate) leaves: u8,
    /// The node that may not save states.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) saves_none: Option<usize>,
    /// The number of storms.
    pub(crate) storms: u32,
    #[serde(with = "seconds")]
    pub(crate) storm: Duration,
    pub(crate) faults: Vec<Fault>,
}

impl Default for Member {
    fn default() -> Self {
        Self {
            rate_ppm: 0,
            follow: WatchScope::Everyone,
            work: Some(Duration::ZERO),
            looks: Looks::Nothing,
            home: Home::Nowhere,
            version: 0,
            capacity: 1,
            spread: false,
            prepares: false,
            prepares_for: Duration::ZERO,
            warm_within: Duration::ZERO,
            lead_percent: 100,
        }
    }
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            seed: 0,
            members: Vec::new(),
            delay: Duration::from_millis(2),
            drawn: false,
            lag: 0,
            beside: Beside::Nothing,
            long_queue: LONG_QUEUE,
            batch: BATCH,
            cost: Duration::ZERO,
            together: false,
            pages: false,
            readers: false,
            lead: Duration::ZERO,
            tight: false,
            by_reads: false,
            grouped: false,
            leaves: 0,
            saves_none: None,
            storms: STORMS,
            storm: STORM,
            faults: Vec::new(),
        }
    }
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Self {
        // The generator must not repeat the numbers that the world itself draws.
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x5bd1_e995_9e37_79b9);
        let nodes = rng.usize(3..=5);
        let meddled = rng.u8(..3) == 0;
        let beyond = rng.u8(..8) == 0;
        let mut members = (0..nodes).map(|_| member(&mut rng)).collect::<Vec<_>>();
        // At least one node's work must end, or no node could join again.
        members[0].work.get_or_insert(SETTINGS.grace);
        let delay = [2, 20, 60][rng.usize(..3)];
        let beside = match rng.u8(..8) {
            0 => Beside::Partitions,
            1 | 2 => Beside::Locks,
            _ => Beside::Nothing,
        };
        let mut plan = Plan {
            seed,
            members,
            delay: Duration::from_millis(delay),
            drawn: true,
            beside,
            faults: storms(&mut rng, nodes, (beside, meddled)),
            ..Plan::default()
        };
        plan.lag = [0, 0, 4][rng.usize(..3)];
        if beyond {
            // The clock is up to a fifth slower than etcd's, or faster.
            let ppm = rng.i64(20_000..200_000);
            let node = rng.usize(..nodes);
            plan.members[node].rate_ppm = if rng.u8(..4) == 0 { ppm } else { -ppm };
        }
        plan.draw_later(&mut rng, nodes);
        plan.draw_states(nodes);
        plan.draw_versions(nodes);
        plan.draw_preparing();
        plan.draw_limits(nodes);
        plan.draw_kept(nodes);
        plan
    }

    /// Draws which terms leave a state, from numbers of its own, so that every other choice stays as it is.
    fn draw_states(&mut self, nodes: usize) {
        let mut rng = fastrand::Rng::with_seed(self.seed ^ 0x3c6e_f372_fe94_f82b);
        if rng.u8(..4) == 0 {
            self.leaves = [1, 2][rng.usize(..2)];
            self.saves_none = (rng.u8(..3) == 0).then(|| rng.usize(..nodes));
        }
    }

    /// Draws the versions that nodes require, as during a rollout, from numbers of its own, so that every other choice
    /// stays as it is.
    fn draw_versions(&mut self, nodes: usize) {
        let mut rng = fastrand::Rng::with_seed(self.seed ^ 0xbb67_ae85_84ca_a73b);
        if rng.u8(..4) > 0 {
            return;
        }
        // Some nodes may not have the option yet.
        let all = rng.u8(..3) > 0;
        for member in &mut self.members {
            let requires = all || rng.u8(..4) > 0;
            let version = [1, 1, 2, 3][rng.usize(..4)];
            // While work that never ends keeps the only node of the newest version from joining again, nobody leads.
            let most = member.work.map_or(1, |_| version);
            member.version = if requires { most } else { 0 };
        }
        if rng.u8(..3) == 0 {
            self.one_a_storm(&mut rng, nodes, &[Kind::VersionRemoved]);
        }
        if rng.u8(..3) == 0 {
            self.one_a_storm(&mut rng, nodes, &[Kind::MarksDenied]);
        }
    }

    /// Draws which members prepare for partitions, and how long owners wait for them, from numbers of its own, so that every
    /// other choice stays as it is. Some members are not ready before the owner's limit.
    fn draw_preparing(&mut self) {
        let mut rng = fastrand::Rng::with_seed(self.seed ^ 0xa54f_f53a_5f1d_36f1);
        if self.beside != Beside::Partitions || rng.bool() {
            return;
        }
        for member in &mut self.members {
            member.prepares = rng.u8(..3) > 0;
            member.prepares_for = Duration::from_millis(rng.u64(..2500));
            member.warm_within = Duration::from_millis([0, 500, 2000][rng.usize(..3)]);
        }
    }

    /// Draws etcd's limits on requests, from numbers of its own, so that every other choice stays as it is.
    fn draw_limits(&mut self, nodes: usize) {
        let mut rng = fastrand::Rng::with_seed(self.seed ^ 0x510e_527f_ade6_82d1);
        if rng.u8(..4) == 0 {
            self.one_a_storm(&mut rng, nodes, &Kind::LIMITS);
        }
    }

    /// Draws members whose share is kept while they are away, from numbers of its own, so that every other choice stays as
    /// it is.
    fn draw_kept(&mut self, nodes: usize) {
        let mut rng = fastrand::Rng::with_seed(self.seed ^ 0x9b05_688c_2b3e_6c1f);
        if self.beside == Beside::Partitions && rng.bool() {
            self.one_a_storm(&mut rng, nodes, &[Kind::KeptShare]);
        }
    }

    /// Draws the later additions, the newest last, so that the stories of known seeds keep everything else.
    fn draw_later(&mut self, rng: &mut fastrand::Rng, nodes: usize) {
        self.long_queue = [1, 2, LONG_QUEUE, LONG_QUEUE][rng.usize(..4)];
        self.batch = [1, 2, BATCH][rng.usize(..3)];
        if rng.u8(..4) == 0 {
            self.one_a_storm(rng, nodes, Kind::later());
        }
        self.cost = Duration::from_millis([0, 0, 0, 1, 10, 50][rng.usize(..6)]);
        if rng.u8(..3) == 0 {
            self.one_a_storm(rng, nodes, &Kind::NEWEST);
        }
        self.together = rng.bool();
        if rng.u8(..3) == 0 {
            self.members.push(Member {
                looks: [Looks::Election, Looks::Family][rng.usize(..2)],
                ..member(rng)
            });
            for fault in &mut self.faults {
                if rng.usize(..=nodes) == 0 {
                    fault.node = nodes;
                }
            }
        }
        self.pages = rng.bool();
        if rng.u8(..3) == 0 {
            self.one_a_storm(rng, nodes, &[Kind::GuardRevokes]);
        }
        if rng.u8(..3) == 0 {
            for member in &mut self.members {
                member.home = [Home::Nowhere, Home::East, Home::West][rng.usize(..3)];
            }
            for _ in 0..2 {
                self.one_a_storm(rng, nodes, &[Kind::Evacuate]);
            }
            if rng.bool() {
                self.one_a_storm(rng, nodes, &[Kind::MarksDenied]);
            }
        }
        if rng.u8(..3) == 0 {
            for member in &mut self.members {
                member.capacity = [1, 1, 2, 5][rng.usize(..4)];
            }
        }
        self.readers = rng.bool();
        if rng.u8(..3) == 0 {
            // Some nodes do not know the rule, as during an upgrade.
            let all = rng.bool();
            for member in &mut self.members {
                member.home = [Home::East, Home::West][rng.usize(..2)];
                member.spread = all || rng.u8(..4) > 0;
            }
        }
    }

    /// Makes the sessions of this plan allow challenges. The choices are drawn from numbers of their own, so that every
    /// other choice stays as it is.
    pub(crate) fn challenged(mut self) -> Self {
        let mut rng = fastrand::Rng::with_seed(self.seed ^ 0x6a09_e667_f3bc_c908);
        self.draw_sessions(&mut rng);
        let nodes = self.members.len();
        // Fewer other faults leave more sessions that only seem to be silent.
        if rng.bool() {
            self.faults.retain(|_| rng.u8(..4) == 0);
        }
        for _ in 0..rng.usize(1..=8) {
            self.one_a_storm(&mut rng, nodes, Kind::of_challenges());
        }
        if rng.u8(..3) == 0 {
            self.one_a_storm(&mut rng, nodes, Kind::seldom());
        }
        self
    }

    /// Draws how long clean reads let the sessions lead, their clocks, and how they notice each other.
    fn draw_sessions(&mut self, rng: &mut fastrand::Rng) {
        let beyond =
            |member: &Member| member.rate_ppm.unsigned_abs() > u64::from(SETTINGS.drift_ppm);
        self.lead = Duration::from_millis([800, 1000, 1500][rng.usize(..3)]);
        self.tight = rng.u8(..3) == 0;
        self.by_reads = rng.bool();
        if rng.u8(..3) == 0 {
            let most = i64::from(SETTINGS.drift_ppm);
            let within = self.members.iter_mut().filter(|member| !beyond(member));
            within.for_each(|member| member.rate_ppm = [-most, most][rng.usize(..2)]);
        }
        if rng.u8(..3) == 0 {
            for node in 1..self.members.len() {
                let percent = [0, 0, 50, 100, 150][rng.usize(..5)];
                if self.suits(percent) {
                    self.members[node].lead_percent = percent;
                }
            }
        }
        if rng.u8(..CROWDED) == 0 {
            self.members.resize_with(CROWD, || member(rng));
        }
        self.grouped = rng.u8(..3) == 0;
    }

    /// Returns true if a clean read that lets a session lead for so much of the plan's `lead` outlasts the next one, and
    /// the messages and turns of both.
    fn suits(&self, lead_percent: u32) -> bool {
        let lead = self.lead * lead_percent / 100;
        let usable = lead.saturating_sub(lead * 15 / 100);
        lead.is_zero() || usable >= lead / 3 + (self.delay + self.cost) * 3
    }

    fn one_a_storm(&mut self, rng: &mut fastrand::Rng, nodes: usize, kinds: &[Kind]) {
        for storm in 0..STORMS {
            let kind = kinds[rng.usize(..kinds.len())];
            self.faults.push(lasting(rng, ROUND * storm, nodes, kind));
        }
        self.faults.sort_by_key(|fault| fault.at);
    }

    /// Returns true if some node's work ends by itself. Otherwise the library promises no leader in a calm.
    pub(crate) fn is_fair(&self) -> bool {
        let stand = |member: &&Member| member.looks == Looks::Nothing;
        let mut standing = self.members.iter().filter(stand);
        standing.any(|member| member.work.is_some())
    }

    /// Returns true if each fault lies in one storm.
    pub(crate) fn has_quiet_calms(&self) -> bool {
        self.faults
            .iter()
            .all(|fault| fault.lies_in_a_storm(self.storm))
    }

    /// Returns the end of each storm, and of the calm after it.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (Duration, Duration)> + use<> {
        ends_of(self.storms, self.storm)
    }
}

fn ends_of(storms: u32, storm: Duration) -> impl Iterator<Item = (Duration, Duration)> {
    let round = storm + CALM;
    (0..storms).map(move |number| (round * number + storm, round * (number + 1)))
}

pub(crate) fn member(rng: &mut fastrand::Rng) -> Member {
    let most = [Some(1), Some(300), Some(3000), None][rng.usize(..4)];
    let work = most.map(|most| Duration::from_millis(rng.u64(..most)));
    Member {
        rate_ppm: rng.i64(-900..=900),
        follow: [
            WatchScope::Auto,
            WatchScope::Everyone,
            WatchScope::Predecessor,
        ][rng.usize(..3)],
        work,
        ..Member::default()
    }
}

/// Returns the faults of all storms, in the order of time.
fn storms(rng: &mut fastrand::Rng, nodes: usize, fits: (Beside, bool)) -> Vec<Fault> {
    let least = ROUND.as_secs() as u32 * nodes as u32 / NODE_SECONDS + 1;
    let mut faults = Vec::new();
    for storm in 0..STORMS {
        for _ in 0..rng.u32(least..least * 2) {
            faults.push(fault(rng, ROUND * storm, nodes, fits));
        }
    }
    faults.sort_by_key(|fault| fault.at);
    faults
}

fn fault(
    rng: &mut fastrand::Rng,
    begins: Duration,
    nodes: usize,
    (beside, meddled): (Beside, bool),
) -> Fault {
    let kind = loop {
        let kind = Kind::first()[rng.usize(..Kind::first().len())];
        if beside.fits(kind) && (meddled || !kind.meddles()) {
            break kind;
        }
    };
    lasting(rng, begins, nodes, kind)
}

fn lasting(rng: &mut fastrand::Rng, begins: Duration, nodes: usize, kind: Kind) -> Fault {
    // No fault begins at once, because the calm before is judged at that very moment.
    let within = Duration::from_micros(rng.u64(..STORM.as_micros() as u64).max(1));
    let most = [1000, 2500, 6000][rng.usize(..3)];
    let lasts = Duration::from_micros(rng.u64(1000..most * 1000));
    Fault {
        at: begins + within,
        node: rng.usize(..nodes),
        election: rng.usize(..ELECTIONS.len()),
        lasts: lasts.min(STORM.saturating_sub(within)),
        kind,
        of: None,
        // A kept plan cannot hold a larger number.
        dice: rng.u64(..) >> 1,
    }
}

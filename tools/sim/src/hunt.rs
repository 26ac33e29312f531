//! Draws stories in which a few kinds of faults come close together, to search for one specific history.

use std::ops::RangeInclusive;
use std::time::Duration;

use clap::Args;
use strum::VariantArray;

use crate::kind::Kind;
use crate::notation::{name_of, named};
use crate::once::Request;
use crate::plan::{Beside, Fault, Member, Plan, ROUND, SETTINGS, STORM, STORMS, member};
use crate::world::cluster::ELECTIONS;

/// The choices from which a hunt draws. There is none without kinds.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct Hunt {
    /// Draw faults of these kinds alone, close together, such as `--only cut,watches-stalled`
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_parser = named::<Kind>)]
    only: Vec<Kind>,
    /// With --only: beside elections `nothing`, `locks` or `partitions`; by default as in the seed's story
    #[arg(long, value_name = "WHAT", requires = "only", value_parser = named::<Beside>)]
    beside: Option<Beside>,
}

/// The numbers of faults in one burst.
const BURST: RangeInclusive<usize> = 2..=7;
/// The longest pause between two faults of a burst, and the longest duration of one: of the order of messages,
/// requests, deadlines and leases.
const SPANS: [u64; 4] = [20, 150, 800, 4000];

impl Hunt {
    pub(crate) fn is_on(&self) -> bool {
        !self.only.is_empty()
    }

    /// Returns the options that choose the same.
    pub(crate) fn again(&self) -> String {
        let only: Vec<_> = self.only.iter().map(name_of).collect();
        let only = self.is_on().then(|| format!(" --only {}", only.join(",")));
        let beside = self.beside.map(|it| format!(" --beside {}", name_of(&it)));
        only.unwrap_or_default() + &beside.unwrap_or_default()
    }

    /// # Errors
    ///
    /// No story has all of these kinds.
    pub(crate) fn check(&self) -> Result<(), String> {
        let first = self.besides().next();
        let rule = "--only: what these kinds are about is in no story together";
        first.map(drop).ok_or_else(|| rule.to_owned())
    }

    /// Returns the activities beside elections that suit these kinds.
    fn besides(&self) -> impl Iterator<Item = Beside> {
        let all = [Beside::Nothing, Beside::Locks, Beside::Partitions].into_iter();
        let fits = |beside: &Beside| self.only.iter().all(|kind| beside.fits(*kind));
        all.filter(|beside| self.beside.is_none_or(|only| only == *beside))
            .filter(fits)
    }

    /// Returns the story of a seed, with faults of these kinds alone if there are any.
    pub(crate) fn plan(&self, seed: u64) -> Plan {
        let mut plan = Plan::of(seed);
        if !self.is_on() {
            return plan;
        }
        // The generator must not repeat the numbers that the plan drew.
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x2545_f491_4f6c_dd1d);
        let nodes = rng.usize(1..=4);
        let besides: Vec<_> = self.besides().collect();
        if !besides.contains(&plan.beside) {
            plan.beside = besides[rng.usize(..besides.len())];
        }
        plan.members = (0..nodes).map(|_| plain_or_drawn(&mut rng)).collect();
        plan.members[rng.usize(..nodes)].work = Some(SETTINGS.grace);
        plan.faults = Vec::new();
        for storm in 0..STORMS {
            for _ in 0..rng.usize(1..=3) {
                self.burst(&mut rng, &mut plan, ROUND * storm);
            }
        }
        plan.faults.sort_by_key(|fault| fault.at);
        plan
    }

    /// Draws faults that follow each other closely, most of them at one node and election.
    fn burst(&self, rng: &mut fastrand::Rng, plan: &mut Plan, begins: Duration) {
        let nodes = plan.members.len();
        let (node, election) = (rng.usize(..nodes), rng.usize(..ELECTIONS.len()));
        // Some bursts begin while sessions begin.
        let first = [STORM.as_micros() as u64, 100_000][usize::from(rng.u8(..6) == 0)];
        let mut at = Duration::from_micros(rng.u64(1..first));
        for _ in 0..rng.usize(BURST) {
            if at >= STORM {
                return;
            }
            let other = rng.u8(..4) == 0;
            let kind = self.only[rng.usize(..self.only.len())];
            let of = Request::VARIANTS[rng.usize(..Request::VARIANTS.len())];
            plan.faults.push(Fault {
                at: begins + at,
                node: if other { rng.usize(..nodes) } else { node },
                election: if other {
                    rng.usize(..ELECTIONS.len())
                } else {
                    election
                },
                lasts: span(rng).min(STORM.saturating_sub(at)),
                kind,
                of: Kind::ONCE.contains(&kind).then_some(of),
                dice: rng.u64(..) >> 1,
            });
            at += span(rng);
        }
    }
}

fn plain_or_drawn(rng: &mut fastrand::Rng) -> Member {
    let drawn = member(rng);
    if rng.bool() {
        drawn
    } else {
        Member {
            work: drawn.work,
            ..Member::default()
        }
    }
}

fn span(rng: &mut fastrand::Rng) -> Duration {
    let most = SPANS[rng.usize(..SPANS.len())];
    Duration::from_micros(rng.u64(1000..most * 1000))
}

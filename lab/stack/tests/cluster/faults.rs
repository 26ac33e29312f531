//! Defines the faults of the simulated world, and makes and undoes each of them.

use std::time::Duration;

use eldest_testing::history::What;
use fastrand::Rng;

use crate::world::{MEMBERS, PREFIX, TTL, World, member, millis, seconds};

/// A fault that lasts for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// A node cannot reach one member.
    CutFromOne,
    /// A node cannot reach any member.
    CutFromAll,
    /// A node's requests do not arrive.
    RequestsLost,
    /// Answers to a node do not arrive.
    AnswersLost,
    /// All packets between a node and etcd are held, and arrive in the end.
    Held,
    /// All packets between a node and etcd are slow.
    Slow,
    /// etcd's leader cannot reach the others, but its clients.
    LeaderAlone,
    /// etcd's leader and one node can reach only each other.
    LeaderAndNodeAlone,
    /// A member dies and is restarted.
    MemberDies,
    /// Two members die and are restarted.
    MajorityDies,
    /// All members are restarted.
    AllDie,
    /// etcd's leader is stopped for a while, and then continues.
    LeaderStops,
    /// etcd's leader is stopped for a while, and then revokes the leases that it considers expired.
    LeaderStopsAndRevokes,
    /// A node dies and is restarted.
    NodeDies,
    /// The leading node dies and is restarted.
    LeaderDies,
    /// Writes are applied, but answered as timed out.
    AnswersTimeOut,
    /// A member's watches are silent.
    WatchesStall,
    /// etcd refuses writes for lack of space.
    NoSpace,
    /// etcd compacts its history.
    Compaction,
    /// An operator revokes the leader's lease.
    Revoked,
}

pub(crate) const ALL: [Fault; 20] = [
    Fault::CutFromOne,
    Fault::CutFromAll,
    Fault::RequestsLost,
    Fault::AnswersLost,
    Fault::Held,
    Fault::Slow,
    Fault::LeaderAlone,
    Fault::LeaderAndNodeAlone,
    Fault::MemberDies,
    Fault::MajorityDies,
    Fault::AllDie,
    Fault::LeaderStops,
    Fault::LeaderStopsAndRevokes,
    Fault::NodeDies,
    Fault::LeaderDies,
    Fault::AnswersTimeOut,
    Fault::WatchesStall,
    Fault::NoSpace,
    Fault::Compaction,
    Fault::Revoked,
];

/// A fault that is in effect now.
pub(crate) struct Broken {
    fault: Fault,
    /// The node that it hits; empty if it hits all.
    node: String,
    name: String,
    mend: Mend,
}

type Mend = Box<dyn FnOnce(&mut World)>;

impl Fault {
    /// Makes the fault. The records name it by its number, since two of a kind may overlap.
    pub(crate) fn begin(self, world: &mut World, rng: &mut Rng, number: usize) -> Broken {
        let leader = world.eldest();
        let any = world.nodes[rng.usize(..world.nodes.len())].clone();
        // The leader is hit more often than the others.
        let node = match leader.clone() {
            Some(leader) if rng.bool() => leader,
            _ => any,
        };
        let (node, mend) = self.make(world, rng, node, leader);
        let name = format!("{self:?} {number}");
        world.record(&node, What::Fault { name: name.clone() });
        Broken {
            fault: self,
            node,
            name,
            mend,
        }
    }

    /// Returns true if both faults hit the same part, so that undoing one would undo the other.
    pub(crate) fn excludes(self, other: Fault) -> bool {
        let kind = |fault| match fault {
            Fault::CutFromOne
            | Fault::CutFromAll
            | Fault::RequestsLost
            | Fault::AnswersLost
            | Fault::Held
            | Fault::Slow => 1,
            Fault::LeaderAlone
            | Fault::MemberDies
            | Fault::MajorityDies
            | Fault::AllDie
            | Fault::LeaderStops
            | Fault::LeaderStopsAndRevokes => 2,
            Fault::NodeDies | Fault::LeaderDies => 3,
            // This fault is one of the network and of the members.
            Fault::LeaderAndNodeAlone => 0,
            Fault::AnswersTimeOut => 4,
            Fault::WatchesStall => 5,
            Fault::NoSpace => 6,
            Fault::Compaction => 7,
            Fault::Revoked => 8,
        };
        let (one, two) = (kind(self), kind(other));
        one == two || (one * two == 0 && one.max(two) <= 2)
    }

    /// Draws the duration of the fault.
    pub(crate) fn lasts(self, rng: &mut Rng) -> Duration {
        match self {
            Fault::Compaction | Fault::Revoked => Duration::ZERO,
            Fault::LeaderStops | Fault::LeaderStopsAndRevokes => {
                millis(rng.u64(500..2 * TTL.as_millis() as u64))
            }
            _ => millis(rng.u64(200..3 * TTL.as_millis() as u64)),
        }
    }

    /// Makes the fault, and returns the node that it hits, if it hits only one, and how to undo it.
    fn make(
        self,
        world: &mut World,
        rng: &mut Rng,
        node: String,
        leader: Option<String>,
    ) -> (String, Mend) {
        let some_member = rng.usize(..MEMBERS);
        let first = world.cluster.leader().unwrap_or(some_member);
        if let Some(mend) = self.on_links(world, rng, &node, some_member) {
            return (node, mend);
        }
        let everybody = String::new();
        if let Some(mend) = self.on_members(world, rng, node.clone(), (first, some_member)) {
            return (everybody, mend);
        }
        match self {
            Fault::NodeDies | Fault::LeaderDies => {
                let dead = match leader {
                    Some(leader) if self == Fault::LeaderDies => leader,
                    _ => node,
                };
                world.kill_node(&dead);
                let restarted = dead.clone();
                let mend = move |world: &mut World| world.sim.bounce(&*restarted);
                return (dead, Box::new(mend));
            }
            Fault::Compaction => world.cluster.compact(rng.i64(0..5)),
            Fault::Revoked => {
                let keys = world.cluster.keys(PREFIX.as_bytes());
                if let Some((_, _, create_revision, lease)) = keys.into_iter().next() {
                    world.record("operator", What::DeletedByOther { create_revision });
                    world.cluster.revoke(lease);
                }
            }
            _ => unreachable!("{self:?} is made by nobody"),
        }
        (everybody, Box::new(|_| {}))
    }

    /// Breaks the links between a node and etcd.
    fn on_links(self, world: &World, rng: &mut Rng, node: &str, one: usize) -> Option<Mend> {
        let (sim, of) = (&world.sim, node.to_owned());
        Some(match self {
            Fault::CutFromOne => {
                let one = member(one);
                sim.partition(node, &*one);
                Box::new(move |world| world.sim.repair(&*of, &*one))
            }
            Fault::CutFromAll => {
                each(|one| sim.partition(node, one));
                Box::new(move |world| each(|one| world.sim.repair(&*of, one)))
            }
            Fault::RequestsLost => {
                each(|one| sim.partition_oneway(node, one));
                Box::new(move |world| each(|one| world.sim.repair_oneway(&*of, one)))
            }
            Fault::AnswersLost => {
                each(|one| sim.partition_oneway(one, node));
                Box::new(move |world| each(|one| world.sim.repair_oneway(one, &*of)))
            }
            Fault::Held => {
                each(|one| sim.hold(node, one));
                Box::new(move |world| each(|one| world.sim.release(&*of, one)))
            }
            Fault::Slow => {
                let (least, most) = (millis(20), millis(rng.u64(100..600)));
                let slow = |world: &World, node: &str, most| {
                    each(|one| world.sim.set_link_max_message_latency(node, one, most));
                };
                slow(world, node, most);
                Box::new(move |world| slow(world, &of, least * 2))
            }
            _ => return None,
        })
    }

    /// Breaks members of etcd, or their answers.
    fn on_members(
        self,
        world: &mut World,
        rng: &mut Rng,
        node: String,
        (first, one): (usize, usize),
    ) -> Option<Mend> {
        let but = |left: usize| (0..MEMBERS).filter(move |other| *other != left);
        Some(match self {
            Fault::LeaderAlone => {
                but(first).for_each(|other| world.cluster.cut(first, other));
                Box::new(|world| world.cluster.join())
            }
            Fault::LeaderAndNodeAlone => {
                but(first).for_each(|other| {
                    world.cluster.cut(first, other);
                    world.sim.partition(&*node, &*member(other));
                });
                Box::new(move |world| {
                    world.cluster.join();
                    but(first).for_each(|other| world.sim.repair(&*node, &*member(other)));
                })
            }
            Fault::MemberDies => {
                let dead = if rng.bool() { first } else { one };
                kill(world, vec![dead])
            }
            Fault::MajorityDies => kill(world, but(one).collect()),
            Fault::AllDie => kill(world, (0..MEMBERS).collect()),
            Fault::LeaderStops | Fault::LeaderStopsAndRevokes => {
                world.cluster.freeze(first);
                let revokes = self == Fault::LeaderStopsAndRevokes;
                Box::new(move |world| world.cluster.thaw(first, revokes))
            }
            Fault::AnswersTimeOut => {
                world.cluster.lose_answers(0.5);
                Box::new(|world| world.cluster.lose_answers(0.0))
            }
            Fault::WatchesStall => {
                world.cluster.stall_watches(one, true);
                Box::new(move |world| world.cluster.stall_watches(one, false))
            }
            Fault::NoSpace => {
                world.cluster.no_space(true);
                Box::new(|world| world.cluster.no_space(false))
            }
            _ => return None,
        })
    }
}

fn kill(world: &mut World, members: Vec<usize>) -> Mend {
    for one in &members {
        world.kill_member(*one);
    }
    Box::new(move |world| {
        for one in members {
            world.restart_member(one);
        }
    })
}

impl Broken {
    pub(crate) fn end(self, world: &mut World) {
        let Broken {
            fault: _,
            node,
            name,
            mend,
        } = self;
        mend(world);
        world.record(&node, What::Healed { name });
    }

    pub(crate) fn fault(&self) -> Fault {
        self.fault
    }
}

fn each(act: impl Fn(&str)) {
    (0..MEMBERS).for_each(|one| act(&member(one)));
}

/// Draws a quiet time in which the world recovers.
pub(crate) fn quiet(rng: &mut Rng) -> Duration {
    seconds(rng.u64(1..40))
}

//! Tests the guarantees of the assignment, for every state that a watch may show.
#![allow(clippy::disallowed_methods)] // one test measures itself in real time

use std::collections::BTreeMap;
use std::time::Instant;

use proptest::prelude::*;

use super::*;

/// Leases of members are 1 to 9 here; an owner under another lease is no member.
fn state() -> impl Strategy<Value = (u32, Vec<Assignee>, Vec<Owned>)> {
    (1u32..80, 1usize..9).prop_flat_map(|(count, members)| {
        let since = Just((0..members as i64).collect::<Vec<_>>()).prop_shuffle();
        // Also without capacities, as in most groups.
        let capacities = prop_oneof![
            Just(vec![1; members]),
            proptest::collection::vec(prop_oneof![9 => 1u32..4, 1 => Just(1000)], members),
        ];
        // Two or three data centres, or none; sometimes not all members name theirs.
        let centers = prop_oneof![
            2 => Just(vec![None; members]),
            2 => proptest::collection::vec((0u64..3).prop_map(Some), members),
            1 => proptest::collection::vec(proptest::option::of(0u64..2), members),
        ];
        let assignees = (since, capacities, centers).prop_map(|(since, capacities, centers)| {
            let all = (1..).zip(since.into_iter().zip(capacities)).zip(centers);
            let assignee = |((lease, (since, capacity)), center)| Assignee {
                absent: false,
                since,
                lease,
                capacity,
                center,
            };
            all.map(assignee).collect()
        });
        let by = prop_oneof![2 => Just(0), 6 => 1i64..=members as i64, 1 => Just(99)];
        let owners = proptest::collection::vec((by, 0i64..20), count as usize);
        let owned = owners.prop_map(|owners| {
            let keys = (0..).zip(owners).filter(|(_, (lease, _))| *lease != 0);
            let key = |(partition, (lease, since))| Owned {
                since,
                partition,
                lease,
            };
            keys.map(key).collect()
        });
        (Just(count), assignees, owned)
    })
}

/// Makes states in which data centres do not count.
fn whole() -> impl Strategy<Value = (u32, Vec<Assignee>, Vec<Owned>)> {
    state().prop_map(|(count, mut members, owned)| {
        for member in &mut members {
            member.center = None;
        }
        (count, members, owned)
    })
}

fn loads(members: &[Assignee], target: &[i64]) -> Vec<usize> {
    let load = |m: &Assignee| target.iter().filter(|lease| **lease == m.lease).count();
    members.iter().map(load).collect()
}

/// Counts the partitions that a member owns and must give up.
fn moved(members: &[Assignee], owned: &[Owned], target: &[i64]) -> usize {
    let by_member = |key: &&Owned| members.iter().any(|m| m.lease == key.lease);
    let goes = |key: &&Owned| target[key.partition as usize] != key.lease;
    owned.iter().filter(by_member).filter(goes).count()
}

/// Returns true if the load of each data centre is the same, rounded down or up, and each member has its share of it.
fn balanced(members: &[Assignee], loads: &[usize]) -> bool {
    let spread = members.iter().all(|member| member.center.is_some());
    let mut centers: BTreeMap<_, (Vec<Assignee>, Vec<usize>)> = BTreeMap::new();
    for (member, load) in members.iter().zip(loads) {
        let (of, theirs) = centers.entry(member.center.filter(|_| spread)).or_default();
        of.push(*member);
        theirs.push(*load);
    }
    let count: usize = loads.iter().sum();
    let even = count / centers.len()..=count.div_ceil(centers.len());
    centers
        .into_values()
        .all(|(members, loads)| even.contains(&loads.iter().sum()) && divided(&members, &loads))
}

/// Returns true if each load is the member's share of all of them, rounded down or up.
fn divided(members: &[Assignee], loads: &[usize]) -> bool {
    let count: usize = loads.iter().sum();
    let all: usize = members.iter().map(|member| member.capacity as usize).sum();
    let fits = |(member, load): (&Assignee, &usize)| {
        let share = count * member.capacity as usize;
        (share / all..=share.div_ceil(all)).contains(load)
    };
    members.iter().zip(loads).all(fits)
}

/// Returns the fewest moves that any balanced assignment needs, by trying all of them.
fn fewest(count: u32, members: &[Assignee], owned: &[Owned]) -> usize {
    let all = (members.len() as u64).pow(count);
    let nth = |mut n: u64| {
        let mut target = Vec::new();
        for _ in 0..count {
            target.push(members[(n % members.len() as u64) as usize].lease);
            n /= members.len() as u64;
        }
        target
    };
    let fair = (0..all)
        .map(nth)
        .filter(|t| balanced(members, &loads(members, t)));
    fair.map(|t| moved(members, owned, &t)).min().unwrap()
}

/// Returns the owners once every member has carried out the assignment.
fn carried_out(target: &[i64], owned: &[Owned], since: i64) -> Vec<Owned> {
    let kept: BTreeMap<u32, Owned> = owned.iter().map(|key| (key.partition, *key)).collect();
    let now = |(partition, lease): (u32, &i64)| {
        let same = kept.get(&partition).filter(|key| key.lease == *lease);
        same.copied().unwrap_or(Owned {
            since,
            partition,
            lease: *lease,
        })
    };
    (0..).zip(target).map(now).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_partition_has_a_member_and_loads_are_rounded_shares((count, members, owned) in state()) {
        let target = assign(count, &members, &owned);
        prop_assert_eq!(target.len(), count as usize);
        let loads = loads(&members, &target);
        prop_assert_eq!(loads.iter().sum::<usize>(), count as usize);
        prop_assert!(balanced(&members, &loads), "{:?}", loads);
    }

    #[test]
    fn the_order_of_members_and_keys_does_not_matter(
        (given, again) in state().prop_flat_map(|(count, members, owned)| {
            let again = (Just(members.clone()).prop_shuffle(), Just(owned.clone()).prop_shuffle());
            (Just((count, members, owned)), again)
        }),
    ) {
        let (count, members, owned) = given;
        prop_assert_eq!(assign(count, &members, &owned), assign(count, &again.0, &again.1));
    }

    #[test]
    fn nothing_moves_once_the_assignment_was_carried_out((count, members, owned) in state()) {
        let target = assign(count, &members, &owned);
        let settled = carried_out(&target, &owned, 50);
        prop_assert_eq!(assign(count, &members, &settled), target);
    }

    /// A member that has carried out a part of the assignment does not change the part of the others.
    #[test]
    fn assignment_stays_the_same_while_it_is_carried_out(
        (count, members, owned) in state(),
        done in proptest::collection::vec(any::<(bool, bool)>(), 80),
    ) {
        let target = assign(count, &members, &owned);
        let mut partly: BTreeMap<u32, Owned> = owned.iter().map(|key| (key.partition, *key)).collect();
        for (partition, lease) in (0..).zip(&target) {
            let (released, taken) = done[partition as usize];
            let member = |key: &Owned| members.iter().any(|m| m.lease == key.lease);
            match partly.get(&partition) {
                // A member gives up its youngest partitions first, which the rest of the rule checks below.
                Some(key) if key.lease == *lease || member(key) => {}
                Some(_) if released => drop(partly.remove(&partition)),
                None if taken => {
                    let key = Owned { since: 50, partition, lease: *lease };
                    partly.insert(partition, key);
                }
                _ => {}
            }
        }
        let partly: Vec<_> = partly.into_values().collect();
        prop_assert_eq!(assign(count, &members, &partly), target);
    }

    #[test]
    fn released_partitions_do_not_depend_on_which_member_releases_first(
        (count, members, owned) in state(),
        done in proptest::collection::vec(any::<bool>(), 80),
    ) {
        let target = assign(count, &members, &owned);
        let goes = |key: &Owned| target[key.partition as usize] != key.lease && done[key.partition as usize];
        let partly: Vec<_> = owned.iter().filter(|key| !goes(key)).copied().collect();
        prop_assert_eq!(assign(count, &members, &partly), target);
    }

    #[test]
    fn no_balanced_assignment_moves_less(
        (count, members, owned) in whole().prop_filter("small", |(count, members, _)| {
            (members.len() as f64).powf(f64::from(*count)) < 3000.0
        }),
    ) {
        let target = assign(count, &members, &owned);
        prop_assert_eq!(moved(&members, &owned, &target), fewest(count, &members, &owned));
    }

    /// Where capacities differ, another member's share may be rounded the other way, which moves at most one partition
    /// of each.
    #[test]
    fn joining_takes_a_share_and_leaving_moves_only_the_leavers_partitions((count, members, owned) in whole()) {
        let settled = carried_out(&assign(count, &members, &owned), &owned, 50);
        let equal = members.iter().all(|member| member.capacity == 1);
        let besides = if equal { 0 } else { members.len() };
        let mut more = members.clone();
        more.push(assignee(60));
        let target = assign(count, &more, &settled);
        let gained = target.iter().filter(|lease| **lease == 60).count();
        let moves = moved(&more, &settled, &target);
        prop_assert!((gained..=gained + besides).contains(&moves), "{} for {}", moves, gained);
        prop_assert!(!equal || gained == count as usize / more.len());
        let fewer = &members[1..];
        if !fewer.is_empty() {
            let target = assign(count, fewer, &settled);
            prop_assert!(moved(fewer, &settled, &target) <= besides);
        }
    }

    /// A member that is away receives nothing, and members carry out the assignment in any order.
    #[test]
    fn absent_members_keep_what_is_theirs_and_receive_nothing(
        (count, members, owned) in state(),
        away in proptest::collection::vec(any::<bool>(), 9),
        done in proptest::collection::vec(any::<bool>(), 80),
    ) {
        let members = marked_away(members, &away);
        let target = assign(count, &members, &owned);
        prop_assert_eq!(target.len(), count as usize);
        let owner = |partition: u32| owned.iter().find(|key| key.partition == partition).map(|key| key.lease);
        let is_away = |lease: i64| members.iter().any(|member| member.absent && member.lease == lease);
        let mut partly: BTreeMap<u32, Owned> = owned.iter().map(|key| (key.partition, *key)).collect();
        for (partition, lease) in (0..).zip(target.iter().copied()) {
            let before = owner(partition);
            prop_assert!(!is_away(lease) || before == Some(lease), "{} goes to {}", partition, lease);
            // Nobody releases the partition of a member that is away: its next owner takes it.
            if before.is_none_or(is_away) && lease != before.unwrap_or_default() && done[partition as usize] {
                partly.insert(partition, Owned { since: 50, partition, lease });
            }
        }
        let partly: Vec<_> = partly.into_values().collect();
        prop_assert_eq!(assign(count, &members, &partly), target);
    }

    #[test]
    fn nothing_moves_while_members_of_a_settled_group_are_away(
        (count, members, owned) in whole().prop_map(|(count, mut members, owned)| {
            for member in &mut members {
                member.capacity = 1;
            }
            (count, members, owned)
        }),
        away in proptest::collection::vec(any::<bool>(), 9),
    ) {
        let target = assign(count, &members, &owned);
        let settled = carried_out(&target, &owned, 50);
        prop_assert_eq!(assign(count, &marked_away(members, &away), &settled), target);
    }

    /// Each member acts by an outdated view, at random, and takes only absent keys; then all see everything.
    #[test]
    fn members_with_old_views_settle(
        (count, members, owned) in state(),
        acts in proptest::collection::vec((0usize..9, 0usize..12), 0..120),
    ) {
        let mut world = World::new(count, members, owned);
        for (member, behind) in acts {
            world.act(member % world.members.len(), behind);
        }
        world.expire(99);
        for round in 0.. {
            let before = world.now.clone();
            for member in 0..world.members.len() {
                world.act(member, 0);
            }
            if world.now == before {
                break;
            }
            prop_assert!(round < 6, "still moving");
        }
        let owners: Vec<_> = world.now.values().map(|key| key.lease).collect();
        prop_assert_eq!(owners.len(), count as usize);
        prop_assert!(balanced(&world.members, &loads(&world.members, &owners)));
    }
}

/// Marks members as away, but not all of them.
fn marked_away(mut members: Vec<Assignee>, away: &[bool]) -> Vec<Assignee> {
    let others = members.iter_mut().skip(1);
    others
        .zip(away)
        .for_each(|(member, away)| member.absent = *away);
    members
}

#[test]
fn data_centre_whose_members_are_away_keeps_what_it_has_and_the_others_divide_the_rest() {
    let member = |(lease, center)| Assignee {
        absent: center == 2,
        center: Some(center),
        ..assignee(lease)
    };
    let members = [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)].map(member);
    let key = |(partition, lease)| Owned {
        since: 1,
        partition,
        lease,
    };
    let owned = [(0, 2), (1, 2), (2, 3)].map(key);
    let target = assign(12, &members, &owned);
    assert_eq!(target[..3], [2, 2, 3]);
    assert_eq!(loads(&members, &target), [5, 2, 1, 2, 2]);
}

type Keys = BTreeMap<u32, Owned>;

struct World {
    count: u32,
    members: Vec<Assignee>,
    now: Keys,
    past: Vec<Keys>,
    revision: i64,
}

impl World {
    fn new(count: u32, members: Vec<Assignee>, owned: Vec<Owned>) -> Self {
        Self {
            count,
            members,
            now: owned.into_iter().map(|key| (key.partition, key)).collect(),
            past: Vec::new(),
            revision: 100,
        }
    }

    fn expire(&mut self, lease: i64) {
        self.now.retain(|_, key| key.lease != lease);
    }

    /// Makes the member carry out the assignment of the state `behind` steps ago.
    fn act(&mut self, member: usize, behind: usize) {
        let me = self.members[member].lease;
        let seen = self.past.len().checked_sub(behind);
        let seen = seen.and_then(|at| self.past.get(at)).unwrap_or(&self.now);
        let keys: Vec<_> = seen.values().copied().collect();
        let target = assign(self.count, &self.members, &keys);
        self.past.push(self.now.clone());
        self.revision += 1;
        let since = self.revision;
        for (partition, lease) in (0..).zip(target) {
            let absent = !keys.iter().any(|key| key.partition == partition);
            if lease == me && absent {
                let key = Owned {
                    since,
                    partition,
                    lease,
                };
                self.now.entry(partition).or_insert(key);
            }
            let mine = keys
                .iter()
                .any(|key| (key.partition, key.lease) == (partition, me));
            let still = self.now.get(&partition).is_some_and(|key| key.lease == me);
            if lease != me && mine && still {
                self.now.remove(&partition);
            }
        }
    }
}

/// Makes a member whose age follows its lease's number: a lower number is older.
fn assignee(lease: i64) -> Assignee {
    Assignee {
        absent: false,
        since: lease,
        lease,
        capacity: 1,
        center: None,
    }
}

#[test]
fn data_centres_own_equal_numbers_and_divide_them_by_capacity() {
    let member = |(lease, center, capacity)| Assignee {
        capacity,
        center,
        ..assignee(lease)
    };
    let (east, west) = (Some(7), Some(3));
    let members = [(1, east, 1), (2, east, 2), (3, west, 1)].map(member);
    assert_eq!(loads(&members, &assign(12, &members, &[])), [2, 4, 6]);
    // A remainder goes to the same data centre, whichever member is older and whatever is owned.
    let owned = (0..7).map(|partition| Owned {
        since: 1,
        partition,
        lease: 1,
    });
    let owned: Vec<_> = owned.collect();
    for owned in [&[][..], &owned] {
        let loads = loads(&members, &assign(13, &members, owned));
        assert_eq!((loads[0] + loads[1], loads[2]), (6, 7));
    }
    // While one member names no data centre, data centres do not count.
    let members = [(1, east, 1), (2, east, 2), (3, None, 1)].map(member);
    assert_eq!(loads(&members, &assign(12, &members, &[])), [3, 6, 3]);
}

#[test]
fn a_member_of_twice_the_capacity_owns_twice_as_many() {
    let members = [1, 2, 1].into_iter().zip(1..);
    let members = members.map(|(capacity, lease)| Assignee {
        capacity,
        ..assignee(lease)
    });
    let members: Vec<_> = members.collect();
    assert_eq!(assign(8, &members, &[]), [1, 1, 2, 2, 2, 2, 3, 3]);
    // Where the share is a whole number, no member gets more, not even the eldest.
    assert_eq!(loads(&members, &assign(6, &members, &[])), [2, 3, 1]);
    let first = members[1];
    let members_of_6 = [Assignee { since: 0, ..first }, members[0], members[2]];
    let owners = assign(6, &members_of_6, &[]);
    assert_eq!(loads(&members_of_6, &owners), [3, 2, 1]);
    // A single partition goes to the eldest.
    assert_eq!(loads(&members, &assign(1, &members, &[])), [1, 0, 0]);
}

#[test]
fn overloaded_member_gives_up_its_newest_partitions() {
    let key = |partition, since| Owned {
        since,
        partition,
        lease: 1,
    };
    let owned = [key(0, 7), key(1, 3), key(2, 5), key(3, 5)];
    let members = [1, 2].map(assignee);
    assert_eq!(assign(4, &members, &owned), [2, 1, 1, 2]);
}

#[test]
fn without_members_no_partition_has_an_owner() {
    assert!(assign(4, &[], &[]).is_empty());
}

#[test]
fn more_members_than_partitions_leave_the_youngest_idle() {
    let members: Vec<_> = (1..=5).map(assignee).collect();
    assert_eq!(assign(3, &members, &[]), [1, 2, 3]);
}

#[test]
fn keys_beyond_the_partition_count_are_ignored() {
    let key = Owned {
        since: 1,
        partition: 7,
        lease: 1,
    };
    let member = assignee(1);
    assert_eq!(assign(2, &[member], &[key]), [1, 1]);
}

/// Takes far less than a second even in an unoptimised build; quadratic work would take minutes.
#[test]
fn ten_thousand_partitions_over_a_hundred_members_are_assigned_at_once() {
    let members: Vec<_> = (1..=100).map(assignee).collect();
    let began = Instant::now();
    let first = assign(10_000, &members, &[]);
    let settled = carried_out(&first, &[], 200);
    let target = assign(10_000, &members[1..], &settled);
    assert!(began.elapsed().as_secs() < 2, "{:?}", began.elapsed());
    assert!(balanced(&members[1..], &loads(&members[1..], &target)));
}

//! Tests what a member of partitions knows, takes and gives up.

use super::*;
use crate::partitions::assignment::Assignee;
use crate::partitions::facts::Share;
use crate::partitions::keys::member_key;

const PREFIX: &[u8] = b"p/2/";
/// How long the member keeps a partition whose next owner is not ready.
const LIMIT: Duration = Duration::from_secs(20);

const EQUAL: Share = Share {
    aside: false,
    capacity: 1,
    center: None,
};

/// Readers for members with equal shares. The value of a member's key is its identity.
const EQUALLY: ShareReaders = ShareReaders {
    share: |_| EQUAL,
    identity: <[u8]>::to_vec,
    kept: |_| None,
};

fn reads(share: fn(&[u8]) -> Share) -> ShareReaders {
    ShareReaders { share, ..EQUALLY }
}

fn entry(key: Arc<[u8]>, create_revision: i64, lease: i64) -> Entry {
    Entry {
        key,
        value: (*b"").into(),
        create_revision,
        mod_revision: create_revision,
        lease,
    }
}

fn roster(revision: i64, entries: impl IntoIterator<Item = Entry>) -> Roster {
    let mut roster = Roster::new(PREFIX.into(), crate::kv::Reach::Children);
    roster.replace(revision, entries);
    roster
}

fn own(key: Arc<[u8]>, create_revision: i64) -> Own {
    Own {
        key,
        create_revision,
        lease: 7,
    }
}

fn member() -> (Membership, Own) {
    let partitions = PartitionSet {
        count: 2,
        family: (*b"p/").into(),
        tag: (*b"a").into(),
    };
    let member = Membership::new(partitions, LIMIT);
    (member, own(member_key(PREFIX, 7), 10))
}

fn alone(revision: i64, keys: impl IntoIterator<Item = (u32, i64)>) -> Roster {
    let keys = keys
        .into_iter()
        .map(|(p, since)| entry(partition_key(PREFIX, p), since, 7));
    roster(
        revision,
        keys.chain([entry(member_key(PREFIX, 7), 10, 7)])
            .collect::<Vec<_>>(),
    )
}

#[test]
fn a_member_key_under_another_lease_is_no_member() {
    let odd = [
        entry(member_key(PREFIX, 8), 3, 9),
        entry(member_key(PREFIX, 7), 4, 7),
    ];
    let members = facts(PREFIX, 2, roster(5, odd).by_key(), EQUALLY).members;
    let assignee = Assignee {
        absent: false,
        since: 4,
        lease: 7,
        capacity: 1,
        center: None,
    };
    assert_eq!(members, [assignee]);
}

#[test]
fn member_without_capacity_gives_up_all_unless_no_member_has_any() {
    let (mut member, me) = member();
    member.hold(0, 1, own(partition_key(PREFIX, 0), 12));
    let announced = |lease: i64, value: &[u8]| Entry {
        value: value.into(),
        ..entry(member_key(PREFIX, lease), lease + 3, lease)
    };
    let wants = |others: &[u8]| {
        let keys = [
            announced(7, b"aside"),
            announced(8, others),
            entry(partition_key(PREFIX, 0), 12, 7),
        ];
        let aside = |value: &[u8]| Share {
            aside: value == b"aside",
            ..EQUAL
        };
        let wants = member.wants(PREFIX, &me, &roster(20, keys), reads(aside), |_, _| {
            Shown::Standing
        });
        let slots: Vec<_> = wants.give_up.iter().map(|of| of.slot).collect();
        (slots, wants.take)
    };
    assert_eq!(wants(b""), (vec![1], vec![]));
    assert_eq!(
        wants(b"aside"),
        (vec![], vec![]),
        "the other one is the other's"
    );
}

#[test]
fn member_set_aside_could_take_a_partition_whose_work_here_goes_on() {
    let (mut member, me) = member();
    member.hold(0, 1, own(partition_key(PREFIX, 0), 12));
    let aside = |value: &[u8]| Share {
        aside: value == b"aside",
        ..EQUAL
    };
    let waiting = |others: Option<Entry>| {
        let keys = [entry(member_key(PREFIX, 7), 10, 7)].into_iter();
        let roster = roster(20, keys.chain(others).collect::<Vec<Entry>>());
        let wants: Wants = member.wants(PREFIX, &me, &roster, reads(aside), |_, _| Shown::Standing);
        wants.waiting
    };
    assert!(waiting(None).is_empty(), "nobody could take it");
    let other = Entry {
        value: (*b"aside").into(),
        ..entry(member_key(PREFIX, 8), 11, 8)
    };
    assert_eq!(waiting(Some(other)), [1]);
}

#[test]
fn share_of_a_member_is_read_from_its_announcement() {
    let read = |_: &[u8]| Share {
        aside: false,
        capacity: 3,
        center: Some(4),
    };
    let keys = [entry(member_key(PREFIX, 7), 10, 7)];
    let facts = facts(PREFIX, 2, roster(20, keys).by_key(), reads(read));
    let assignee = Assignee {
        absent: false,
        since: 10,
        lease: 7,
        capacity: 3,
        center: Some(4),
    };
    assert_eq!((facts.members, facts.live), (vec![assignee], 1));
}

#[test]
fn a_member_takes_as_many_as_its_announced_capacity_allows() {
    let (mut member, me) = member();
    member.partitions.count = 6;
    let announced = |lease: i64, value: &[u8]| Entry {
        value: value.into(),
        ..entry(member_key(PREFIX, lease), lease + 3, lease)
    };
    let read = |value: &[u8]| Share {
        capacity: u32::from(value[0] - b'0'),
        ..EQUAL
    };
    let takes = |own: &[u8], other: &[u8]| {
        let roster = roster(20, [announced(7, own), announced(8, other)]);
        let wants = member.wants(PREFIX, &me, &roster, reads(read), |_, _| Shown::Standing);
        wants.take.len()
    };
    let loads = [(b"1", b"1"), (b"2", b"1"), (b"1", b"5")].map(|(a, b)| takes(a, b));
    assert_eq!(loads, [3, 4, 1]);
}

#[test]
fn a_key_that_an_old_view_still_shows_is_not_adopted() {
    let (mut member, me) = member();
    member.hold(0, 1, own(partition_key(PREFIX, 0), 12));
    member.let_go(0);
    let old = member.wants(PREFIX, &me, &alone(12, [(0, 12)]), EQUALLY, |_, _| {
        Shown::Standing
    });
    assert_eq!((old.adopt, old.take), (vec![], vec![1]));
    assert_eq!(old.stray, [(0, 12)]);
    let newer = member.wants(PREFIX, &me, &alone(15, [(0, 14)]), EQUALLY, |_, _| {
        Shown::Standing
    });
    assert_eq!(newer.adopt, [(0, own(partition_key(PREFIX, 0), 14))]);
}

#[test]
fn a_key_that_is_being_deleted_is_neither_taken_nor_adopted() {
    let (member, me) = member();
    let going = |key: &[u8], _: Option<i64>| {
        if *key == *partition_key(PREFIX, 0) {
            Shown::Going
        } else {
            Shown::Standing
        }
    };
    let wants = member.wants(PREFIX, &me, &alone(12, [(0, 11)]), EQUALLY, going);
    assert_eq!((wants.adopt, wants.take), (vec![], vec![1]));
    let wants = member.wants(PREFIX, &me, &alone(12, []), EQUALLY, going);
    assert_eq!(wants.take, [1]);
}

#[test]
fn partition_taken_by_others_is_retried_only_once_the_view_shows_it() {
    let (mut member, me) = member();
    member.refuse(0, 20, 12);
    let take = |member: &Membership, revision| {
        member
            .wants(PREFIX, &me, &alone(revision, []), EQUALLY, |_, _| {
                Shown::Standing
            })
            .take
    };
    assert_eq!(take(&member, 12), [1]);
    assert_eq!(take(&member, 20), [0, 1]);
    member.judge(
        PREFIX,
        &Change::Delete {
            key: partition_key(PREFIX, 0),
            revision: 15,
        },
    );
    assert_eq!(take(&member, 15), [0, 1]);
    member.refuse(1, 20, 20);
    assert_eq!(take(&member, 20), [0, 1], "seen already");
}

#[test]
fn own_key_without_a_lease_is_deleted_unless_the_store_changed() {
    let (mut member, me) = member();
    member.hold(0, 1, own(partition_key(PREFIX, 0), 12));
    member.lease_lost();
    member.let_go(0);
    let left = [
        entry(member_key(PREFIX, 7), 10, 7),
        entry(partition_key(PREFIX, 0), 12, 0),
        entry(partition_key(PREFIX, 1), 12, 0),
    ];
    let wants = |member: &Membership| {
        let wants = member.wants(PREFIX, &me, &roster(20, left.clone()), EQUALLY, |_, _| {
            Shown::Standing
        });
        (wants.stray, wants.blocked)
    };
    assert_eq!(wants(&member), (vec![(0, 12)], [1].into()));
    member.store_changed();
    assert_eq!(wants(&member), (vec![], [0, 1].into()));
}

#[test]
fn partition_whose_work_outlives_its_store_is_left_to_others() {
    let (mut member, me) = member();
    // Created in the former store at a revision that the present one has not reached.
    member.hold(0, 1, own(partition_key(PREFIX, 0), 90));
    member.lease_lost();
    member.store_changed();
    let members = [
        entry(member_key(PREFIX, 7), 10, 7),
        entry(member_key(PREFIX, 8), 11, 8),
        entry(partition_key(PREFIX, 1), 12, 8),
    ];
    let wants = member.wants(PREFIX, &me, &roster(20, members), EQUALLY, |_, _| {
        Shown::Standing
    });
    assert_eq!(
        (wants.lost, wants.waiting),
        (vec![(1, Fate::Gone)], vec![1])
    );
}

#[test]
fn key_that_a_restore_brings_back_is_deleted_and_never_ours_again() {
    let (member, me) = member();
    let roster = alone(20, [(0, 12)]);
    let wants = member.wants(PREFIX, &me, &roster, EQUALLY, |_, _| Shown::Back);
    assert_eq!((wants.stray, wants.adopt), (vec![(0, 12)], vec![]));
    let wants = member.wants(PREFIX, &me, &roster, EQUALLY, |_, _| Shown::Going);
    assert_eq!((wants.stray, wants.adopt), (vec![], vec![]));
}

#[test]
fn a_key_younger_than_the_view_is_not_judged_by_it() {
    let (mut member, me) = member();
    member.hold(0, 1, own(partition_key(PREFIX, 0), 12));
    let wants = |revision| {
        member.wants(PREFIX, &me, &alone(revision, []), EQUALLY, |_, _| {
            Shown::Standing
        })
    };
    assert_eq!(wants(11).lost, []);
    assert_eq!(wants(12).lost, [(1, Fate::Gone)]);
}

#[test]
fn a_partition_of_another_member_is_coming_until_it_is_held() {
    let (mut member, me) = member();
    let roster_of = |keys: &[(u32, i64, i64)]| {
        let of_member = |lease: i64| entry(member_key(PREFIX, lease), lease + 3, lease);
        let owned = keys.iter().map(|(partition, since, lease)| {
            entry(partition_key(PREFIX, *partition), *since, *lease)
        });
        roster(20, owned.chain([7, 8].map(of_member)).collect::<Vec<_>>())
    };
    let coming = |member: &Membership, keys: &[(u32, i64, i64)]| {
        let wants = member.wants(PREFIX, &me, &roster_of(keys), EQUALLY, |_, _| {
            Shown::Standing
        });
        (Vec::from_iter(wants.coming), wants.take)
    };
    assert_eq!(coming(&member, &[]), (vec![], vec![0]), "nobody's");
    assert!(coming(&member, &[(0, 12, 0)]).0.is_empty(), "blocked");
    let both = [(0, 12, 8), (1, 13, 8)];
    assert_eq!(coming(&member, &both), (vec![1], vec![]));
    assert_eq!(member.news_of_coming([1].into()), Some([1].into()));
    assert_eq!(member.news_of_coming([1].into()), None);
    assert_eq!(coming(&member, &both[..1]), (vec![1], vec![1]), "free");
    member.hold(1, 5, own(partition_key(PREFIX, 1), 15));
    assert!(coming(&member, &both[..1]).0.is_empty(), "its work goes on");
    let taken = [(0, 12, 8), (1, 15, 7)];
    assert_eq!(coming(&member, &taken), (vec![], vec![]));
}

#[test]
fn a_kept_partition_has_one_limit_for_as_long_as_others_should_own_it() {
    let (mut member, _) = member();
    let of = |partition| Move {
        partition,
        slot: u64::from(partition),
        to: 8,
    };
    let at = |seconds| Time::ZERO.after(Duration::from_secs(seconds));
    let limit = at(20);
    let mut give_up = |moves: &[Move], now| member.give_up_now(moves, now, |of| of.to == 8);
    assert_eq!(give_up(&[of(0)], at(0)), (vec![], Some(limit)));
    let two = [of(0), Move { to: 9, ..of(1) }];
    assert_eq!(give_up(&two, at(19)), (vec![1], Some(limit)));
    let two = [of(0), of(1)];
    assert_eq!(give_up(&two, at(20)), (vec![0], Some(at(39))));
    assert_eq!(give_up(&[], at(21)), (vec![], None));
    assert_eq!(give_up(&[of(0)], at(22)), (vec![], Some(at(42))));
}

#[test]
fn a_key_of_our_earlier_lease_is_not_coming() {
    let (mut member, _) = member();
    member.hold(1, 5, own(partition_key(PREFIX, 1), 15));
    member.lease_lost();
    member.let_go(1);
    let me = Own {
        lease: 9,
        ..own(member_key(PREFIX, 9), 30)
    };
    let coming = |since| {
        let keys = [
            entry(member_key(PREFIX, 8), 11, 8),
            entry(member_key(PREFIX, 9), 30, 9),
            entry(partition_key(PREFIX, 0), 12, 8),
            entry(partition_key(PREFIX, 1), since, 7),
        ];
        let wants = member.wants(PREFIX, &me, &roster(40, keys), EQUALLY, |_, _| {
            Shown::Standing
        });
        Vec::from_iter(wants.coming)
    };
    assert!(coming(15).is_empty());
    assert_eq!(coming(31), [1], "another program's");
}

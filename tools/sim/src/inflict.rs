//! Makes the faults of a plan happen, and what its users and operators do.

use std::sync::Arc;
use std::time::Duration;

use crate::kind::Kind;
use crate::plan::{COUNT, Fault, HELD};
use crate::world::cluster::ELECTIONS;
use crate::world::partitions::prefix_of;
use crate::world::store::{Key, Write};
use crate::world::{Fate, Forbidden, Rule, World};
use eldest_core::action::{Ask, Class};
use eldest_core::kv::Reach;
use eldest_core::reason::LostReason;

/// The node stands wherever it does not, or looks on if that is what it is there for.
pub(crate) fn stand_again(w: &mut World, node: usize) {
    if w.nodes[node].paused {
        return;
    }
    if w.nodes[node].closed() {
        w.kill(node);
    }
    if w.nodes[node].looks_at.is_some() {
        w.look_on(node);
        return;
    }
    w.command(node, move |w| {
        let follow = w.nodes[node].follow;
        for election in ELECTIONS {
            w.stand(node, election, follow, true);
        }
        if w.shares {
            w.share(node, COUNT);
        }
    });
}

/// The next request of that kind meets that fate.
fn befalls(w: &mut World, node: usize, what: fn(&Ask) -> bool, fate: Fate) {
    w.rules.retain(|rule| rule.times > 0);
    w.rules.push(Rule {
        node,
        what,
        fate,
        times: 1,
    });
}

fn asks_for(dice: u64) -> fn(&Ask) -> bool {
    match dice % 4 {
        0 => |ask| matches!(ask, Ask::Join { .. }),
        1 => |ask| matches!(ask, Ask::Grant { .. }),
        2 => |ask| matches!(ask, Ask::Delete { .. }),
        _ => |_| true,
    }
}

pub(crate) fn inflict(w: &mut World, fault: Fault) {
    let Fault {
        node,
        lasts,
        dice,
        kind,
        ..
    } = fault;
    let election = ELECTIONS[fault.election];
    let own = own_act(kind);
    let meddling = kind.meddles() || kind == Kind::Foreign;
    if (w.nodes[node].paused && own) || (w.store.headless.is_some() && meddling) {
        return;
    }
    let leads = w.leader(election) == Some(node);
    let counted = w.faults.entry(kind).or_default();
    *counted = (counted.0 + 1, counted.1 + u64::from(leads));
    w.says(Some(node), || format!("FAULT: {kind:?} for {lasts:?}"));
    match kind {
        Kind::Cut => {
            w.relink(node, |l| (l.requests_lost, l.answers_lost) = (true, true));
            heal(w, node, lasts, |l| {
                (l.requests_lost, l.answers_lost) = (false, false);
            });
        }
        Kind::RequestsLost => {
            w.relink(node, |l| l.requests_lost = true);
            heal(w, node, lasts, |l| l.requests_lost = false);
        }
        Kind::AnswersLost => {
            w.relink(node, |l| l.answers_lost = true);
            heal(w, node, lasts, |l| l.answers_lost = false);
        }
        Kind::RequestsLate => {
            // The last of them arrives before everything is healed.
            let short = lasts / 2;
            w.relink(node, |l| l.late = Some(short));
            heal(w, node, short, |l| l.late = None);
        }
        Kind::AnswersTwice => {
            w.relink(node, |l| l.twice = true);
            heal(w, node, lasts, |l| l.twice = false);
        }
        Kind::AnswerLostOnce => befalls(w, node, asks_for(dice), Fate::AnswerLost),
        Kind::DeleteLate => {
            let deletes: fn(&Ask) -> bool = |ask| matches!(ask, Ask::Delete { .. });
            befalls(w, node, deletes, Fate::Late(lasts / 2));
            w.after(lasts / 2, move |w| w.rules.retain(|r| r.node != node));
        }
        Kind::Fading => {
            let slow = lasts / 4;
            w.relink(node, |l| l.slow = true);
            w.after(slow, move |w| {
                w.relink(node, |l| {
                    (l.slow, l.requests_lost, l.answers_lost) = (false, true, true);
                });
            });
            heal(w, node, lasts, |l| {
                (l.requests_lost, l.answers_lost) = (false, false);
            });
        }
        Kind::Refused => {
            let class = [Class::Backoff, Class::Auth, Class::Retry][(dice >> 8) as usize % 3];
            befalls(w, node, asks_for(dice), Fate::Refused(class));
        }
        Kind::WatchesStalled => {
            w.relink(node, |l| l.watches_stalled = true);
            heal(w, node, lasts, |l| l.watches_stalled = false);
        }
        Kind::WatchesDead => {
            let n = &mut w.nodes[node];
            n.dead_watches = Some(n.watch_generation);
        }
        Kind::WatchesRefused => {
            forbid_watches(w, node, (election, dice % 2 == 0), lasts);
            w.disturb_watches(node, dice % 4 < 2);
        }
        Kind::NotPermitted => {
            w.relink(node, |l| l.not_permitted = true);
            forbid_watches(w, node, (b"", false), lasts);
            heal(w, node, lasts, |l| l.not_permitted = false);
        }
        Kind::WatchesCanceled => w.disturb_watches(node, false),
        Kind::Compacted => {
            w.relink(node, |l| l.watches_stalled = true);
            w.after(lasts, move |w| {
                w.compact(node);
                w.relink(node, |l| l.watches_stalled = false);
            });
        }
        Kind::StreamBroken => w.disturb_watches(node, true),
        Kind::LeaderChange => change_leader(w),
        Kind::Deposed => {
            let old = w.store.term;
            change_leader(w);
            w.relink(node, |l| l.stale = Some(old));
            heal(w, node, lasts, |l| l.stale = None);
        }
        Kind::StaleRevocation => {
            change_leader(w);
            if let Some(lease) = w.nodes[node].lease() {
                w.after(lasts, move |w| {
                    if w.store.headless.is_none() {
                        w.says(None, || format!("etcd: its old leader revokes {lease:x}"));
                        w.revoke(lease);
                    }
                });
            }
        }
        Kind::QuorumLost => lose_quorum(w, lasts, dice),
        Kind::Pause => w.pause(node, lasts),
        Kind::Suspend => {
            // Where there is no timer that counts the suspend, the thread that wakes the driver looks once a second.
            let most = if w.cost.is_zero() { 1 } else { 1_000_000 };
            w.suspend(node, lasts, Duration::from_micros(dice % most));
        }
        Kind::Kill => {
            w.kill(node);
            stand_again(w, node);
        }
        Kind::Clone => {
            w.kill(node);
            w.relink(node, |l| l.same_ids = true);
            stand_again(w, node);
            heal(w, node, lasts, |l| l.same_ids = false);
        }
        Kind::Leave => {
            w.leave(node, election);
            return_after(w, node, lasts);
        }
        Kind::Return => {
            w.leave(node, election);
            stand_again(w, node);
        }
        Kind::Resign => {
            w.end(node, election, LostReason::Resigned);
            return_after(w, node, lasts);
        }
        Kind::StepDown => w.end(node, election, LostReason::SteppedDown),
        Kind::Stall => w.end(node, election, LostReason::Stalled),
        Kind::Unwell => {
            w.hold_back(node, election, true);
            w.after(lasts, move |w| w.hold_back(node, election, false));
        }
        Kind::ShutDown => {
            w.end(node, election, LostReason::Shutdown);
            return_after(w, node, lasts);
        }
        Kind::Drop => {
            w.drop_leadership(node, election);
            return_after(w, node, lasts);
        }
        Kind::Close => {
            w.close(node);
            return_after(w, node, lasts);
        }
        Kind::Proclaim => proclaim(w, fault),
        Kind::Look => {
            let reach = [Reach::Children, Reach::Everything][dice as usize % 2];
            if let Some(slot) = w.look(node, election, reach) {
                w.after(lasts, move |w| w.look_away(node, slot));
            }
        }
        Kind::Acquire | Kind::Try => w.command(node, move |w| {
            w.acquire(node, HELD[fault.election], kind == Kind::Try);
        }),
        Kind::Release => w.release(node, HELD[fault.election]),
        Kind::GiveUp => w.give_up(node, HELD[fault.election]),
        Kind::Unshare => {
            w.leave(node, &prefix_of(COUNT));
            return_after(w, node, lasts);
        }
        Kind::DropOwned => {
            let owned = w.nodes[node].valid_terms(w.now);
            let owned = owned.map(|t| Arc::clone(&t.prefix));
            let mut owned = owned.filter(|key| key.starts_with(&prefix_of(COUNT)));
            if let Some(key) = owned.next() {
                drop(owned);
                w.drop_leadership(node, &key);
            }
        }
        Kind::DeleteHeld => {
            let prefix = if w.shares {
                prefix_of(COUNT)
            } else {
                HELD[fault.election].into()
            };
            let keys = w.store.queue(&prefix);
            if let Some(entry) = keys.get(dice as usize % keys.len().max(1)) {
                w.delete(&entry.key);
            }
        }
        Kind::Delete | Kind::Recreate | Kind::Overwrite | Kind::Revoke => {
            meddle(w, kind, node, election, dice);
        }
        Kind::Foreign => foreign(w, election, lasts, dice),
        Kind::Denied => befalls(w, node, asks_for(dice), Fate::Refused(for_good(dice))),
        Kind::DeniedLater => {
            let fate = Fate::RefusedLater(for_good(dice));
            befalls(w, node, |ask| matches!(ask, Ask::Join { .. }), fate);
        }
        Kind::RefusedDone => {
            let (what, class) = refused_done(dice);
            befalls(w, node, what, Fate::RefusedLater(class));
        }
        Kind::Twins => twins(w, election, lasts),
        Kind::Restored => {
            let backup = w.store.clone();
            let bump = [0, 1000][(dice >> 8) as usize % 2];
            if (dice >> 9) % 2 == 1 {
                // What an onlooker opens anew is read from the one store and watched in the other.
                let looks = w.nodes.iter().position(|n| n.looks_at.is_some());
                let node = looks.unwrap_or(node);
                let before = Duration::from_millis(64 + (dice >> 16) % 128);
                w.after(lasts.saturating_sub(before), move |w| {
                    w.relink(node, |l| l.opening = Duration::from_millis(128));
                    w.disturb_watches(node, true);
                });
                heal(w, node, lasts, |l| l.opening = Duration::ZERO);
            }
            w.after(lasts, move |w| {
                if w.store.headless.is_none() {
                    w.restore(&backup, bump);
                }
            });
        }
    }
}

/// A candidate announces four values, in half of the stories the one who leads. The first write may come late, after newer
/// ones, or its answer be lost.
fn proclaim(w: &mut World, fault: Fault) {
    let Fault { lasts, dice, .. } = fault;
    let election = ELECTIONS[fault.election];
    let leader = w.leader(election).filter(|_| dice.is_multiple_of(2));
    let node = leader.unwrap_or(fault.node);
    let proclaims: fn(&Ask) -> bool = |ask| matches!(ask, Ask::Proclaim { .. });
    match (dice >> 8) % 4 {
        0 => befalls(w, node, proclaims, Fate::Late(lasts / 2)),
        1 => befalls(w, node, proclaims, Fate::AnswerLost),
        _ => {}
    }
    for after in 0..4 {
        w.after(lasts / 4 * after, move |w| w.announce(node, election));
    }
}

/// etcd opens no watches of a node below that prefix, which may be readable.
fn forbid_watches(
    w: &mut World,
    node: usize,
    (prefix, readable): (&'static [u8], bool),
    lasts: Duration,
) {
    w.forbidden.push(Forbidden {
        node,
        prefix: prefix.into(),
        readable,
    });
    w.after(lasts, move |w| {
        let healed = |f: &Forbidden| f.node == node && *f.prefix == *prefix;
        w.forbidden.retain(|f| !healed(f));
    });
}

/// A class of refusals that another attempt does not mend.
fn for_good(dice: u64) -> Class {
    [Class::Denied, Class::Invalid][(dice >> 8) as usize % 2]
}

/// What etcd may have done though it is answered by a refusal, and by which class. Of a join, a later page of the same
/// operation is refused for any reason; of everything else, the answer is refused here, because it is too large.
fn refused_done(dice: u64) -> (fn(&Ask) -> bool, Class) {
    let joins: fn(&Ask) -> bool = |ask| matches!(ask, Ask::Join { .. });
    let classes = [Class::Backoff, Class::Auth, Class::Denied, Class::Invalid];
    match dice % 6 {
        0 => (joins, classes[(dice >> 8) as usize % 4]),
        1 => (
            |ask| matches!(ask, Ask::Delete { .. } | Ask::Release { .. }),
            Class::Invalid,
        ),
        2 => (
            |ask| matches!(ask, Ask::Take { .. } | Ask::Proclaim { .. }),
            Class::Invalid,
        ),
        3 => (
            |ask| matches!(ask, Ask::Grant { .. } | Ask::Revoke { .. }),
            Class::Invalid,
        ),
        4 => (
            |ask| {
                matches!(
                    ask,
                    Ask::List { .. } | Ask::Older { .. } | Ask::Sweep { .. }
                )
            },
            Class::Invalid,
        ),
        _ => (|_| true, Class::Invalid),
    }
}

/// Two keys with one create revision stand in an election, and go one after the other.
fn twins(w: &mut World, election: &[u8], lasts: Duration) {
    if w.store.headless.is_some() {
        return;
    }
    let names = [b"twin-a", b"twin-b"].map(|name| Key::from([election, name].concat()));
    w.store.write(names.each_ref().map(|key| Write::Put {
        key: Arc::clone(key),
        value: (*b"").into(),
        lease: 0,
    }));
    w.publish();
    for (key, after) in names.into_iter().zip([lasts / 2, lasts]) {
        w.after(after, move |w| {
            w.store.delete(&key);
            w.publish();
        });
    }
}

/// Whether the process must run for it.
fn own_act(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Pause
            | Kind::Suspend
            | Kind::Leave
            | Kind::Return
            | Kind::Resign
            | Kind::StepDown
            | Kind::Stall
            | Kind::Unwell
            | Kind::ShutDown
            | Kind::Drop
            | Kind::Close
            | Kind::Proclaim
            | Kind::Look
            | Kind::Acquire
            | Kind::Try
            | Kind::Release
            | Kind::GiveUp
            | Kind::Unshare
            | Kind::DropOwned
    )
}

fn heal(w: &mut World, node: usize, lasts: Duration, heal: fn(&mut crate::world::node::Link)) {
    w.after(lasts, move |w| w.relink(node, heal));
}

pub(crate) fn return_after(w: &mut World, node: usize, lasts: Duration) {
    w.after(lasts, move |w| stand_again(w, node));
}

fn change_leader(w: &mut World) {
    let now = w.now;
    w.says(None, || "etcd: another member leads".to_owned());
    w.store.change_leader(now);
}

fn lose_quorum(w: &mut World, lasts: Duration, dice: u64) {
    if w.store.headless.is_some() {
        return;
    }
    w.store.headless = Some(w.now);
    w.says(None, || "etcd: quorum is lost".to_owned());
    w.after(lasts, move |w| {
        w.says(None, || "etcd: quorum is back".to_owned());
        w.store.headless = None;
        if dice.is_multiple_of(2) {
            change_leader(w);
        }
    });
}

fn meddle(w: &mut World, kind: Kind, node: usize, election: &[u8], dice: u64) {
    let lease = w.nodes[node].lease();
    let key = w.nodes[node].key(election);
    let key = key.filter(|key| w.store.keys.contains_key(key));
    match (kind, key, lease) {
        (Kind::Delete, Some(key), _) => w.delete(&key),
        (Kind::Recreate, Some(key), Some(lease)) => {
            let lease = if dice.is_multiple_of(2) { 0 } else { lease };
            w.recreate(&key, lease);
        }
        (Kind::Overwrite, Some(key), _) => w.overwrite(&key),
        (Kind::Revoke, _, Some(lease)) => w.revoke(lease),
        _ => {}
    }
}

/// Somebody who knows nothing of the library stands in the queue for a while.
fn foreign(w: &mut World, election: &[u8], lasts: Duration, dice: u64) {
    let mut key = election.to_vec();
    key.extend_from_slice(format!("foreign-{dice:x}").as_bytes());
    let key: Key = key.into();
    w.store.put(&key, b"", 0);
    w.publish();
    let key = Arc::clone(&key);
    w.after(lasts, move |w| {
        w.store.delete(&key);
        w.publish();
    });
}

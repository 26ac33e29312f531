//! Carries out the faults of a plan, and the actions of its users and operators.

mod challenges;
mod guarded;
mod requests;

use std::sync::Arc;
use std::time::Duration;

use crate::kind::Kind;
use crate::plan::{COUNT, Fault, HELD};
use crate::world::cluster::{ELECTIONS, GROUP};
use crate::world::home::{Home, MARKS};
use crate::world::node::{Link, Node};
use crate::world::partitions::{is_record, prefix_of};
use crate::world::store::Key;
use crate::world::store::limits::Size;
use crate::world::{Fate, Forbidden, World};
use eldest_core::action::Ask;
use eldest_core::kv::Reach;
use eldest_core::reason::LostReason;

/// How long a share may be kept: longer than any story.
const KEPT: Duration = Duration::from_secs(3600);

/// Lets the node join every election in which it is no candidate, or observe if that is its role.
pub(crate) fn rejoin(w: &mut World, node: usize) {
    if w.nodes[node].paused {
        return;
    }
    if w.nodes[node].closed() {
        w.kill(node);
    }
    if w.nodes[node].observes() {
        w.start_observing(node);
        return;
    }
    w.command(node, move |w| {
        let follow = w.nodes[node].member.follow;
        for election in ELECTIONS {
            w.join(node, election, follow, true);
        }
        if w.has_partitions() {
            w.join_partitions(node, COUNT);
        }
        if w.plan.grouped {
            w.join_group(node, GROUP);
        }
    });
}

pub(crate) fn inflict(w: &mut World, fault: Fault) {
    let (node, kind, lasts) = (fault.node, fault.kind, fault.lasts);
    let meddling = kind.meddles() || kind == Kind::Foreign;
    if (w.nodes[node].paused && kind.is_own_act()) || (w.store.headless.is_some() && meddling) {
        return;
    }
    let leads = w.leader(ELECTIONS[fault.election]) == Some(node);
    let counted = w.tally.faults.entry(kind).or_default();
    *counted = (counted.0 + 1, counted.1 + u64::from(leads));
    w.says(Some(node), || format!("FAULT: {kind:?} for {lasts:?}"));
    on_nodes(w, fault);
    if comes_back(kind) {
        return_after(w, node, lasts);
    }
}

/// Makes faults at a node's link to etcd, its watches and its process, and by its user in one election. Each such function leaves
/// other kinds to the next one.
fn on_nodes(w: &mut World, fault: Fault) {
    let (node, kind, lasts) = (fault.node, fault.kind, fault.lasts);
    let election = ELECTIONS[fault.election];
    match kind {
        Kind::Cut => for_a_while(w, node, lasts, |l, on| {
            (l.requests_lost, l.answers_lost) = (on, on);
        }),
        Kind::RequestsLost => for_a_while(w, node, lasts, |l, on| l.requests_lost = on),
        Kind::AnswersLost => for_a_while(w, node, lasts, |l, on| l.answers_lost = on),
        Kind::RequestsLate => {
            // The last message arrives before all faults end.
            let short = lasts / 2;
            w.relink(node, |l| l.late = Some(short));
            heal(w, node, short, |l| l.late = None);
        }
        Kind::WatchesStalled => for_a_while(w, node, lasts, |l, on| l.watches_stalled = on),
        Kind::WatchesCanceled => w.disturb_watches(node, false),
        Kind::StreamBroken => w.disturb_watches(node, true),
        Kind::Deposed => depose(w, node, lasts),
        Kind::Pause => w.pause(node, lasts),
        Kind::Leave => w.leave(node, election),
        Kind::Resign => w.end(node, election, LostReason::Resigned),
        Kind::StepDown => w.end(node, election, LostReason::SteppedDown),
        Kind::Stall => w.end(node, election, LostReason::Stalled),
        Kind::Unwell => {
            w.hold_back(node, election, true);
            w.after(lasts, move |w| w.hold_back(node, election, false));
        }
        Kind::ShutDown => w.end(node, election, LostReason::Shutdown),
        Kind::Drop => w.drop_leadership(node, election),
        Kind::Close => w.close(node),
        _ => on_links(w, fault),
    }
}

/// Makes messages arrive twice, or slowly before they are lost.
fn on_links(w: &mut World, fault: Fault) {
    let (node, lasts) = (fault.node, fault.lasts);
    match fault.kind {
        Kind::AnswersTwice => for_a_while(w, node, lasts, |l, on| l.twice = on),
        Kind::Fading => {
            w.relink(node, |l| l.slow = true);
            heal(w, node, lasts / 4, |l| {
                (l.slow, l.requests_lost, l.answers_lost) = (false, true, true);
            });
            heal(w, node, lasts, |l| {
                (l.requests_lost, l.answers_lost) = (false, false);
            });
        }
        _ => requests::on_requests(w, fault),
    }
}

/// Makes watches die, be refused or miss too much.
fn on_watches(w: &mut World, fault: Fault) {
    let (node, lasts, dice) = (fault.node, fault.lasts, fault.dice);
    match fault.kind {
        Kind::WatchesDead => {
            let n = &mut w.nodes[node];
            n.dead_watches = Some(n.watch_generation);
        }
        Kind::WatchesRefused => {
            let election = ELECTIONS[fault.election];
            forbid_watches(w, node, (election, dice % 2 == 0), lasts);
            w.disturb_watches(node, dice % 4 < 2);
        }
        Kind::NotPermitted => {
            w.relink(node, |l| l.not_permitted = true);
            forbid_watches(w, node, (b"", false), lasts);
            heal(w, node, lasts, |l| l.not_permitted = false);
        }
        Kind::MarksDenied => {
            forbid_watches(w, node, (MARKS, false), lasts);
            w.disturb_watches(node, dice % 2 == 0);
        }
        Kind::Compacted => {
            w.relink(node, |l| l.watches_stalled = true);
            w.after(lasts, move |w| {
                w.compact(node);
                w.relink(node, |l| l.watches_stalled = false);
            });
        }
        _ => on_etcd(w, fault),
    }
}

/// Makes etcd change its leader, lose its quorum, be restored from a backup, accept only small transactions or end
/// leases slowly.
fn on_etcd(w: &mut World, fault: Fault) {
    let (node, lasts, dice) = (fault.node, fault.lasts, fault.dice);
    match fault.kind {
        Kind::LeaderChange => change_leader(w),
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
        Kind::Restored => restore(w, fault),
        Kind::TooLarge => {
            let number = dice as usize / 2 % 4 + 1;
            let size = match dice % 2 {
                0 => Size::Operations(number),
                _ => Size::Bytes(number * 32),
            };
            w.store.limits.refuse_above(size, w.now.after(lasts));
        }
        Kind::SlowEnds => {
            let by_key = Duration::from_millis((dice % 16 + 1) * 20);
            w.store.limits.slow_down_ends(by_key, w.now.after(lasts));
        }
        _ => on_keys(w, fault),
    }
}

/// Lets another client write and delete below our prefixes.
fn on_keys(w: &mut World, fault: Fault) {
    let (node, lasts, dice, kind) = (fault.node, fault.lasts, fault.dice, fault.kind);
    let election = ELECTIONS[fault.election];
    match kind {
        Kind::Delete | Kind::Recreate | Kind::Overwrite | Kind::Revoke => {
            meddle(w, kind, node, election, dice);
        }
        Kind::DeleteHeld => {
            let prefix = if w.has_partitions() {
                prefix_of(COUNT)
            } else {
                HELD[fault.election].into()
            };
            let mut keys = w.store.queue(&prefix);
            // The records of kept shares end with their leases.
            keys.retain(|entry| !is_record(&prefix, entry));
            if let Some(entry) = keys.get(dice as usize % keys.len().max(1)) {
                w.delete(&entry.key);
            }
        }
        Kind::Evacuate if w.nodes[fault.node].member.home == Home::Nowhere => {
            w.order_step_down(election, fault.lasts);
        }
        Kind::Evacuate => evacuate(w, fault),
        Kind::VersionRemoved => w.remove_version(election),
        Kind::Foreign => foreign(w, election, lasts, dice),
        Kind::Twins => twins(w, election, lasts),
        _ => on_processes(w, fault),
    }
}

/// Suspends or kills a process.
fn on_processes(w: &mut World, fault: Fault) {
    let (node, lasts) = (fault.node, fault.lasts);
    match fault.kind {
        Kind::Suspend => {
            // Without a timer that counts the suspension, the thread that wakes the driver checks once a second.
            let most = if w.plan.cost.is_zero() { 1 } else { 1_000_000 };
            w.suspend(node, lasts, Duration::from_micros(fault.dice % most));
        }
        Kind::Kill => {
            w.kill(node);
            rejoin(w, node);
        }
        Kind::KeptShare => {
            // Kept into the calm, for a while, or for an identity that nobody has any more.
            let case = fault.dice % 3;
            let ttl = if case == 0 { KEPT } else { lasts };
            w.keep_share(node, COUNT, ttl);
            w.kill(node);
            if case == 2 {
                w.nodes[node].identity = w.unused_identity();
            }
            if (fault.dice >> 8).is_multiple_of(2) {
                rejoin(w, node);
            } else {
                return_after(w, node, lasts / 2);
            }
        }
        Kind::GuardRevokes => {
            // The guard may notice the death at once.
            let wait = [Duration::ZERO, lasts, lasts][fault.dice as usize % 3];
            w.die_guarded(node, wait);
            rejoin(w, node);
        }
        Kind::Clone => {
            w.kill(node);
            w.relink(node, |l| l.same_ids = true);
            rejoin(w, node);
            heal(w, node, lasts, |l| l.same_ids = false);
        }
        _ => on_candidates(w, fault),
    }
}

/// Makes a candidate leave and rejoin, announce values, or observe.
fn on_candidates(w: &mut World, fault: Fault) {
    let (node, lasts) = (fault.node, fault.lasts);
    let election = ELECTIONS[fault.election];
    match fault.kind {
        Kind::Return => {
            w.leave(node, election);
            rejoin(w, node);
        }
        Kind::Proclaim => proclaim(w, fault),
        Kind::Look => {
            let reach = [Reach::Children, Reach::Everything][fault.dice as usize % 2];
            if let Some(slot) = w.observe_prefix(node, election, reach) {
                w.after(lasts, move |w| w.stop_observing(node, slot));
            }
        }
        _ => on_holders(w, fault),
    }
}

/// Makes a node acquire or release a lock, or its share of the partitions.
fn on_holders(w: &mut World, fault: Fault) {
    let (node, kind) = (fault.node, fault.kind);
    let lock = HELD[fault.election];
    match kind {
        Kind::Acquire | Kind::Try => {
            let at_once = kind == Kind::Try;
            let shares = w.plan.readers && lock == HELD[0] && fault.dice.is_multiple_of(2);
            w.command(node, move |w| {
                w.acquire_as(node, lock, at_once, shares);
            });
        }
        Kind::Release => w.release(node, lock),
        Kind::GiveUp => w.give_up(node, lock),
        Kind::LeavePartitions => {
            w.leave(node, &prefix_of(COUNT));
            return_after(w, node, fault.lasts);
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
        _ => challenges::on_challenges(w, fault),
    }
}

/// Resets etcd to its present state, in half of the stories with revisions above all that were handed out.
fn restore(w: &mut World, fault: Fault) {
    let (lasts, dice) = (fault.lasts, fault.dice);
    let backup = w.store.clone();
    let bump = [0, 1000][(dice >> 8) as usize % 2];
    if (dice >> 9) % 2 == 1 {
        // An observer's next view is read from the one store and watched in the other.
        let looks = w.nodes.iter().position(Node::observes);
        let node = looks.unwrap_or(fault.node);
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

/// Makes a candidate announce four values, in half of the stories the leader. The first write may come late, after
/// newer ones, or its answer be lost.
fn proclaim(w: &mut World, fault: Fault) {
    let (lasts, dice) = (fault.lasts, fault.dice);
    let election = ELECTIONS[fault.election];
    let leader = w.leader(election).filter(|_| dice.is_multiple_of(2));
    let node = leader.unwrap_or(fault.node);
    let proclaims: fn(&Ask) -> bool = |ask| matches!(ask, Ask::Proclaim { .. });
    match (dice >> 8) % 4 {
        0 => w.next(node, proclaims, Fate::Late(lasts / 2)),
        1 => w.next(node, proclaims, Fate::AnswerLost),
        _ => {}
    }
    for after in 0..4 {
        w.after(lasts / 4 * after, move |w| w.announce(node, election));
    }
}

/// Makes etcd refuse a node's watches below that prefix for a while.
fn forbid_watches(
    w: &mut World,
    node: usize,
    (prefix, readable): (&'static [u8], bool),
    lasts: Duration,
) {
    w.forbid(node, prefix, readable);
    w.after(lasts, move |w| {
        let healed = |f: &Forbidden| f.node == node && *f.prefix == *prefix;
        w.forbidden.retain(|f| !healed(f));
    });
}

/// Puts two keys with one create revision into an election, and deletes them one after the other.
fn twins(w: &mut World, election: &[u8], lasts: Duration) {
    if w.store.headless.is_some() {
        return;
    }
    let names = [b"twin-a", b"twin-b"].map(|name| Key::from([election, name].concat()));
    put_for_a_while(w, &names, [lasts / 2, lasts]);
}

/// Returns true if the node is a candidate again after the fault.
fn comes_back(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Leave | Kind::Resign | Kind::ShutDown | Kind::Drop | Kind::Close
    )
}

fn for_a_while(w: &mut World, node: usize, lasts: Duration, set: fn(&mut Link, bool)) {
    w.relink(node, |l| set(l, true));
    w.after(lasts, move |w| w.relink(node, |l| set(l, false)));
}

fn heal(w: &mut World, node: usize, lasts: Duration, heal: fn(&mut Link)) {
    w.after(lasts, move |w| w.relink(node, heal));
}

pub(crate) fn return_after(w: &mut World, node: usize, lasts: Duration) {
    w.after(lasts, move |w| rejoin(w, node));
}

fn change_leader(w: &mut World) {
    let now = w.now;
    w.says(None, || "etcd: another member leads".to_owned());
    w.store.change_leader(now);
}

/// Changes etcd's leader, and sends this node's renewals to the old one.
fn depose(w: &mut World, node: usize, lasts: Duration) {
    let old = w.store.term;
    change_leader(w);
    w.relink(node, |l| l.stale = Some(old));
    heal(w, node, lasts, |l| l.stale = None);
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
    let key = key.filter(|key| w.store.contains(key));
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

/// Evacuates the node's data centre, or lifts the mark. A mark that is not lifted stays until another order.
fn evacuate(w: &mut World, fault: Fault) {
    let (lasts, dice) = (fault.lasts, fault.dice);
    let home = w.nodes[fault.node].member.home;
    if w.is_evacuated(home) && dice % 2 == 0 {
        w.lift(home);
        return;
    }
    let ends_by_itself = ((dice >> 8) % 3 == 0).then_some(lasts);
    w.evacuate(home, ends_by_itself);
    if (dice >> 8) % 3 == 1 {
        w.after(lasts, move |w| w.lift(home));
    }
}

/// Puts a key of a client that does not use the library into the queue for a while.
fn foreign(w: &mut World, election: &[u8], lasts: Duration, dice: u64) {
    let mut key = election.to_vec();
    key.extend_from_slice(format!("foreign-{dice:x}").as_bytes());
    put_for_a_while(w, &[key.into()], [lasts]);
}

/// Puts keys at once, as another client does, and deletes each after a while.
fn put_for_a_while<const N: usize>(w: &mut World, keys: &[Key; N], lasts: [Duration; N]) {
    w.store.put_each(&keys.each_ref(), b"", 0);
    w.publish();
    for (key, lasts) in keys.iter().cloned().zip(lasts) {
        w.after(lasts, move |w| {
            w.store.delete(&key);
            w.publish();
        });
    }
}

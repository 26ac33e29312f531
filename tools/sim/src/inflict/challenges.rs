//! Makes nodes suspect each other falsely, and disturbs single steps of the protocol of challenges.

use std::time::Duration;

use super::{forbid_watches, heal};
use crate::kind::Kind;
use crate::plan::Fault;
use crate::world::challenging::SESSIONS;
use crate::world::cluster::ELECTIONS;
use crate::world::step::Step;
use crate::world::{Fate, Stop, World};
use eldest_core::action::Ask;

/// Returns a function that recognizes the requests of one step.
fn step(dice: u64) -> impl Fn(&Ask) -> bool + 'static {
    let step = Some(Step::drawn(dice));
    move |ask| Step::of(ask) == step
}

/// Disturbs challenges, or makes nodes challenge each other for no reason.
pub(super) fn on_challenges(w: &mut World, fault: Fault) {
    let (node, lasts, dice) = (fault.node, fault.lasts, fault.dice);
    match fault.kind {
        Kind::Suspicion => {
            if let Some(lease) = suspect(w, fault) {
                w.suspect_falsely(node, lease, lasts);
            }
        }
        Kind::SuspectedByAll => {
            if let Some(lease) = suspect(w, fault) {
                for node in 0..w.nodes.len() {
                    w.suspect_falsely(node, lease, lasts);
                }
            }
        }
        Kind::StopAtStep => {
            let third = lasts / 3;
            let micros = (dice >> 16) % (third.as_micros() as u64).max(1);
            let is_later = (dice >> 8).is_multiple_of(2);
            w.stops.push(Stop {
                node,
                what: Box::new(step(dice)),
                wait: Duration::from_micros(micros * u64::from(is_later)),
                lasts: third,
            });
            w.after(third, move |w| w.stops.retain(|stop| stop.node != node));
        }
        Kind::StepLate => once(w, node, step(dice), Fate::Late(lasts / 2), lasts),
        Kind::StepUnheard => once(w, node, step(dice), Fate::AnswerLost, lasts),
        Kind::StepSlow => {
            let most = w.settings.timeout.saturating_sub(w.plan.delay).as_micros() as u64;
            let slow = Duration::from_micros((dice >> 8) % most.max(1));
            once(w, node, step(dice), Fate::Slow(slow), lasts);
        }
        Kind::StepTwice => once(w, node, step(dice), Fate::Twice(lasts / 2), lasts),
        Kind::PeersCut => cut_peers(w, fault),
        Kind::NoSpace => {
            w.store.full += 1;
            w.after(lasts, |w| w.store.full -= 1);
        }
        Kind::Withdraw => w.withdraw(node),
        Kind::SessionsDenied => deny_sessions(w, fault),
        Kind::AnchorDeleted => {
            let of = meant(w, fault);
            w.delete_anchor(of, (dice >> 8).is_multiple_of(2));
        }
        kind => unreachable!("{kind:?} belongs to no family"),
    }
}

/// Returns the lease of the leader, or of another session.
fn suspect(w: &World, fault: Fault) -> Option<i64> {
    w.nodes[meant(w, fault)].lease()
}

/// Returns the leader, or another node.
fn meant(w: &World, fault: Fault) -> usize {
    let leader = w.leader(ELECTIONS[fault.election]);
    let other = (fault.dice >> 16) as usize % w.nodes.len();
    let is_led = !fault.dice.is_multiple_of(4);
    leader.filter(|_| is_led).unwrap_or(other)
}

/// Keeps signs of life from the node, to the node, or both, at one other node or at all.
fn cut_peers(w: &mut World, fault: Fault) {
    let (node, lasts, dice) = (fault.node, fault.lasts, fault.dice);
    let one = (dice >> 16) as usize % w.nodes.len();
    let is_one = (dice >> 8).is_multiple_of(2);
    for other in (0..w.nodes.len()).filter(|other| !is_one || *other == one) {
        if dice % 3 != 1 {
            w.deafen(other, node, lasts);
        }
        if dice % 3 != 0 {
            w.deafen(node, other, lasts);
        }
    }
}

/// Makes etcd refuse a node all anchors and challenges, and in half of the stories the renewal of its lease.
fn deny_sessions(w: &mut World, fault: Fault) {
    let (node, lasts, dice) = (fault.node, fault.lasts, fault.dice);
    let renewals = dice.is_multiple_of(2);
    w.relink(node, |l| {
        (l.sessions_denied, l.renewals_denied) = (true, renewals);
    });
    forbid_watches(w, node, (SESSIONS, false), lasts);
    // etcd leaves the open watches as they are; their stream may break.
    if (dice >> 8).is_multiple_of(2) {
        w.disturb_watches(node, true);
    }
    heal(w, node, lasts, |l| {
        (l.sessions_denied, l.renewals_denied) = (false, false);
    });
}

/// Gives the node's next request of that kind its fate, if it is sent before half of the time is over.
fn once(
    w: &mut World,
    node: usize,
    what: impl Fn(&Ask) -> bool + 'static,
    fate: Fate,
    lasts: Duration,
) {
    w.next(node, what, fate);
    w.after(lasts / 2, move |w| {
        w.rules
            .retain(|rule| rule.node != node || rule.fate != fate);
    });
}

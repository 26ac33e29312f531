//! Gives single requests of a node their fate: lost, late, or refused.

use crate::kind::Kind;
use crate::plan::Fault;
use crate::world::{Fate, Rule, World};
use eldest_core::action::{Ask, Class};

/// Returns the requests that the fault names, or those that its dice select.
fn asks_for(fault: Fault) -> fn(&Ask) -> bool {
    if let Some(request) = fault.of {
        return request.matcher();
    }
    match fault.dice % 4 {
        0 => |ask| matches!(ask, Ask::Join { .. }),
        1 => |ask| matches!(ask, Ask::Grant { .. }),
        2 => |ask| matches!(ask, Ask::Delete { .. }),
        _ => |_| true,
    }
}

/// Makes one request lost, late or refused.
pub(super) fn on_requests(w: &mut World, fault: Fault) {
    let (node, lasts, dice) = (fault.node, fault.lasts, fault.dice);
    match fault.kind {
        Kind::AnswerLostOnce => w.next(node, asks_for(fault), Fate::AnswerLost),
        Kind::RequestLostOnce => w.next(node, asks_for(fault), Fate::RequestLost),
        Kind::LateOnce => late_once(w, fault),
        Kind::DeleteLate => {
            let deletes: fn(&Ask) -> bool = |ask| matches!(ask, Ask::Delete { .. });
            w.next(node, deletes, Fate::Late(lasts / 2));
            w.after(lasts / 2, move |w| w.rules.retain(|r| r.node != node));
        }
        Kind::Refused => {
            let class = passing(dice);
            w.next(node, asks_for(fault), Fate::Refused(class));
        }
        Kind::Denied => w.next(node, asks_for(fault), Fate::Refused(for_good(dice))),
        Kind::DeniedLater => {
            let fate = Fate::RefusedLater(for_good(dice));
            w.next(node, |ask| matches!(ask, Ask::Join { .. }), fate);
        }
        Kind::RefusedDone => {
            let (what, class) = refused_done(dice);
            w.next(node, what, Fate::RefusedLater(class));
        }
        _ => super::on_watches(w, fault),
    }
}

/// Makes one request arrive late, before all faults end.
fn late_once(w: &mut World, fault: Fault) {
    let (node, half) = (fault.node, fault.lasts / 2);
    w.next(node, asks_for(fault), Fate::Delayed(half));
    let this = move |rule: &Rule| rule.node == node && rule.fate == Fate::Delayed(half);
    w.after(half, move |w| w.rules.retain(|rule| !this(rule)));
}

/// Returns a class of refusals after which a retry can succeed.
fn passing(dice: u64) -> Class {
    [Class::Backoff, Class::Auth, Class::Retry, Class::Stale][(dice >> 8) as usize % 4]
}

/// Returns a class of refusals that a retry does not mend.
fn for_good(dice: u64) -> Class {
    [Class::Denied, Class::Invalid][(dice >> 8) as usize % 2]
}

/// Returns requests that etcd may carry out and yet refuse, and the class. A join is refused a later page of the same
/// operation, for any reason; every other answer is refused here, because it is too large.
fn refused_done(dice: u64) -> (fn(&Ask) -> bool, Class) {
    let classes = [Class::Backoff, Class::Auth, Class::Denied, Class::Invalid];
    let what: fn(&Ask) -> bool = match dice % 6 {
        0 => {
            let class = classes[(dice >> 8) as usize % 4];
            return (|ask| matches!(ask, Ask::Join { .. }), class);
        }
        1 => |ask| matches!(ask, Ask::Delete { .. } | Ask::Release { .. }),
        2 => |ask| matches!(ask, Ask::Take { .. } | Ask::Proclaim { .. }),
        3 => |ask| matches!(ask, Ask::Grant { .. } | Ask::Revoke { .. }),
        4 => |ask| {
            matches!(
                ask,
                Ask::List { .. } | Ask::Older { .. } | Ask::Sweep { .. }
            )
        },
        _ => |_| true,
    };
    (what, Class::Invalid)
}

//! Models the protocol of `eldest`: how nodes join, renew, verify, lead and leave, with an etcd whose leaders change, a
//! network that loses and delays, clocks that are wrong, nodes that pause and die, and guards that delete the keys of
//! dead nodes. Every reachable state is checked. `docs/verification.md` says what the model contains, what it leaves
//! out, and why that is no loss.
//!
//! It follows `crates/eldest-core/` by hand: a change of a rule there must be made here, too.

mod action;
pub mod challenge;
mod explore;
mod model;
mod recovery;
mod rules;
mod search;
mod seen;
mod show;
mod state;
mod step;
#[cfg(test)]
mod tests;

pub use action::Action;
pub use explore::{
    EXPIRY, GUARDED, ONE_LEADER, ORPHAN, RECOVERS, REFUSAL, RESIGNATION, ROBBERY, SUCCESSION,
    TOKENS_RISE, WAITING,
};
pub use model::Model;
pub use rules::Rule;
pub use search::{Counterexample, Explored, Report};
pub use state::State;

//! Tests rules of the library, each in one story.

mod doubting;
mod ending;
mod evacuating;
mod freshness;
mod gates;
mod giving_way;
mod groups;
mod holding;
mod joining;
mod lease;
mod leaving;
mod meddling;
mod ordering;
mod pacing;
mod queue;
mod restoring;
mod revoking;
mod rollouts;
mod sweeping;
mod warming;
mod watching;

use super::asks::*;
use eldest_core::action::Ask;

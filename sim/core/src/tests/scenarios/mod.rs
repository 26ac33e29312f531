//! Rules of the library, each in one story.

mod ending;
mod freshness;
mod giving_way;
mod holding;
mod joining;
mod lease;
mod meddling;
mod queue;
mod restoring;
mod watching;

use super::asks::*;
use crate::core::action::Ask;

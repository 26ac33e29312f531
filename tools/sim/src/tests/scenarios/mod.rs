//! Tests rules of the library, each in one story.

mod ending;
mod evacuating;
mod gates;
mod holding;
mod joining;
mod lease;
mod meddling;
mod queue;
mod restoring;
mod rollouts;
mod sweeping;
mod watching;

use super::asks::*;
use eldest_core::action::Ask;

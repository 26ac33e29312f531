//! Names the step of the protocol of challenges that a transaction makes.

use super::versions::is_claim;
use eldest_core::action::Ask;
use eldest_core::txn::{Op, Txn, When};
use strum::VariantArray;

/// The step of the protocol that a transaction makes. Dice of faults number them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, VariantArray)]
pub(crate) enum Step {
    Anchor,
    Read,
    Answer,
    Challenge,
    Condemn,
    Absence,
}

impl Step {
    /// Returns the step that a fault with these dice disturbs.
    pub(crate) fn drawn(dice: u64) -> Self {
        Self::VARIANTS[dice as usize % Self::VARIANTS.len()]
    }

    pub(crate) fn of(ask: &Ask) -> Option<Self> {
        let Ask::Transact(Txn { when, then, .. }) = ask else {
            return None;
        };
        if is_claim(ask) {
            return None;
        }
        Some(match (&when[..], &then[..]) {
            ([], _) => Step::Read,
            (_, [Op::DeleteBelow(_)]) => Step::Answer,
            (_, [Op::Put { .. }]) => Step::Anchor,
            (_, [Op::Put { .. }, ..]) => Step::Challenge,
            ([When::NotCreated(..), ..], _) => Step::Absence,
            _ => Step::Condemn,
        })
    }
}

//! Names the step of the protocol of challenges that a transaction makes.

use super::versions::is_claim;
use eldest_core::action::Ask;
use eldest_core::txn::{Op, Txn, When};

/// The step of the protocol that a transaction makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Anchor,
    Read,
    Answer,
    Challenge,
    Condemn,
    Absence,
}

impl Step {
    /// The steps by their numbers in the dice of a fault.
    pub(crate) const ALL: [Step; 6] = [
        Step::Anchor,
        Step::Read,
        Step::Answer,
        Step::Challenge,
        Step::Condemn,
        Step::Absence,
    ];

    /// Returns the step that a fault with these dice disturbs.
    pub(crate) fn drawn(dice: u64) -> Self {
        Self::ALL[dice as usize % Self::ALL.len()]
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

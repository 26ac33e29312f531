//! Writes that an old leader can never make, outside etcd: to `PostgreSQL`, and to an object store with conditional
//! writes.
//!
//! Both keep the highest fencing token beside the data and compare it in the same step as the write. `tests/` shows
//! that an old leader is refused.

mod ledger;
mod object;

use std::error::Error;
use std::fmt;

pub use ledger::{CLAIM, Ledger, PAY, SCHEMA};
pub use object::{Claimed, Object};

/// A later leader has written already: the work of this one must stop.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    /// The fencing token of the refused write.
    pub token: i64,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused: {} is not the highest token", self.token)
    }
}

impl Error for Refused {}

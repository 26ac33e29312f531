//! Hides the second counter, which lies outside of etcd and knows nothing of leases: only the token that comes with a
//! write tells it whether to take it.

#[cfg(not(feature = "register"))]
mod none;
#[cfg(feature = "register")]
mod sqlite;

#[cfg(not(feature = "register"))]
pub(crate) use none::Register;
#[cfg(feature = "register")]
pub(crate) use sqlite::Register;
#[cfg(feature = "register")]
pub use sqlite::value;

/// The name under which a history has an election's second counter.
pub fn named(election: &str) -> String {
    format!("{election}, in the register")
}

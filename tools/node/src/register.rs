//! Provides the register, a second counter outside etcd that knows nothing of leases. Only the fencing token of a write
//! decides whether the register accepts it.

#[cfg(not(feature = "register"))]
mod none;
#[cfg(feature = "register")]
mod sqlite;

#[cfg(not(feature = "register"))]
pub(crate) use none::Register;
#[cfg(feature = "register")]
pub(crate) use sqlite::Register;
#[cfg(feature = "register")]
pub use sqlite::{WORK, value};

//! Removes the keys and leases that the session must delete, until etcd confirms that they are gone.

mod deleted;
mod names;
mod parting;
mod removals;
mod revocations;

pub use deleted::Shown;
pub(crate) use names::{is_named_by_us, is_one_of_many};
pub(crate) use parting::Parting;
pub(crate) use removals::Removals;
pub(crate) use revocations::Revocations;

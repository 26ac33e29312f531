//! What onlookers see: the changes of an election, whose partitions are whose, all queues of a namespace.

mod holders;
mod observer;
mod overview;

pub(crate) use holders::Layout;
pub use holders::{Holder, Holders, HoldersObserver};
pub use observer::Observer;
pub use overview::{LeaseTime, Overview, Queue, QueueKind};

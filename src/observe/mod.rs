//! Provides the views of observers: the changes of an election, the owners of partitions, all queues of a namespace.

mod leader_changes;
mod observer;
mod overview;
mod partition_map;

pub use leader_changes::{LeaderChange, LeaderChanges};
pub use observer::Observer;
pub use overview::{LeaseTime, Overview, Queue, QueueKind};
pub(crate) use partition_map::Layout;
pub use partition_map::{KeptShare, PartitionMap, PartitionMapObserver, PartitionOwner};

//! Decides which partitions a member takes, adopts and gives up.

mod assignment;
mod keys;
mod membership;

pub use assignment::{Assignee, Center, Owned, assign};
pub use keys::{KeyKind, kind_of, member_key, partition_key};
pub use membership::{Membership, Move, PartitionSet, Share, Wants, facts};

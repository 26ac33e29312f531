//! Decides which partitions a member takes, adopts and gives up.

mod assignment;
mod facts;
mod keys;
mod membership;

pub use assignment::{Assignee, Center, Owned, assign};
pub use facts::{Facts, KeptShare, Share, ShareReaders, facts};
pub use keys::{KeyKind, kept_key, kind_of, kind_of_entry, member_key, partition_key};
pub use membership::{Membership, Move, PartitionSet, Wants};

//! Describes the node to which requests go: its identity, its address and its term.

use std::fmt;
use std::sync::Arc;

use eldest::{Announcement, Member, PartitionOwner};

/// The node that leads an election, or owns a partition, in one term.
#[derive(Clone, PartialEq)]
pub struct Destination(Arc<Node>);

#[derive(PartialEq)]
struct Node {
    identity: String,
    address: Option<String>,
    fencing_token: i64,
}

impl Destination {
    pub(crate) fn new(identity: &str, address: Option<&str>, fencing_token: i64) -> Self {
        Self(Arc::new(Node {
            identity: identity.to_owned(),
            address: address.map(str::to_owned),
            fencing_token,
        }))
    }

    /// Makes the leader a destination, at its address, or at the address in an item of its metadata.
    pub(crate) fn leader(leader: &Member, item: Option<&str>) -> Self {
        let address = address(leader.announcement(), item);
        Self::new(leader.identity(), address, leader.create_revision())
    }

    pub(crate) fn owner(owner: &PartitionOwner<'_>, item: Option<&str>) -> Self {
        let member = owner.member();
        let address = member.and_then(|member| address(member.announcement(), item));
        Self::new(owner.identity(), address, owner.fencing_token())
    }

    /// Returns the node's identity.
    pub fn identity(&self) -> &str {
        &self.0.identity
    }

    /// Returns the address that the node announced, as it announced it.
    pub fn address(&self) -> Option<&str> {
        self.0.address.as_deref()
    }

    /// Returns the fencing token of the node's term. Another term has another token; a later one has a larger token.
    pub fn fencing_token(&self) -> i64 {
        self.0.fencing_token
    }
}

fn address<'a>(announcement: &'a Announcement, item: Option<&str>) -> Option<&'a str> {
    match item {
        Some(item) => announcement.metadata(item),
        None => announcement.address(),
    }
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Destination")
            .field("identity", &self.identity())
            .field("address", &self.address())
            .field("fencing_token", &self.fencing_token())
            .finish()
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.address().unwrap_or("no address");
        write!(f, "{} at {at}", self.identity())
    }
}

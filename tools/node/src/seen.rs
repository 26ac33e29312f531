//! Defines a node's possible views of the election, and describes each in words.

use std::fmt;

use eldest::{LostReason, Member};

/// The metadata key of a leader's announcement with the time since which it leads; the next one has its token, because
/// an announcement outlives the term in which it was made.
pub(crate) const LEADS_SINCE: &str = "leads_since";
pub(crate) const LEADS_WITH: &str = "leads_with";

/// The leader, as every node reports it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Leader {
    pub(crate) name: String,
    pub(crate) data_center: Option<String>,
    pub(crate) address: Option<String>,
    pub(crate) token: i64,
    pub(crate) since: Option<String>,
}

impl Leader {
    pub(crate) fn new(member: &Member) -> Self {
        let announcement = member.announcement();
        let token = member.create_revision();
        let of_this_term = announcement.metadata(LEADS_WITH) == Some(&token.to_string());
        let since = announcement.metadata(LEADS_SINCE).filter(|_| of_this_term);
        Self {
            name: member.identity().to_owned(),
            data_center: announcement.data_center().map(str::to_owned),
            address: announcement.address().map(str::to_owned),
            token,
            since: since.map(str::to_owned),
        }
    }

    fn place(&self) -> String {
        let data_center = self.data_center.as_ref();
        data_center.map_or_else(String::new, |at| format!(" in {at}"))
    }
}

/// A node's view of the election, and of its own place in it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Seen {
    /// etcd has not answered yet.
    Nothing,
    /// This node leads.
    Mine(Leader),
    /// Another node leads; the number of candidates before this node, if it is one.
    Theirs(Leader, Option<usize>),
    /// This node's key is the first, but it has not begun to lead, or has ended.
    First { token: i64 },
    /// There is no candidate, not even this node.
    Nobody,
    /// A key that is no candidate blocks the election.
    Blocked { key: String },
    /// This node's lease is not trusted, and so neither is its view; the last known leader.
    Unknown {
        reason: LostReason,
        last: Option<Leader>,
    },
}

impl Seen {
    /// Returns true if the state is likely to change in a moment, so that it is reported only if it lasts.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Seen::Nothing | Seen::First { .. } | Seen::Nobody => true,
            Seen::Theirs(leader, ahead) => leader.since.is_none() || ahead.is_none(),
            Seen::Mine(_) | Seen::Blocked { .. } | Seen::Unknown { .. } => false,
        }
    }

    /// Returns true if the node has a key in the queue.
    pub(crate) fn is_queued(&self) -> bool {
        matches!(
            self,
            Seen::Mine(_) | Seen::Theirs(_, Some(_)) | Seen::First { .. }
        )
    }

    /// Returns the leader, if it is known.
    pub(crate) fn leader(&self) -> Option<&Leader> {
        match self {
            Seen::Mine(leader) | Seen::Theirs(leader, _) => Some(leader),
            _ => None,
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Seen::Nothing => f.write_str("I follow and know no leader: etcd has not answered yet"),
            Seen::Mine(leader) => {
                write!(f, "I lead with token {}", leader.token)?;
                since(f, leader)
            }
            Seen::Theirs(leader, ahead) => {
                let (name, place, token) = (&leader.name, leader.place(), leader.token);
                write!(f, "{name}{place} leads with token {token}")?;
                since(f, leader)?;
                if let Some(address) = &leader.address {
                    write!(f, ", at {address}")?;
                }
                match ahead {
                    Some(ahead) => write!(f, "; I wait, {ahead} ahead"),
                    None => f.write_str("; I do not stand yet"),
                }
            }
            Seen::First { token } => {
                write!(f, "nobody leads; my key with token {token} is the first")
            }
            Seen::Nobody => f.write_str("nobody leads"),
            Seen::Blocked { key } => {
                write!(
                    f,
                    "nobody can lead: the key {key} has no lease and is in the way"
                )
            }
            Seen::Unknown { reason, last } => {
                write!(f, "I follow and know no leader: {}", why(*reason))?;
                match last {
                    Some(last) => {
                        let (name, place, token) = (&last.name, last.place(), last.token);
                        write!(f, "; last known: {name}{place} with token {token}")
                    }
                    None => Ok(()),
                }
            }
        }
    }
}

fn since(f: &mut fmt::Formatter<'_>, leader: &Leader) -> fmt::Result {
    match &leader.since {
        Some(since) => write!(f, " since {since}"),
        None => Ok(()),
    }
}

/// Describes in the node's words why a term or a lease is over.
pub(crate) fn why(reason: LostReason) -> &'static str {
    match reason {
        LostReason::LeaseExpiring => "etcd did not confirm my lease in time",
        LostReason::LeaseLost => "my lease is gone",
        LostReason::KeyDeleted => "somebody deleted my key",
        LostReason::KeyOverwritten => "somebody wrote over my key",
        LostReason::StoreChanged => "etcd is another one, or was restored",
        LostReason::Shutdown => "I was asked to stop",
        other => other.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leader(since: Option<&str>) -> Leader {
        Leader {
            name: "node2".to_owned(),
            data_center: Some("dc2".to_owned()),
            address: Some("http://node2:8080".to_owned()),
            token: 7,
            since: since.map(str::to_owned),
        }
    }

    #[test]
    fn waiting_node_names_the_leader_its_token_and_time() {
        let said = Seen::Theirs(leader(Some("2026-11-21T11:00:00.123Z")), Some(1)).to_string();
        let wanted = "node2 in dc2 leads with token 7 since 2026-11-21T11:00:00.123Z, at http://node2:8080; \
                      I wait, 1 ahead";
        assert_eq!(said, wanted);
    }

    #[test]
    fn node_without_a_known_leader_names_none() {
        let reason = LostReason::LeaseExpiring;
        let seen = Seen::Unknown {
            reason,
            last: Some(leader(None)),
        };
        let wanted = "I follow and know no leader: etcd did not confirm my lease in time; \
                      last known: node2 in dc2 with token 7";
        assert_eq!(seen.to_string(), wanted);
        assert_eq!(seen.leader(), None);
        assert!(!seen.is_queued() && !seen.is_passing());
    }

    #[test]
    fn a_leader_that_has_not_said_since_when_is_given_a_moment() {
        assert!(Seen::Theirs(leader(None), Some(1)).is_passing());
        assert!(!Seen::Theirs(leader(Some("t")), Some(1)).is_passing());
    }
}

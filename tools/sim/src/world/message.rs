//! Defines etcd's messages on a watch stream.

use eldest_core::action::WatchId;
use eldest_core::kv::{Change, Header};

/// A message of the watch stream.
#[derive(Debug, Clone)]
pub(crate) enum Message {
    Created {
        id: WatchId,
        header: Header,
    },
    Events {
        id: WatchId,
        term: u64,
        changes: Vec<Change>,
    },
    Progress {
        header: Header,
    },
    /// The watch is not permitted.
    Refused {
        id: WatchId,
    },
    Canceled {
        id: WatchId,
    },
    Broken,
}

//! Defines what etcd sends on a watch stream.

use eldest_core::action::WatchId;
use eldest_core::kv::Change;

/// A message of the watch stream.
#[derive(Debug, Clone)]
pub(crate) enum Message {
    Created {
        id: WatchId,
        revision: i64,
    },
    Events {
        id: WatchId,
        changes: Vec<Change>,
    },
    Progress {
        revision: i64,
    },
    /// Not permitted.
    Refused {
        id: WatchId,
    },
    Canceled {
        id: WatchId,
    },
    Broken,
}

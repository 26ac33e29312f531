//! Holds how benches are to be run: with which etcd, against which peers, and what is kept of it.

use std::path::{Path, PathBuf};

/// How benches are to be run.
#[derive(Clone)]
pub(crate) struct Options {
    /// Fewer samples and sizes: each bench takes less than 40 s.
    pub(crate) quick: bool,
    /// One JSON object per line on stdout, the table on stderr.
    pub(crate) json: bool,
    /// Fails if a ratio is far from its target; peers that need other programs are left out.
    pub(crate) check: bool,
    /// Processes of the library sample themselves, for a picture in this folder.
    pub(crate) profile: Option<PathBuf>,
    pub(crate) storage: Storage,
    pub(crate) members: usize,
    /// The selected peers; empty for all.
    pub(crate) peers: Vec<String>,
    /// The folder for the figures, if they are to be kept.
    pub(crate) keep: Option<Keep>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            quick: false,
            json: false,
            check: false,
            profile: None,
            storage: Storage::Memory,
            members: 1,
            peers: Vec::new(),
            keep: None,
        }
    }
}

impl Options {
    /// Returns true if a peer is to be measured.
    pub(crate) fn wants(&self, peer: &str) -> bool {
        let ours = [
            "limit",
            "keys",
            "guarded",
            "watchful",
            "forwarded",
            "eldest",
        ];
        let ours = ours.contains(&peer);
        let named = self.peers.iter().any(|named| named == peer);
        named || (self.peers.is_empty() && (ours || !self.check))
    }
}

/// The folder for the figures, and the treatment of an earlier run with the same kind of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Keep {
    Instead(PathBuf),
    /// Results of other benches stay.
    Beside(PathBuf),
}

impl Keep {
    pub(crate) fn folder(&self) -> &Path {
        let (Keep::Instead(folder) | Keep::Beside(folder)) = self;
        folder
    }
}

/// Where etcd keeps its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Storage {
    Memory,
    /// The member waits until its writes are on the disk.
    Disk,
}

impl Storage {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Storage::Memory => "tmpfs",
            Storage::Disk => "disk",
        }
    }
}

//! Removes the marks of the newest versions that led, and checks that no version leads after a newer one.

use std::sync::Arc;

use super::World;
use super::home::{MARKS, version, version_tag};
use super::promise::Invariant;
use eldest_core::action::Ask;
use eldest_core::candidate::Required;
use eldest_core::evacuation::version_key;
use eldest_core::kv::Entry;
use eldest_core::txn::When;
use eldest_core::version::Version;

/// The prefix of the marks of versions, below [`MARKS`]. A node that may not read there may not claim.
pub(crate) const CLAIMS: &[u8] = b"~evacuated/~version/";

/// Returns what a candidate of that version requires; nothing if it has none.
pub(super) fn required(number: u32) -> Option<Required> {
    let mark = version_tag(number).into_bytes();
    Some(Required {
        version: version(&mark)?,
        mark: mark.into(),
    })
}

/// Returns true if the request is a candidate's claim to lead with its version.
pub(crate) fn is_claim(ask: &Ask) -> bool {
    let Ask::Transact(txn) = ask else {
        return false;
    };
    matches!(txn.when.first(), Some(When::Written(mark, _)) if mark.starts_with(MARKS))
}

impl World {
    /// Returns the version that the election's mark names.
    pub(crate) fn marked_version(&self, election: &[u8]) -> Option<Version> {
        version(&self.store.entry(&version_key(MARKS, election))?.value)
    }

    /// Returns true if the mark of the election lets that candidate lead.
    pub(super) fn is_new_enough(&self, election: &[u8], candidate: &Entry) -> bool {
        version(&candidate.value) >= self.marked_version(election)
    }

    /// Lets an operator remove the mark of the newest version that led the election.
    pub(crate) fn remove_version(&mut self, election: &[u8]) {
        if self.store.headless.is_some() {
            return;
        }
        self.says(None, || {
            "the mark of the newest version is removed".to_owned()
        });
        self.store.delete(&version_key(MARKS, election).into());
        self.newest_led.remove(election);
        self.publish();
    }

    /// Checks that the version of a term that begins is not older than one that led before. A term that begins when its
    /// key is gone does not count, and a term whose mark was removed since it was confirmed does not bind later ones.
    pub(super) fn check_version(&mut self, node: usize, prize: usize, token: i64) {
        let prefix = Arc::clone(&self.prizes[prize].prefix);
        let Some(ours) = required(self.nodes[node].member.version).map(|required| required.version)
        else {
            return;
        };
        let queue = self.store.queue(&prefix);
        let own = queue.iter().find(|entry| entry.create_revision == token);
        if own.and_then(|own| version(&own.value)).is_none() || self.restored {
            return;
        }
        let newest = self.newest_led.get(&prefix).copied();
        if newest > Some(ours) {
            let what = format!("node {node} leads with the version {ours} after {newest:?}");
            self.broken(Invariant::Version, what);
        }
        if self.marked_version(&prefix) >= Some(ours) {
            self.newest_led.insert(prefix, ours);
        }
    }
}

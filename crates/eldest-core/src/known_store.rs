//! Remembers which etcd cluster answers and its newest revision, and detects an answer from another store: another
//! cluster, or the same one after its data was replaced by a backup.
//!
//! A linearizable answer is never older than what this session knew when it sent the request. That includes the
//! revisions of watch messages, because each of them was committed. The raft term counts as the revision does. It is
//! stamped on an answer when the entries up to that answer are applied, so it never falls within one store; a restored
//! snapshot begins again at a low term, which shows even where the revision was raised.

use crate::kv::Header;

/// The session's knowledge of the store when it sent a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Floor {
    revision: i64,
    term: u64,
    /// The number of stores before this one.
    former_stores: u32,
}

/// The origin of a linearizable answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The known store.
    Known,
    /// Another store.
    Other,
    /// The request was sent before the store was exchanged: its answer proves nothing about either store.
    Unclear,
}

impl Floor {
    /// Returns the newest known revision.
    pub(crate) fn revision(self) -> i64 {
        self.revision
    }
}

/// The store, as far as this session knows it.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownStore {
    cluster: Option<u64>,
    newest: Floor,
}

impl KnownStore {
    /// Returns the least that the answer to a request sent now can show.
    pub(crate) fn floor(&self) -> Floor {
        self.newest
    }

    /// Returns the cluster's id; 0 before its first answer.
    pub(crate) fn cluster(&self) -> u64 {
        self.cluster.unwrap_or_default()
    }

    /// Records that a watch message showed `revision`.
    pub(crate) fn watched(&mut self, revision: i64) {
        self.newest.revision = self.newest.revision.max(revision);
    }

    /// Determines the origin of a linearizable answer to a request sent at `floor`.
    pub(crate) fn answered(&mut self, header: Header, floor: Floor) -> Origin {
        if floor.former_stores != self.newest.former_stores {
            return Origin::Unclear;
        }
        let known = self.cluster.is_none_or(|cluster| cluster == header.cluster)
            && header.revision >= floor.revision
            && header.term >= floor.term;
        if known {
            debug_assert_eq!(
                self.newest.former_stores, floor.former_stores,
                "an answer counts for the store that its request was sent to"
            );
            debug_assert!(
                self.cluster.unwrap_or(header.cluster) == header.cluster
                    && (floor.revision, floor.term)
                        == (
                            floor.revision.min(header.revision),
                            floor.term.min(header.term)
                        ),
                "a store never shows less than was known of it"
            );
            self.cluster = Some(header.cluster);
            self.watched(header.revision);
            self.newest.term = self.newest.term.max(header.term);
            return Origin::Known;
        }
        Origin::Other
    }

    /// Replaces the known store by the one that gave this answer.
    pub(crate) fn exchanged(&mut self, header: Header) {
        self.cluster = Some(header.cluster);
        self.newest = Floor {
            revision: header.revision,
            term: header.term,
            former_stores: self.newest.former_stores + 1,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(cluster: u64, revision: i64, term: u64) -> Header {
        Header {
            cluster,
            member: 1,
            revision,
            term,
        }
    }

    fn known() -> KnownStore {
        let mut store = KnownStore::default();
        let origin = store.answered(header(7, 10, 3), Floor::default());
        assert_eq!(origin, Origin::Known);
        store
    }

    #[test]
    fn growing_revision_and_term_are_the_same_store() {
        let mut store = known();
        for same in [header(7, 10, 3), header(7, 12, 4)] {
            assert_eq!(store.answered(same, store.floor()), Origin::Known);
        }
    }

    #[test]
    fn lower_revision_or_term_or_another_cluster_is_another_store() {
        for other in [header(7, 9, 3), header(7, 900, 2), header(8, 11, 3)] {
            let mut store = known();
            assert_eq!(store.answered(other, store.floor()), Origin::Other);
            store.exchanged(other);
            assert_eq!(store.answered(other, store.floor()), Origin::Known);
        }
    }

    #[test]
    fn revision_of_a_watch_message_counts() {
        let mut store = known();
        store.watched(12);
        assert_eq!(
            store.answered(header(7, 11, 3), store.floor()),
            Origin::Other
        );
    }

    #[test]
    fn answer_to_an_earlier_request_may_show_less() {
        let mut store = known();
        let floor = store.floor();
        store.watched(15);
        assert_eq!(store.answered(header(7, 12, 3), floor), Origin::Known);
        assert_eq!(store.floor().revision(), 15);
    }

    #[test]
    fn answer_to_a_request_of_the_former_store_proves_nothing() {
        let mut store = known();
        let before = store.floor();
        store.exchanged(header(7, 5, 3));
        for late in [header(7, 11, 3), header(7, 5, 3)] {
            assert_eq!(store.answered(late, before), Origin::Unclear);
        }
        assert_eq!(store.floor().revision(), 5);
    }
}

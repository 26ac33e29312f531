//! Keeps entries by age, eldest first, in chunks that copies share.
//!
//! An observer gets a copy after every change. A copy costs one reference; the next change then copies the list of the
//! chunks and one chunk, whatever the length of the queue. The core uses the standard library alone, which has no map
//! of that kind.

use std::sync::Arc;

use crate::kv::Entry;

/// The largest number of entries in a chunk; a full chunk is split into halves.
const CHUNK: usize = 64;

type Chunk = Vec<Arc<Entry>>;

/// Entries in the order of their create revisions, then of their keys.
#[derive(Debug, Clone, Default)]
pub struct Queue {
    /// The chunks, none of which is empty.
    chunks: Arc<Vec<Arc<Chunk>>>,
    len: usize,
}

/// Returns the sort key of an entry.
pub(super) fn age(entry: &Entry) -> (i64, &[u8]) {
    (entry.create_revision, &entry.key)
}

impl Queue {
    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns all entries, eldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }

    /// Returns the entry that was created first.
    pub fn eldest(&self) -> Option<&Arc<Entry>> {
        self.chunks.first()?.first()
    }

    /// Returns the number of entries created before `create_revision`.
    pub fn ahead_of(&self, create_revision: i64) -> usize {
        let older = |entry: &Arc<Entry>| entry.create_revision < create_revision;
        let whole = self
            .chunks
            .partition_point(|chunk| chunk.last().is_some_and(older));
        let before: usize = self.chunks[..whole].iter().map(|chunk| chunk.len()).sum();
        let within = self.chunks.get(whole);
        before + within.map_or(0, |chunk| chunk.partition_point(older))
    }

    /// Adds an entry whose age no other entry has.
    pub fn insert(&mut self, entry: Arc<Entry>) {
        let at = self.chunk_for(&entry);
        let chunks = Arc::make_mut(&mut self.chunks);
        self.len += 1;
        // The youngest entry of all belongs in the last chunk, if there is one.
        let at = at.min(chunks.len().saturating_sub(1));
        let Some(chunk) = chunks.get_mut(at) else {
            chunks.push(Arc::new(vec![entry]));
            return;
        };
        let chunk = Arc::make_mut(chunk);
        let place = chunk.partition_point(|other| age(other) < age(&entry));
        chunk.insert(place, entry);
        if chunk.len() > CHUNK {
            let younger = chunk.split_off(CHUNK / 2);
            chunks.insert(at + 1, Arc::new(younger));
        }
    }

    /// Removes the entry with the same age.
    pub fn remove(&mut self, entry: &Entry) {
        let at = self.chunk_for(entry);
        let found = self.chunks.get(at).and_then(|chunk| {
            chunk
                .binary_search_by(|other| age(other).cmp(&age(entry)))
                .ok()
        });
        let Some(place) = found else {
            return;
        };
        self.len -= 1;
        let chunks = Arc::make_mut(&mut self.chunks);
        if chunks[at].len() == 1 {
            chunks.remove(at);
        } else {
            Arc::make_mut(&mut chunks[at]).remove(place);
        }
    }

    /// Returns the first chunk whose youngest entry is not older.
    fn chunk_for(&self, entry: &Entry) -> usize {
        self.chunks
            .partition_point(|chunk| chunk.last().is_some_and(|last| age(last) < age(entry)))
    }
}

impl FromIterator<Entry> for Queue {
    fn from_iter<I: IntoIterator<Item = Entry>>(entries: I) -> Self {
        let mut entries: Vec<Arc<Entry>> = entries.into_iter().map(Arc::new).collect();
        entries.sort_unstable_by(|a, b| age(a).cmp(&age(b)));
        let len = entries.len();
        let chunks = entries.chunks(CHUNK / 2).map(|few| Arc::new(few.to_vec()));
        Self {
            chunks: Arc::new(chunks.collect()),
            len,
        }
    }
}

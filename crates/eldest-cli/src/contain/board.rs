//! Shares a deadline between supervisor and keeper in memory, so that either process may be stopped at any instant.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};
use twox_hash::XxHash3_64;

use super::spec::Limits;

/// How often a reader rereads a record that is being written before it keeps the limits that it read before.
const TRIES: u32 = 1000;
const WORD: usize = 8;
const WORDS: usize = 4;
const SIZE: usize = (WORDS + 1) * WORD;

/// The memory that both processes map. The supervisor alone writes; the keeper reads it even while the supervisor is
/// stopped.
pub(super) struct Board(File);

impl Board {
    pub(super) fn create() -> io::Result<Self> {
        let memory = memfd_create("eldest-deadline", MemfdFlags::CLOEXEC)?;
        Ok(Self(File::from(memory)))
    }

    /// Wraps the file that another process shared with us.
    pub(super) fn from_file(file: File) -> Self {
        Self(file)
    }

    /// Returns the number of the file descriptor, by which a child opens the file.
    pub(super) fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }

    pub(super) fn write(&self, limits: Limits) -> io::Result<()> {
        self.0.write_all_at(&encode(limits), 0)
    }

    /// Returns `None` if no record was written yet, or if the writer was stopped in the middle of one.
    pub(super) fn read(&self) -> Option<Limits> {
        let mut bytes = [0; SIZE];
        for _ in 0..TRIES {
            self.0.read_exact_at(&mut bytes, 0).ok()?;
            if let Some(limits) = decode(&bytes) {
                return Some(limits);
            }
            std::thread::yield_now();
        }
        None
    }
}

fn words_of(limits: Limits) -> [u64; WORDS] {
    [limits.term_at, limits.kill_at, limits.grace, limits.until]
}

fn encode(limits: Limits) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    let (words, check) = bytes.split_at_mut(WORDS * WORD);
    for (place, word) in words.chunks_exact_mut(WORD).zip(words_of(limits)) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    check.copy_from_slice(&XxHash3_64::oneshot(words).to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; SIZE]) -> Option<Limits> {
    let (words, check) = bytes.split_at(WORDS * WORD);
    if XxHash3_64::oneshot(words).to_le_bytes() != *check {
        return None;
    }
    let mut words = words.chunks_exact(WORD).map(|word| {
        let mut bytes = [0; WORD];
        bytes.copy_from_slice(word);
        u64::from_le_bytes(bytes)
    });
    Some(Limits {
        term_at: words.next()?,
        kill_at: words.next()?,
        grace: words.next()?,
        until: words.next()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Limits = Limits {
        term_at: 1_000,
        kill_at: 2_000,
        grace: 500,
        until: 2_500,
    };
    const SECOND: Limits = Limits {
        term_at: 1_100,
        kill_at: 2_100,
        grace: 500,
        until: 2_600,
    };

    #[test]
    fn one_process_reads_the_limits_that_the_other_writes() {
        let board = Board::create().unwrap();
        assert_eq!(board.read(), None, "nothing yet");
        board.write(FIRST).unwrap();
        let other = File::open(format!("/proc/self/fd/{}", board.number())).unwrap();
        let other = Board::from_file(other);
        assert_eq!(other.read(), Some(FIRST));
        board.write(SECOND).unwrap();
        assert_eq!(other.read(), Some(SECOND));
    }

    #[test]
    fn a_record_that_is_half_written_is_not_trusted() {
        let (before, after) = (encode(FIRST), encode(SECOND));
        for cut in 1..SIZE {
            let mut torn = before;
            torn[..cut].copy_from_slice(&after[..cut]);
            let read = decode(&torn);
            let whole = [Some(FIRST), Some(SECOND), None];
            assert!(whole.contains(&read), "cut at {cut}: {read:?}");
        }
        let mut torn = before;
        torn[..WORD].copy_from_slice(&after[..WORD]);
        assert_eq!(decode(&torn), None);
    }
}

//! Stamps events with the observer's clock and keeps them in memory or in a file.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::{Event, History, What, json};

/// Stamps events and keeps them. Clones share one history. Recording takes a lock for the time of one push, or of one
/// write to a file.
///
/// The time comes from the observer's clock, *not* from the clock of the library under test: an error in that clock, or
/// in how the library uses it, must appear as a violation instead of shifting the stamps as well.
#[derive(Clone)]
pub struct Recorder {
    clock: Arc<dyn Fn() -> Duration + Send + Sync>,
    sink: Arc<Mutex<Sink>>,
}

enum Sink {
    Memory(Vec<Event>),
    File(File, PathBuf),
}

impl Recorder {
    /// Makes a recorder in memory with this machine's `CLOCK_BOOTTIME`, which all processes of the host share and which
    /// counts suspended time. Elsewhere than on Linux and Android it uses the wall clock, which must not be set
    /// meanwhile.
    pub fn boottime() -> Self {
        Self::with_clock(boottime)
    }

    /// Makes a recorder in memory with the caller's clock, for simulated time.
    pub fn with_clock(clock: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Recorder {
            clock: Arc::new(clock),
            sink: Arc::new(Mutex::new(Sink::Memory(Vec::new()))),
        }
    }

    /// Writes to a file with the same clock: every event is appended as a line of JSON before
    /// [`record`](Recorder::record) returns, so that a killed process loses nothing. Events recorded earlier are not
    /// copied to the file.
    ///
    /// # Errors
    ///
    /// The file cannot be opened or written.
    pub fn to_file(self, path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(path)?;
        if file.seek(SeekFrom::End(0))? > 0 {
            // An earlier process of this node may have been killed in the middle of a line.
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
            }
        }
        let sink = Arc::new(Mutex::new(Sink::File(file, path.to_owned())));
        Ok(Recorder { sink, ..self })
    }

    /// Returns the time of the observer's clock.
    pub fn now(&self) -> Duration {
        (self.clock)()
    }

    /// Records an event that happens now.
    ///
    /// # Panics
    ///
    /// If the file cannot be written: a history with holes would prove nothing.
    pub fn record(&self, node: impl Into<String>, election: impl Into<String>, what: What) {
        self.record_at(self.now(), node, election, what);
    }

    /// Records an event at a time read earlier from [`now`](Recorder::now).
    ///
    /// # Panics
    ///
    /// As [`record`](Recorder::record).
    pub fn record_at(
        &self,
        at: Duration,
        node: impl Into<String>,
        election: impl Into<String>,
        what: What,
    ) {
        let event = Event {
            at,
            node: node.into(),
            election: election.into(),
            what,
        };
        // A panic elsewhere leaves only whole events behind, so a poisoned lock is still usable.
        match &mut *self.sink.lock().unwrap_or_else(PoisonError::into_inner) {
            Sink::Memory(events) => events.push(event),
            Sink::File(file, path) => {
                // One line is one write, so lines of processes that share the file do not mix.
                let line = json::line(&event);
                if let Err(error) = line.and_then(|line| file.write_all(line.as_bytes())) {
                    panic!("cannot record to {}: {error}", path.display());
                }
            }
        }
    }

    /// Records one sample of `is_valid()` and returns its result.
    ///
    /// `true` is stamped with the time before the check, `false` with the time after it. Otherwise, a process that is
    /// stopped between check and stamp would seem to take itself for the leader while it did nothing.
    pub fn sample(
        &self,
        node: impl Into<String>,
        election: impl Into<String>,
        token: i64,
        is_valid: impl FnOnce() -> bool,
    ) -> bool {
        let before = self.now();
        let valid = is_valid();
        if valid {
            self.record_at(before, node, election, What::Valid { token });
        } else {
            self.record(node, election, What::Invalid { token });
        }
        valid
    }

    /// Returns everything recorded so far: by this recorder and its clones, or in the whole file.
    ///
    /// # Errors
    ///
    /// As for [`History::load`]; none for a recorder in memory.
    pub fn history(&self) -> io::Result<History> {
        match &*self.sink.lock().unwrap_or_else(PoisonError::into_inner) {
            Sink::Memory(events) => Ok(History::new(events.iter().cloned())),
            Sink::File(_, path) => History::load([path]),
        }
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn boottime() -> Duration {
    Duration::from_nanos(eldest_process::clock::now())
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
// The observer's clock is deliberately not the injected one; see `Recorder`.
#[allow(clippy::disallowed_methods)]
fn boottime() -> Duration {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default()
}

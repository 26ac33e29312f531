//! Moves the wall clock of child processes, by libfaketime, and leaves their other clocks alone.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::error::{Error, ErrorKind, Result};

/// The variable that names the library to use instead of an installed one.
const LIBRARY_VARIABLE: &str = "ELDEST_FAKETIME";
/// The folder where Debian installs the library, with a subfolder for each kind of machine.
const FOLDERS: &str = "/usr/lib";
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";
/// The folder where the library keeps a file and a semaphore for each process; a killed process leaves them behind.
const SHARED: &str = "/dev/shm";

/// A wall clock (`CLOCK_REALTIME`) of child processes, which a test moves while they run. Monotonic clocks, and with
/// them the deadline of a term, run on unchanged.
///
/// It needs [libfaketime](https://github.com/wolfcw/libfaketime) (Debian: `apt-get install libfaketime`), and programs that
/// load libc dynamically. A program in Go or a static one does not notice it.
#[derive(Debug)]
pub struct WallClock {
    library: PathBuf,
    folder: TempDir,
}

impl WallClock {
    /// Finds the library, in the file that the variable `ELDEST_FAKETIME` names, or else where Debian installs it. The clock
    /// shows the true time.
    ///
    /// # Errors
    ///
    /// [`Missing`](ErrorKind::Missing): there is no library. [`Machine`](ErrorKind::Machine): there is no folder for the
    /// file that moves the clock.
    pub fn new() -> Result<Self> {
        let library = library().ok_or_else(|| {
            let text = format!(
                "libfaketime is not installed (`apt-get install libfaketime`); {LIBRARY_VARIABLE} may name it"
            );
            Error::new(ErrorKind::Missing, text)
        })?;
        let folder = tempfile::Builder::new().prefix("eldest-clock-").tempdir();
        let folder = folder.map_err(refused)?;
        let clock = Self { library, folder };
        clock.write("+0")?;
        Ok(clock)
    }

    /// Lets a program that is started by `command` see this clock. It notices a move within a second.
    pub fn apply_to(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", &self.library)
            .env("FAKETIME_TIMESTAMP_FILE", self.file())
            .env("FAKETIME_CACHE_DURATION", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }

    /// Moves the clock forward to that much after the true time.
    ///
    /// # Errors
    ///
    /// [`Machine`](ErrorKind::Machine): the file that moves the clock cannot be written.
    pub fn forward(&self, by: Duration) -> Result<()> {
        self.write(&format!("+{}", by.as_secs_f64()))
    }

    /// Moves the clock back to that much before the true time.
    ///
    /// # Errors
    ///
    /// As for [`forward`](Self::forward).
    pub fn back(&self, by: Duration) -> Result<()> {
        self.write(&format!("-{}", by.as_secs_f64()))
    }

    /// Lets the clock show the true time again.
    ///
    /// # Errors
    ///
    /// As for [`forward`](Self::forward).
    pub fn correct(&self) -> Result<()> {
        self.write("+0")
    }

    /// Removes the files of a killed process with that id: the library removes them only for a process that ends by
    /// itself.
    pub fn forget(pid: u32) {
        for name in ["faketime_shm_", "sem.faketime_sem_"] {
            let _ = std::fs::remove_file(Path::new(SHARED).join(format!("{name}{pid}")));
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("offset")
    }

    /// Replaces the file at once, so that a program never reads half of it.
    fn write(&self, offset: &str) -> Result<()> {
        let new = self.folder.path().join("new");
        let written = std::fs::write(&new, offset).and_then(|()| std::fs::rename(new, self.file()));
        written.map_err(refused)
    }
}

fn refused(error: std::io::Error) -> Error {
    Error::because(ErrorKind::Machine, "cannot move a wall clock", error)
}

fn library() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(LIBRARY_VARIABLE) {
        return Some(named.into());
    }
    let folders = std::fs::read_dir(FOLDERS).ok()?.flatten();
    let mut libraries = folders.map(|folder| folder.path().join(LIBRARY));
    libraries.find(|library| library.is_file())
}

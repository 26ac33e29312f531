//! Keeps the register in a database file that all nodes share, and counts in it beside the leader's other work.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use eldest::Term;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use crate::config::Config;
use crate::record::{Counter, Event, History, Write};

/// How long to wait for another node's write. A node that is stopped in the middle of one blocks all others.
const BUSY: Duration = Duration::from_millis(500);
/// The pause between the check of the term and the write, in place of real work: a node that is stopped nearly always
/// stops there.
pub const WORK: Duration = Duration::from_millis(40);
const PAUSE: Duration = Duration::from_millis(10);

const TABLE: &str = "CREATE TABLE IF NOT EXISTS register
    (name TEXT PRIMARY KEY, token INTEGER NOT NULL, value INTEGER NOT NULL) WITHOUT ROWID";
const FIRST: &str = "INSERT OR IGNORE INTO register VALUES (?1, 0, 0)";
/// The resource's part of fencing: it refuses every token older than the newest that ever wrote.
const FENCED: &str = "UPDATE register SET token = ?2, value = value + 1
    WHERE name = ?1 AND token <= ?2 RETURNING value";
const UNFENCED: &str = "UPDATE register SET token = ?2, value = value + 1
    WHERE name = ?1 RETURNING value";
const VALUE: &str = "SELECT value FROM register WHERE name = ?1";

/// The register's file, if one is configured.
pub(crate) struct Register {
    file: Option<PathBuf>,
    name: String,
    fenced: bool,
}

impl Register {
    pub(crate) fn open(config: &Config) -> Result<Self> {
        let register = Self {
            file: config.register.clone(),
            name: config.election.clone(),
            fenced: config.register_fenced,
        };
        if let Some(file) = &register.file {
            prepare(&connect(file)?, &register.name)?;
        }
        Ok(register)
    }

    /// Raises the counter for as long as the term is valid and its token is not cancelled, on a thread of its own: this
    /// kind of work cannot be dropped.
    pub(crate) fn count(&self, term: &Term, history: &History) -> Result<Counting> {
        let Some(file) = &self.file else {
            return Ok(Counting(None));
        };
        let connection = connect(file)?;
        let (term, history) = (term.clone(), history.clone());
        let (name, fenced) = (self.name.clone(), self.fenced);
        let thread = std::thread::Builder::new().name("register".to_owned());
        let thread = thread.spawn(move || {
            let (lost, token) = (term.lost(), term.fencing_token());
            while !lost.is_cancelled() && term.is_valid() {
                history.record(Event::Wrote(Counter::Register, token, Write::Sent));
                std::thread::sleep(WORK);
                let write = write(&connection, &name, token, fenced);
                history.record(Event::Wrote(Counter::Register, token, write));
                std::thread::sleep(PAUSE);
            }
        })?;
        Ok(Counting(Some(thread)))
    }
}

/// The running count of one term.
pub(crate) struct Counting(Option<JoinHandle<()>>);

impl Counting {
    /// Waits for the last write.
    pub(crate) async fn ends(self) -> Result<()> {
        let Some(thread) = self.0 else {
            return Ok(());
        };
        let joined = tokio::task::spawn_blocking(|| thread.join()).await?;
        joined.map_err(|_| anyhow!("counting in the register panicked"))
    }
}

/// Reads the counter of an election.
///
/// # Errors
///
/// The file is no register, or another process keeps it locked.
pub fn value(file: &Path, election: &str) -> Result<u64> {
    let connection = connect(file)?;
    Ok(connection.query_row(VALUE, params![election], |row| row.get(0))?)
}

fn connect(file: &Path) -> Result<Connection> {
    let connect = || -> rusqlite::Result<Connection> {
        let connection = Connection::open(file)?;
        connection.busy_timeout(BUSY)?;
        // No test covers the loss of power.
        connection.pragma_update(None, "synchronous", "OFF")?;
        Ok(connection)
    };
    connect().with_context(|| format!("REGISTER={}", file.display()))
}

fn prepare(connection: &Connection, name: &str) -> Result<()> {
    connection.execute_batch(TABLE)?;
    connection.execute(FIRST, params![name])?;
    Ok(())
}

/// Writes once. An error means that the database changed nothing: an uncommitted transaction is rolled back.
fn write(connection: &Connection, name: &str, token: i64, fenced: bool) -> Write {
    let update = if fenced { FENCED } else { UNFENCED };
    let write = || -> rusqlite::Result<Option<u64>> {
        // The transaction locks at once: two transactions that both read first would refuse each other.
        let write = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
        let value = write.query_row(update, params![name, token], |row| row.get(0));
        let value = value.optional()?;
        write.commit()?;
        Ok(value)
    };
    match write() {
        Ok(Some(value)) => Write::Admitted(value),
        Ok(None) | Err(_) => Write::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the outcomes of writes with these tokens.
    fn written(tokens: &[i64], fenced: bool) -> Result<Vec<Option<u64>>> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("register");
        let register = connect(&file)?;
        prepare(&register, "e")?;
        let written: Vec<_> = tokens
            .iter()
            .map(|token| match write(&register, "e", *token, fenced) {
                Write::Admitted(value) => Some(value),
                _ => None,
            })
            .collect();
        let admitted = written.iter().flatten().count() as u64;
        assert_eq!(value(&file, "e")?, admitted);
        Ok(written)
    }

    #[test]
    fn a_token_below_the_newest_is_refused_and_changes_nothing() -> Result<()> {
        let written = written(&[5, 5, 7, 5, 7], true)?;
        assert_eq!(written, [Some(1), Some(2), Some(3), None, Some(4)]);
        Ok(())
    }

    #[test]
    fn without_fencing_a_stale_write_is_taken() -> Result<()> {
        assert_eq!(written(&[7, 5], false)?, [Some(1), Some(2)]);
        Ok(())
    }
}

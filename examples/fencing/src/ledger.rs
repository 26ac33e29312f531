//! Fenced writes to `PostgreSQL`: a table keeps the highest token of each election, and each write compares it in the
//! same statement.

use anyhow::Result;
use tokio_postgres::Client;

use crate::Refused;

/// Creates the tables.
pub const SCHEMA: &str = include_str!("sql/schema.sql");
/// Stores a token, unless a higher one is stored. It changes one row, or none.
pub const CLAIM: &str = include_str!("sql/claim.sql");
/// Does the same, and writes a payment if the token was stored. It changes one row, or none.
pub const PAY: &str = include_str!("sql/pay.sql");

/// The payments of one election's leaders.
pub struct Ledger {
    client: Client,
    election: String,
}

impl Ledger {
    /// Creates the tables if they are missing.
    ///
    /// # Errors
    ///
    /// `PostgreSQL` cannot be reached, or refuses a statement.
    pub async fn open(client: Client, election: &str) -> Result<Self> {
        client.batch_execute(SCHEMA).await?;
        Ok(Self {
            client,
            election: election.to_owned(),
        })
    }

    /// Shuts out all earlier leaders. A new leader calls this before it reads the payments.
    ///
    /// # Errors
    ///
    /// [`Refused`] if a later leader has claimed the ledger; otherwise those of `PostgreSQL`.
    pub async fn claim(&self, token: i64) -> Result<()> {
        let rows = self
            .client
            .execute(CLAIM, &[&self.election, &token])
            .await?;
        admitted(rows, token)
    }

    /// Records that an invoice was paid.
    ///
    /// # Errors
    ///
    /// [`Refused`] if a later leader has claimed the ledger; otherwise those of `PostgreSQL`. One of them reports that
    /// the invoice is paid already.
    pub async fn pay(&self, token: i64, invoice: &str) -> Result<()> {
        let rows = self
            .client
            .execute(PAY, &[&self.election, &token, &invoice])
            .await?;
        admitted(rows, token)
    }

    /// Returns all invoices in the order of their payment, each with the token of the leader that paid it.
    ///
    /// # Errors
    ///
    /// `PostgreSQL` cannot be reached.
    pub async fn payments(&self) -> Result<Vec<(String, i64)>> {
        let all = "SELECT invoice, token FROM payments ORDER BY id";
        let rows = self.client.query(all, &[]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }
}

fn admitted(rows: u64, token: i64) -> Result<()> {
    anyhow::ensure!(rows == 1, Refused { token });
    Ok(())
}

//! Holds etcd's limits, which stay as they are if its data is replaced.

use std::time::Duration;

use eldest_core::time::Time;
use eldest_store::{Op, Operand, Refusal, Txn};

/// The default of etcd's `--max-txn-ops`.
const MOST_OPERATIONS: usize = 128;

/// The size of a transaction.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Size {
    Operations(usize),
    Bytes(usize),
}

/// Each limit ends by itself, so that none is lifted by the end of another.
#[derive(Debug, Clone, Default)]
pub(crate) struct Limits {
    /// The sizes above which a transaction is refused, each until then.
    largest: Vec<(Size, Time)>,
    /// How long the end of a lease takes for each of its keys, each until then.
    ends_take: Vec<(Duration, Time)>,
    /// The time until which etcd ends leases, and everything else waits.
    busy_until: Time,
    /// The transactions that were refused as too large.
    pub(crate) refused: u64,
}

impl Limits {
    pub(crate) fn refuse_above(&mut self, size: Size, until: Time) {
        self.largest.push((size, until));
    }

    pub(crate) fn slow_down_ends(&mut self, by_key: Duration, until: Time) {
        self.ends_take.push((by_key, until));
    }

    pub(crate) fn busy_until(&self) -> Time {
        self.busy_until
    }

    /// Keeps etcd busy with the end of a lease that has so many keys.
    pub(super) fn end_lease(&mut self, now: Time, keys: usize) {
        let begins = self.busy_until.max(now);
        for (by_key, until) in &self.ends_take {
            let over = begins.after(*by_key * keys as u32).min(*until);
            self.busy_until = self.busy_until.max(over);
        }
    }

    /// Refuses a transaction that is not well-formed or too large.
    pub(super) fn check(&mut self, now: Time, txn: &Txn) -> Result<(), Refusal> {
        txn.check(MOST_OPERATIONS)?;
        let mut in_force = self.largest.iter().filter(|(_, until)| now < *until);
        let fits = |(size, _): &(Size, Time)| match *size {
            Size::Operations(most) => txn.check(most),
            Size::Bytes(most) if bytes_of(txn) > most => Err(Refusal::TooLarge),
            Size::Bytes(_) => Ok(()),
        };
        let checked = in_force.try_for_each(fits);
        self.refused += u64::from(checked.is_err());
        checked
    }
}

/// Returns about how many bytes the transaction has, without its numbers.
fn bytes_of(txn: &Txn) -> usize {
    let compared = txn.compare.iter().map(|compare| {
        let value = match &compare.operand {
            Operand::Value(value) => value.len(),
            _ => 0,
        };
        compare.keys.first().len() + value
    });
    let operations = txn.success.iter().chain(&txn.failure);
    let operations = operations.map(|op| match op {
        Op::Range(range) => range.keys.first().len(),
        Op::Put(put) => put.key.len() + put.value.len(),
        Op::Delete(delete) => delete.keys.first().len(),
        Op::Txn(inner) => bytes_of(inner),
        Op::Missing => 0,
    });
    compared.chain(operations).sum()
}

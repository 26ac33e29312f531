//! Refuses the requests that etcd refuses before it reads its keys.

use std::collections::BTreeSet;

use crate::request::{Delete, Op, Put, Range, Txn};
use crate::{Bytes, Keys, Refusal};

fn named(key: &[u8]) -> Result<(), Refusal> {
    if key.is_empty() {
        return Err(Refusal::EmptyKey);
    }
    Ok(())
}

impl Range {
    /// Checks the request's form.
    ///
    /// # Errors
    ///
    /// etcd refuses such a read.
    pub fn check(&self) -> Result<(), Refusal> {
        named(self.keys.first())?;
        self.sort.ok_or(Refusal::InvalidSort).map(drop)
    }
}

impl Put {
    /// Checks the request's form.
    ///
    /// # Errors
    ///
    /// etcd refuses such a put.
    pub fn check(&self) -> Result<(), Refusal> {
        named(&self.key)?;
        if self.keeps_value && !self.value.is_empty() {
            return Err(Refusal::ValueProvided);
        }
        if self.keeps_lease && self.lease != 0 {
            return Err(Refusal::LeaseProvided);
        }
        Ok(())
    }
}

impl Delete {
    /// Checks the request's form.
    ///
    /// # Errors
    ///
    /// etcd refuses such a deletion.
    pub fn check(&self) -> Result<(), Refusal> {
        named(self.keys.first())
    }
}

impl Txn {
    /// Checks the request's form. `most` is etcd's `--max-txn-ops`.
    ///
    /// # Errors
    ///
    /// etcd refuses such a transaction.
    pub fn check(&self, most: usize) -> Result<(), Refusal> {
        self.form(most)?;
        writes(&self.success)?;
        writes(&self.failure)?;
        Ok(())
    }

    fn form(&self, most: usize) -> Result<(), Refusal> {
        let branches = self.success.len().max(self.failure.len());
        let ops = self.compare.len().max(branches);
        if ops > most {
            return Err(Refusal::TooManyOps);
        }
        for compare in &self.compare {
            named(compare.keys.first())?;
        }
        for op in self.success.iter().chain(&self.failure) {
            match op {
                Op::Range(inner) => inner.check()?,
                Op::Put(inner) => inner.check()?,
                Op::Delete(inner) => inner.check()?,
                Op::Txn(inner) => inner.form(most - ops)?,
                Op::Missing => return Err(Refusal::KeyNotFound),
            }
        }
        Ok(())
    }
}

/// The keys that the operations of a branch may write.
#[derive(Default)]
struct Writes<'t> {
    puts: BTreeSet<&'t Bytes>,
    deletes: Vec<&'t Keys>,
}

impl<'t> Writes<'t> {
    fn put(&mut self, key: &'t Bytes, twice_is_fine: bool) -> Result<(), Refusal> {
        // Unlike elsewhere, an end of one zero byte is a plain end here, before every key.
        let mut ranges = self.deletes.iter();
        let deleted = ranges.any(|keys| !matches!(keys, Keys::From(_)) && keys.contains(key));
        if deleted || (!self.puts.insert(key) && !twice_is_fine) {
            return Err(Refusal::DuplicateKey);
        }
        Ok(())
    }
}

/// Returns the keys that the operations write. No key may be written twice, whichever branches are taken.
fn writes(ops: &[Op]) -> Result<Writes<'_>, Refusal> {
    let mut all = Writes::default();
    for op in ops {
        if let Op::Delete(delete) = op {
            all.deletes.push(&delete.keys);
        }
    }
    for op in ops {
        let Op::Txn(inner) = op else {
            continue;
        };
        let success = writes(&inner.success)?;
        let failure = writes(&inner.failure)?;
        for key in &success.puts {
            all.put(key, false)?;
        }
        for key in failure.puts {
            // Only one of the two branches is taken.
            let twice = success.puts.contains(key);
            all.put(key, twice)?;
        }
        all.deletes.extend(success.deletes);
        all.deletes.extend(failure.deletes);
    }
    for op in ops {
        if let Op::Put(put) = op {
            all.put(&put.key, false)?;
        }
    }
    Ok(all)
}

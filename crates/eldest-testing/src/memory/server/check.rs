//! Refuses the requests that etcd refuses before it reads its keys.

use std::collections::BTreeSet;

use tonic::Status;

use super::errors;
use super::range::Keys;
use crate::memory::proto::{
    DeleteRequest, PutRequest, RangeRequest, Request, RequestOp, TxnRequest,
};

pub(crate) fn range(request: &RangeRequest) -> Result<(), Status> {
    if request.key.is_empty() {
        return Err(errors::empty_key());
    }
    if !(0..=2).contains(&request.sort_order) || !(0..=4).contains(&request.sort_target) {
        return Err(errors::invalid_sort());
    }
    Ok(())
}

pub(crate) fn put(request: &PutRequest) -> Result<(), Status> {
    if request.key.is_empty() {
        return Err(errors::empty_key());
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(errors::value_provided());
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(errors::lease_provided());
    }
    Ok(())
}

pub(crate) fn delete(request: &DeleteRequest) -> Result<(), Status> {
    if request.key.is_empty() {
        return Err(errors::empty_key());
    }
    Ok(())
}

/// Checks a transaction. `most` is etcd's `--max-txn-ops`.
pub(crate) fn txn(request: &TxnRequest, most: usize) -> Result<(), Status> {
    form(request, most)?;
    writes(&request.success)?;
    writes(&request.failure)?;
    Ok(())
}

fn form(request: &TxnRequest, most: usize) -> Result<(), Status> {
    let branches = request.success.len().max(request.failure.len());
    let ops = request.compare.len().max(branches);
    if ops > most {
        return Err(errors::too_many_ops());
    }
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(errors::empty_key());
    }
    for op in request.success.iter().chain(&request.failure) {
        match &op.request {
            Some(Request::RequestRange(inner)) => range(inner)?,
            Some(Request::RequestPut(inner)) => put(inner)?,
            Some(Request::RequestDeleteRange(inner)) => delete(inner)?,
            Some(Request::RequestTxn(inner)) => form(inner, most - ops)?,
            None => return Err(errors::key_not_found()),
        }
    }
    Ok(())
}

/// The keys that the operations of a branch may write.
#[derive(Default)]
struct Writes {
    puts: BTreeSet<Vec<u8>>,
    deletes: Vec<Keys>,
}

impl Writes {
    fn put(&mut self, key: Vec<u8>, twice_is_fine: bool) -> Result<(), Status> {
        let deleted = self.deletes.iter().any(|keys| keys.contains(&key));
        if deleted || (!self.puts.insert(key) && !twice_is_fine) {
            return Err(errors::duplicate_key());
        }
        Ok(())
    }
}

/// Returns the keys that the operations write. No key may be written twice, whichever branches are taken.
fn writes(ops: &[RequestOp]) -> Result<Writes, Status> {
    let mut all = Writes::default();
    for op in ops {
        if let Some(Request::RequestDeleteRange(delete)) = &op.request {
            all.deletes.push(interval(&delete.key, &delete.range_end));
        }
    }
    for op in ops {
        let Some(Request::RequestTxn(inner)) = &op.request else {
            continue;
        };
        let success = writes(&inner.success)?;
        let failure = writes(&inner.failure)?;
        for key in &success.puts {
            all.put(key.clone(), false)?;
        }
        for key in failure.puts {
            // Only one of the two branches is taken.
            let twice = success.puts.contains(&key);
            all.put(key, twice)?;
        }
        all.deletes.extend(success.deletes);
        all.deletes.extend(failure.deletes);
    }
    for op in ops {
        if let Some(Request::RequestPut(put)) = &op.request {
            all.put(put.key.clone(), false)?;
        }
    }
    Ok(all)
}

/// Unlike elsewhere, an end of one zero byte is a plain end here.
fn interval(key: &[u8], end: &[u8]) -> Keys {
    match end {
        [] => Keys::One(key.to_vec()),
        _ => Keys::Until(key.to_vec(), end.to_vec()),
    }
}

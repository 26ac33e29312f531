//! Puts or deletes many keys in one transaction, each under a condition of its own.
//!
//! Each key has a transaction within the transaction. So a conflict over one key changes nothing for the others, and
//! costs them no second attempt.

use std::sync::Arc;

use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp, TxnOpResponse};

use super::call::{CallError, header, kv};
use super::kv::delete_unchanged;
use super::lane::Lane;
use super::pool::Pool;
use eldest_core::error::RequestError;
use eldest_core::kv::Header;

impl Pool {
    /// Puts each of the keys that is absent, and returns which of them were put. `None`: `member` does not have the
    /// given create revision.
    ///
    /// A failure does not show that no key was put.
    pub async fn take(
        &self,
        (member, create_revision): (&[u8], i64),
        value: &[u8],
        lease: i64,
        keys: &[Arc<[u8]>],
    ) -> Result<(Header, Option<Vec<bool>>), RequestError> {
        let put = |key: &Arc<[u8]>| {
            let absent = Compare::create_revision(&**key, CompareOp::Equal, 0);
            let put = TxnOp::put(&**key, value, Some(PutOptions::new().with_lease(lease)));
            TxnOp::txn(Txn::new().when([absent]).and_then([put]))
        };
        let stands = Compare::create_revision(member, CompareOp::Equal, create_revision);
        let puts: Vec<_> = keys.iter().map(put).collect();
        let txn = &Txn::new().when([stands]).and_then(puts);
        self.call(Lane::Data, |client| async move {
            let answer = kv(&client).txn(txn.clone()).await?;
            let header = header(answer.header())?;
            if !answer.succeeded() {
                return Ok((header, None));
            }
            let taken = |response| match response {
                TxnOpResponse::Txn(inner) => Ok(inner.succeeded()),
                _ => Err(CallError::Odd("a transaction without its results")),
            };
            let taken: Vec<_> = answer
                .op_responses()
                .into_iter()
                .map(taken)
                .collect::<Result<_, _>>()?;
            if taken.len() != keys.len() {
                return Err(CallError::Odd("a transaction with fewer results than keys"));
            }
            Ok((header, Some(taken)))
        })
        .await
    }

    /// Deletes each of the keys that still has its create revision; afterwards none of them exists.
    pub async fn release(&self, keys: &[(Arc<[u8]>, i64)]) -> Result<Header, RequestError> {
        let delete =
            |(key, create_revision): &(Arc<[u8]>, i64)| delete_unchanged(key, *create_revision);
        let txn = &if let [alone] = keys {
            delete(alone)
        } else {
            let deletes = keys.iter().map(|key| TxnOp::txn(delete(key)));
            Txn::new().and_then(deletes.collect::<Vec<_>>())
        };
        self.call(Lane::Data, |client| async move {
            let answer = kv(&client).txn(txn.clone()).await?;
            header(answer.header())
        })
        .await
    }
}

//! Puts and deletes the mark of an evacuated data centre, if it did not change since it was read, and the order to step
//! down for a candidate that still exists.

use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp};

use super::pool::Pool;
use eldest_core::error::RequestError;
use eldest_core::kv::Entry;

impl Pool {
    /// Puts the key under the lease (0: without one) if it was last written at `mod_revision` (0: if it does not
    /// exist). Returns the revision of the write.
    pub async fn put_mark(
        &self,
        key: &[u8],
        mod_revision: i64,
        (value, lease): (&[u8], i64),
    ) -> Result<Option<i64>, RequestError> {
        let same = Compare::mod_revision(key, CompareOp::Equal, mod_revision);
        let put = TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease)));
        let answer = self.txn(Txn::new().when([same]).and_then([put])).await?;
        let revision = answer.header().map(etcd_client::ResponseHeader::revision);
        Ok(revision.filter(|_| answer.succeeded()))
    }

    /// Puts the key under the lease if the candidate's key still exists, and returns whether it does.
    pub async fn put_order(
        &self,
        key: &[u8],
        candidate: &Entry,
        (value, lease): (&[u8], i64),
    ) -> Result<bool, RequestError> {
        let (of, created) = (&*candidate.key, candidate.create_revision);
        let stands = Compare::create_revision(of, CompareOp::Equal, created);
        let put = TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease)));
        let answer = self.txn(Txn::new().when([stands]).and_then([put])).await?;
        Ok(answer.succeeded())
    }

    /// Deletes the key if it was last written at `mod_revision`, and returns whether it was.
    pub async fn delete_if_written_at(
        &self,
        key: &[u8],
        mod_revision: i64,
    ) -> Result<bool, RequestError> {
        let same = Compare::mod_revision(key, CompareOp::Equal, mod_revision);
        let delete = TxnOp::delete(key, None);
        let answer = self.txn(Txn::new().when([same]).and_then([delete])).await?;
        Ok(answer.succeeded())
    }
}

//! Sends the transactions that the core describes as plain data.

use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, DeleteOptions, GetOptions, PutOptions, TxnOp, TxnOpResponse,
};

use super::call::{header, kv};
use super::kv::entry;
use super::lane::Lane;
use super::pool::Pool;
use eldest_core::error::RequestError;
use eldest_core::txn::{Op, Transacted, Txn, When};

impl Pool {
    /// Sends a transaction once, or again if etcd refused the token and applied nothing. It travels as renewals do,
    /// because a leader that allows challenges depends on it: a burst of watch events must not delay it.
    pub async fn transact(&self, txn: &Txn) -> Result<Transacted, RequestError> {
        self.transact_on(Lane::Lease, self.challenge_timeout, txn)
            .await
    }

    /// Sends a transaction as [`Pool::transact`] does, beside the renewals: it may be large.
    pub async fn transact_beside(&self, txn: &Txn) -> Result<Transacted, RequestError> {
        self.transact_on(Lane::Data, self.request_timeout(), txn)
            .await
    }

    async fn transact_on(
        &self,
        lane: Lane,
        limit: Duration,
        txn: &Txn,
    ) -> Result<Transacted, RequestError> {
        let each = |ops: &[Op]| -> Vec<TxnOp> { ops.iter().map(operation).collect() };
        let when: Vec<_> = txn.when.iter().map(condition).collect();
        let txn = &etcd_client::Txn::new()
            .when(when)
            .and_then(each(&txn.then))
            .or_else(each(&txn.otherwise));
        let transact = self.call_within(limit, lane, |client| async move {
            let answer = kv(&client).txn(txn.clone()).await?;
            let header = header(answer.header())?;
            let read = |response| match response {
                TxnOpResponse::Get(mut found) => {
                    Some(found.take_kvs().into_iter().map(entry).collect())
                }
                _ => None,
            };
            Ok(Transacted {
                header,
                held: answer.succeeded(),
                found: answer.op_responses().into_iter().filter_map(read).collect(),
            })
        });
        let (transacted, _) = transact.await?;
        Ok(transacted)
    }
}

fn condition(when: &When) -> Compare {
    match when {
        When::Created(key, revision) => {
            Compare::create_revision(&**key, CompareOp::Equal, *revision)
        }
        When::NotCreated(key, revision) => {
            Compare::create_revision(&**key, CompareOp::NotEqual, *revision)
        }
        When::Written(key, revision) => Compare::mod_revision(&**key, CompareOp::Equal, *revision),
    }
}

fn operation(op: &Op) -> TxnOp {
    match op {
        Op::Put { key, value, lease } => {
            let bound = PutOptions::new().with_lease(*lease);
            TxnOp::put(&**key, &**value, Some(bound))
        }
        Op::Read(key) => TxnOp::get(&**key, None),
        Op::ReadBelow(prefix) => TxnOp::get(&**prefix, Some(GetOptions::new().with_prefix())),
        Op::Delete(key) => TxnOp::delete(&**key, None),
        Op::DeleteBelow(prefix) => {
            TxnOp::delete(&**prefix, Some(DeleteOptions::new().with_prefix()))
        }
    }
}

//! Translates transactions into types of `etcd_client`, and its answers back.

use etcd_client::{
    Compare, CompareOp, DeleteOptions, GetOptions, PutOptions, Txn, TxnOp, TxnOpResponse,
    TxnResponse,
};

use super::{Comparison, Condition, Fence, KeyValue, Kind, Op, OpResult, Target, TxnOutcome};
use crate::call::{CallError, header};

impl Comparison {
    fn to_etcd(self) -> CompareOp {
        match self {
            Comparison::Equal => CompareOp::Equal,
            Comparison::NotEqual => CompareOp::NotEqual,
            Comparison::Less => CompareOp::Less,
            Comparison::Greater => CompareOp::Greater,
        }
    }
}

impl Condition {
    fn into_etcd(self) -> Compare {
        let (key, comparison) = (self.key, self.comparison.to_etcd());
        match self.target {
            Target::Version(version) => Compare::version(key, comparison, version),
            Target::CreateRevision(revision) => Compare::create_revision(key, comparison, revision),
            Target::ModRevision(revision) => Compare::mod_revision(key, comparison, revision),
            Target::Lease(lease_id) => Compare::lease(key, comparison, lease_id),
            Target::Value(value) => Compare::value(key, comparison, value),
        }
    }
}

impl Op {
    fn into_etcd(self) -> TxnOp {
        match self.0 {
            Kind::Put {
                key,
                value,
                lease_id,
            } => TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease_id))),
            Kind::Get { key, prefix } => {
                let below = prefix.then(|| GetOptions::new().with_prefix());
                TxnOp::get(key, below)
            }
            Kind::Delete { key, prefix } => {
                let below = prefix.then(|| DeleteOptions::new().with_prefix());
                TxnOp::delete(key, below)
            }
            Kind::When {
                conditions,
                then,
                otherwise,
            } => TxnOp::txn(branch(conditions, then, otherwise)),
        }
    }
}

fn branch(conditions: Vec<Condition>, then: Vec<Op>, otherwise: Vec<Op>) -> Txn {
    let each = |ops: Vec<Op>| -> Vec<TxnOp> { ops.into_iter().map(Op::into_etcd).collect() };
    let conditions: Vec<Compare> = conditions.into_iter().map(Condition::into_etcd).collect();
    Txn::new()
        .when(conditions)
        .and_then(each(then))
        .or_else(each(otherwise))
}

/// Builds the transaction that applies `operations` if the key of each fence still exists.
pub(crate) fn fenced(fences: Vec<Fence>, operations: Vec<Op>) -> Txn {
    let conditions = fences.into_iter().map(Condition::from).collect();
    branch(conditions, operations, Vec::new())
}

/// Returns the outcome of a transaction that was applied, or `None` if a fence refused it.
pub(crate) fn outcome(answer: &TxnResponse) -> Result<Option<TxnOutcome>, CallError> {
    let revision = header(answer.header())?.revision;
    if !answer.succeeded() {
        return Ok(None);
    }
    let results = results(answer);
    Ok(Some(TxnOutcome { revision, results }))
}

fn results(answer: &TxnResponse) -> Vec<OpResult> {
    let each = answer.op_responses().into_iter();
    each.map(|result| match result {
        TxnOpResponse::Put(_) => OpResult::Put,
        TxnOpResponse::Get(mut found) => OpResult::Found {
            entries: found
                .take_kvs()
                .into_iter()
                .map(KeyValue::from_etcd)
                .collect(),
        },
        TxnOpResponse::Delete(deleted) => OpResult::Deleted {
            count: u64::try_from(deleted.deleted()).unwrap_or_default(),
        },
        TxnOpResponse::Txn(inner) => OpResult::When {
            held: inner.succeeded(),
            results: results(&inner),
        },
    })
    .collect()
}

impl KeyValue {
    fn from_etcd(found: etcd_client::KeyValue) -> Self {
        let (create_revision, mod_revision) = (found.create_revision(), found.mod_revision());
        let (version, lease_id) = (found.version(), found.lease());
        let (key, value) = found.into_key_value();
        Self {
            key,
            value,
            create_revision,
            mod_revision,
            version,
            lease_id,
        }
    }
}

/// Conversions for programs that use the same version of `etcd_client` beside the library.
#[cfg(feature = "etcd-client")]
mod from {
    use super::{Compare, CompareOp, Comparison, Condition, Fence, Op, TxnOp};

    impl From<Fence> for Compare {
        fn from(fence: Fence) -> Self {
            Condition::from(fence).into_etcd()
        }
    }

    impl From<Condition> for Compare {
        fn from(condition: Condition) -> Self {
            condition.into_etcd()
        }
    }

    impl From<Comparison> for CompareOp {
        fn from(comparison: Comparison) -> Self {
            comparison.to_etcd()
        }
    }

    impl From<Op> for TxnOp {
        fn from(op: Op) -> Self {
            op.into_etcd()
        }
    }
}

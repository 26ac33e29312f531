//! Converts etcd's messages into the requests of the store, and its answers into messages.

use eldest_store::{
    By, Bytes, Compare, Delete, DeleteDone, Keys, Op, OpDone, Operand, Page, Put, PutDone, Range,
    Ranged, Relation, Sort, Txn, TxnDone,
};
use tonic::Status;

use crate::memory::proto::{
    self, CompareTarget, DeleteRequest, DeleteResponse, Event, EventType, Header, KeyValue,
    PutRequest, PutResponse, RangeRequest, RangeResponse, Request, Response, ResponseOp,
    TargetUnion, TxnRequest, TxnResponse,
};

/// The number of the descending order, which is the last.
const DESCENDING: i32 = 2;

pub(super) fn range(request: RangeRequest) -> Range {
    let page = match request {
        _ if request.count_only => Page::CountOnly,
        _ if request.keys_only => Page::KeysOnly,
        _ => Page::Whole,
    };
    Range {
        keys: Keys::new(request.key, &request.range_end),
        revision: request.revision,
        modified: (request.min_mod_revision, request.max_mod_revision),
        created: (request.min_create_revision, request.max_create_revision),
        sort: sort(request.sort_order, request.sort_target),
        limit: request.limit,
        page,
    }
}

/// Returns the order of an answer, ascending if the request names none.
fn sort(order: i32, target: i32) -> Option<Sort> {
    const TARGETS: [By; 5] = [
        By::Key,
        By::Version,
        By::CreateRevision,
        By::ModRevision,
        By::Value,
    ];
    let by = *TARGETS.get(usize::try_from(target).ok()?)?;
    let descending = order == DESCENDING;
    (0..=DESCENDING)
        .contains(&order)
        .then_some(Sort { by, descending })
}

pub(super) fn put(request: PutRequest) -> Put {
    Put {
        key: request.key.into(),
        value: request.value.into(),
        lease: request.lease,
        keeps_value: request.ignore_value,
        keeps_lease: request.ignore_lease,
        former: request.prev_kv,
    }
}

pub(super) fn delete(request: DeleteRequest) -> Delete {
    Delete {
        keys: Keys::new(request.key, &request.range_end),
        former: request.prev_kv,
    }
}

/// # Errors
///
/// A comparison names a target or a relation that etcd does not have.
pub(super) fn txn(request: TxnRequest) -> Result<Txn, Status> {
    let ops = |ops: Vec<proto::RequestOp>| ops.into_iter().map(op).collect::<Result<_, _>>();
    let compare = request.compare.into_iter().map(compare);
    Ok(Txn {
        compare: compare.collect::<Result<_, _>>()?,
        success: ops(request.success)?,
        failure: ops(request.failure)?,
    })
}

fn op(op: proto::RequestOp) -> Result<Op, Status> {
    Ok(match op.request {
        Some(Request::RequestRange(request)) => Op::Range(range(request)),
        Some(Request::RequestPut(request)) => Op::Put(put(request)),
        Some(Request::RequestDeleteRange(request)) => Op::Delete(delete(request)),
        Some(Request::RequestTxn(request)) => Op::Txn(txn(request)?),
        None => Op::Missing,
    })
}

fn compare(request: proto::Compare) -> Result<Compare, Status> {
    const RELATIONS: [Relation; 4] = [
        Relation::Equal,
        Relation::Greater,
        Relation::Less,
        Relation::NotEqual,
    ];
    let unknown = || Status::invalid_argument("no such comparison is modelled");
    let operand = match (
        CompareTarget::try_from(request.target).map_err(|_| unknown())?,
        request.target_union,
    ) {
        (CompareTarget::Version, Some(TargetUnion::Version(version))) => Operand::Version(version),
        (CompareTarget::Version, _) => Operand::Version(0),
        (CompareTarget::Create, Some(TargetUnion::CreateRevision(revision))) => {
            Operand::CreateRevision(revision)
        }
        (CompareTarget::Create, _) => Operand::CreateRevision(0),
        (CompareTarget::Mod, Some(TargetUnion::ModRevision(revision))) => {
            Operand::ModRevision(revision)
        }
        (CompareTarget::Mod, _) => Operand::ModRevision(0),
        (CompareTarget::Lease, Some(TargetUnion::Lease(lease))) => Operand::Lease(lease),
        (CompareTarget::Lease, _) => Operand::Lease(0),
        (CompareTarget::Value, Some(TargetUnion::Value(value))) => Operand::Value(value.into()),
        (CompareTarget::Value, _) => Operand::Value(Bytes::default()),
    };
    let relation = usize::try_from(request.result).ok();
    let relation = relation.and_then(|number| RELATIONS.get(number));
    let relation = *relation.ok_or_else(unknown)?;
    Ok(Compare {
        keys: Keys::new(request.key, &request.range_end),
        relation,
        operand,
    })
}

pub(super) fn key_value(kv: &eldest_store::KeyValue) -> KeyValue {
    KeyValue {
        key: kv.key.to_vec(),
        value: kv.value.to_vec(),
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        lease: kv.lease,
    }
}

/// Returns the event as watches without the former key report it.
pub(super) fn event(event: &eldest_store::Event) -> Event {
    let (kind, kv) = match event {
        eldest_store::Event::Put(kv) => (EventType::Put, key_value(kv)),
        eldest_store::Event::Delete { key, revision } => (
            EventType::Delete,
            KeyValue {
                key: key.to_vec(),
                mod_revision: *revision,
                ..KeyValue::default()
            },
        ),
    };
    Event {
        r#type: kind as i32,
        kv: Some(kv),
        prev_kv: None,
    }
}

/// Returns a header without a member, because answers within a transaction name none.
fn revision_alone(revision: i64) -> Header {
    Header {
        revision,
        ..Header::default()
    }
}

pub(super) fn ranged(done: &Ranged) -> RangeResponse {
    RangeResponse {
        header: Some(revision_alone(done.revision)),
        kvs: done.found.iter().map(key_value).collect(),
        more: done.more,
        count: done.count as i64,
    }
}

pub(super) fn txn_done(done: &TxnDone) -> TxnResponse {
    let response = |done: &OpDone| ResponseOp {
        response: Some(op_done(done)),
    };
    TxnResponse {
        header: Some(revision_alone(done.revision)),
        succeeded: done.succeeded,
        responses: done.results.iter().map(response).collect(),
    }
}

fn op_done(done: &OpDone) -> Response {
    match done {
        OpDone::Range(done) => Response::ResponseRange(ranged(done)),
        OpDone::Put(done) => Response::ResponsePut(put_done(done)),
        OpDone::Delete(done) => Response::ResponseDeleteRange(delete_done(done)),
        OpDone::Txn(done) => Response::ResponseTxn(txn_done(done)),
    }
}

pub(super) fn put_done(done: &PutDone) -> PutResponse {
    PutResponse {
        header: Some(revision_alone(done.revision)),
        prev_kv: done.former.as_ref().map(key_value),
    }
}

pub(super) fn delete_done(done: &DeleteDone) -> DeleteResponse {
    DeleteResponse {
        header: Some(revision_alone(done.revision)),
        deleted: done.deleted as i64,
        prev_kvs: done.former.iter().map(key_value).collect(),
    }
}
